"""What one forward pass without storage tells, against what torch's own counter sees of both passes, and against what
is kept for two rows and for three."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from image_method_cases import CLASSES, IMAGE_METHODS, NETWORKS
from method_cases import SETTINGS, VOCABULARY, each_wiring, wiring_of
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from comt_cli.models import flops as flops_module
from comt_cli.models.base import Linear
from comt_cli.models.build import empty_network
from comt_cli.models.flops import Trace, flops_per_sample

T = 12
SIZE = 8
ROWS = 1_000_003


def counted_both_ways(loss: Callable[[], Tensor]) -> int:
    """FLOPs of a forward and a backward pass, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(loss())
    return counter.get_total_flops()


def kept_for(model: nn.Module, run: Callable[[], Tensor]) -> int:
    """Numbers that `run` keeps for its backward pass, by the storages that they lie in."""
    held = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = run()
    storages = (tensor for key, tensor in kept.items() if key not in held)
    numbers = sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in storages)
    assert output.requires_grad
    return numbers


@each_wiring
def test_a_language_model(options):
    """FLOPs are those of both passes, and what is kept grows with the rows."""
    model = empty_network(SETTINGS, wiring_of(options), vocabulary=VOCABULARY, length=T)
    (tokens,) = model.example(1)
    expected = counted_both_ways(lambda: F.cross_entropy(model(tokens)[0], tokens[0], reduction="sum"))
    assert flops_per_sample(model) == expected

    def run(rows: int) -> Tensor:
        return model.body(*model.example(rows))

    with Trace(ROWS) as trace:
        _, kept = trace.kept_by(model, lambda: run(ROWS))
    assert [kept.at(rows) for rows in (2, 3)] == [kept_for(model, lambda rows=rows: run(rows)) for rows in (2, 3)]
    assert kept.per_row > T * SETTINGS.shape().width


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["comt-sliding-window", "pixel-without-gamma", "sas-free"])
def test_an_image_classifier(name, network):
    model = empty_network(NETWORKS[network], wiring_of(IMAGE_METHODS[name]), classes=CLASSES, size=SIZE)
    labels = torch.zeros(2, dtype=torch.long, device="meta")
    expected = counted_both_ways(lambda: F.cross_entropy(model(*model.example(2)), labels, reduction="sum"))
    assert 2 * flops_per_sample(model) == expected
    with Trace(ROWS) as trace:
        _, kept = trace.kept_by(model, lambda: model(*model.example(ROWS)))
    expected = [kept_for(model, lambda images=images: model(*model.example(images))) for images in (2, 3)]
    assert [kept.at(images) for images in (2, 3)] == expected


def test_the_rows_divide_no_size_of_the_network():
    """What is kept for each row would else be told from what is kept once by mistake."""
    long = flops_module.rows_to_trace(nn.Linear(8, 2018), [inputs(12)], 2**42)
    assert long == 1_013
    assert flops_module.rows_to_trace(nn.Linear(8, 8), [inputs(1_013 * 3)], 2**42) == 1_009
    assert flops_module.rows_to_trace(nn.Linear(8, 1_000_003, device="meta"), [inputs(12)], 64) == 1_000_033


def parameter(*shape: int) -> Tensor:
    return torch.zeros(*shape, device="meta", requires_grad=True)


def inputs(rows: int) -> Tensor:
    return torch.zeros(rows, 5, device="meta")


def test_what_needs_no_gradient_and_what_does_not_grow_with_the_rows():
    W_75, V_67, A_72, B_25 = parameter(7, 5), parameter(6, 7), parameter(7, 2), parameter(2, 5)
    with Trace(ROWS) as trace:
        F.linear(F.linear(inputs(ROWS), W_75), V_67)
    assert trace.flops == Linear(2 * 2 * 35 + 3 * 2 * 42, 0)

    def run(rows: int) -> Tensor:
        return F.linear(inputs(rows), A_72 @ B_25)

    with Trace(ROWS) as trace:
        run(ROWS)
    assert trace.flops == Linear(2 * 2 * 35, 3 * 2 * 7 * 2 * 5)
    assert trace.flops.at(4) == counted_both_ways(lambda: run(4).sum())


class Doubled(torch.autograd.Function):
    """x W^T, with two products more in its backward pass than there need be."""

    @staticmethod
    def forward(ctx, x, W):
        ctx.save_for_backward(x, W)
        return x @ W.T

    @staticmethod
    def backward(ctx, *gradients):
        (g,) = gradients
        x, W = ctx.saved_tensors
        return g @ W + g @ (2 * W), g.T @ x + (2 * g).T @ x


def test_a_backward_pass_of_its_own_is_run():
    W_75, V_55 = parameter(7, 5), parameter(5, 5)

    def run(rows: int) -> Tensor:
        return Doubled.apply(F.linear(inputs(rows), V_55), W_75)

    with Trace(ROWS) as trace:
        output = run(ROWS)
    trace.run_functions(output)
    assert trace.flops.at(1) == 2 * 2 * 25 + 5 * 2 * 35
    assert trace.flops.at(2) == counted_both_ways(lambda: run(2).sum())
