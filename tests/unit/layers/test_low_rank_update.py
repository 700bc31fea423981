"""LoRA beside the joined matrices of several sites: what it adds, its gradients, and that it can be merged."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from same_bits import Reason, assert_same_bits
from torch import Tensor, nn

from comt_cli.layers import projection
from comt_cli.layers.gates import Site, TransponderGate
from comt_cli.layers.initialise import initialise
from comt_cli.layers.projection import Projections
from comt_cli.models.pretrained import merged
from comt_cli.tasks.settings.language import TrainSettings

D, WIDTHS, T, RANK, ALPHA = 6, {"q_proj": 4, "k_proj": 3, "v_proj": 3}, 5, 2, 3.0
TRAIN = TrainSettings(steps=1, pretrained="lora", lora_rank=RANK, lora_alpha=ALPHA)


def made(dtype: torch.dtype = torch.float64, *, adapted: bool = True, moved: bool = True) -> Projections:
    """Three sites, two of them with gates; with LoRA as it starts, or `moved` away from there."""
    gate = partial(TransponderGate.at, rank=2, init="normal")
    sites = [Site(name, "decoder", 0, 1, D, width) for name, width in WIDTHS.items()]
    with torch.device("meta"):
        module = Projections(sites, {"q_proj": gate, "v_proj": gate}, lambda _: 0.3)
    module.weight.requires_grad_(False)
    if adapted:
        module.adapt(*TRAIN.lora)
    initialise(module.to_empty(device="cpu"), 0)
    if adapted and moved:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for update in module.lora.values():
                update.B.copy_(torch.randn(update.B.shape, generator=generator))
    return module.to(dtype)


def inputs(dtype: torch.dtype = torch.float64, more: int = 0) -> Tensor:
    x_TD = torch.randn(2, T, D, generator=torch.Generator().manual_seed(2)).to(dtype)
    return torch.nn.functional.pad(x_TD, (0, more))


def test_at_the_start_it_adds_nothing_and_is_drawn_as_in_the_authors_code():
    module, bound = made(torch.float32, moved=False), 1 / math.sqrt(D)
    plain = made(torch.float32, adapted=False)
    assert_same_bits(module(inputs(torch.float32)), plain(inputs(torch.float32)), Reason.IDENTITY)
    expected = torch.empty(RANK * 999, D)
    torch.nn.init.kaiming_uniform_(expected, a=math.sqrt(5))
    assert expected.abs().max().item() == pytest.approx(bound, rel=1e-3)
    A = torch.cat([update.A for update in module.lora.values()])
    assert 0.7 * bound < A.abs().max() <= bound


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("filled", [False, True])
def test_it_is_the_sum_of_the_matrices_before_the_gate(filled, apart, monkeypatch):
    """`filled`: each site's rows filled up, and the input's columns, as on a GPU. `apart`: each site reads its own."""
    if filled:
        monkeypatch.setattr(projection, "aligned", lambda width, like: -(-width // 5) * 5)
    module, plain = made(), made(adapted=False)
    whole = nn.ModuleDict({"qkv": plain})
    whole.load_state_dict(merged(nn.ModuleDict({"qkv": module}).state_dict(), TRAIN))
    for each in (module, plain):
        each.packing.aligns_sites = filled and not apart
    given = [inputs()] * 3 if apart else [inputs(more=4 if filled else 0)]
    torch.testing.assert_close(module(*given), plain(*given), rtol=1e-12, atol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        half = made(torch.float32)(inputs(torch.float32))
    for found, expected in zip(half, made()(inputs()), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.05)  # a few roundings to bf16


def test_its_gradients_are_those_of_finite_differences():
    module = made()
    x_TD = inputs().requires_grad_()
    leaves = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert len(leaves) == 6 + len([*module.gates.parameters()])
    assert torch.autograd.gradcheck(lambda *_: module(x_TD), (x_TD, *leaves))
    sum(z.square().sum() for z in module(x_TD)).backward()
    assert module.weight.grad is None


def test_weights_are_not_put_together_for_decoding_while_it_learns():
    with pytest.raises(AssertionError):
        made().freeze()
