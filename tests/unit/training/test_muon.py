"""Roles of parameters, and Muon on each matrix by itself. Its whole steps: `test_step`."""

from __future__ import annotations

import re

import pytest
import torch
from method_cases import METHODS
from pydantic import ValidationError
from small_networks import SMALL
from tiny_runs import assert_resumes, tiny_spec, training
from torch import nn

from comt_cli.layers.roles import ROLES, hidden_matrices, joined_rows, roles_of
from comt_cli.models.accounting import cost_of
from comt_cli.models.build import empty_network, wiring_of
from comt_cli.models.llama import Llama
from comt_cli.models.memory import memory_of
from comt_cli.tasks.settings.language import ModelSettings
from comt_cli.training import muon
from comt_cli.training.muon import IS_MUON, Muon, orthogonal

EXPECTED = {  # the first pattern that is found in a parameter's name
    "embedding": r"^(embedding|positions|segments|regions)\.|value_embedding\.table\.",
    "head": r"^(head|classifier)\.(?!norm\.(norm|[AB]))",
    "gate": r"\.gates?\.(?!.*connection)|(alpha|beta|gamma|transform)_gate\."
    r"|(connection|value_embedding|entry(\.\d)?)\.gate\."
    r"|dynamic\.W$|norm\.[AB]$|phi$|dense\.W[12]$|(keys|queries|values|mixture)\.w$",
    "scalar": r"\.value$|norms?\d?\.|\.bias$|router$|entry\.(factor|weight)$",
    "matrix": r"(attention|cross|mlp)\.\w+\.weight$|low_rank\.[AB]$|pooler\.weight$"
    r"|(convolution|conv\d|shortcut|stem)\.weight$",
}


def expected(name: str) -> str:
    return next(role for role, pattern in EXPECTED.items() if re.search(pattern, name))


@pytest.mark.parametrize("task", SMALL)
def test_every_parameter_of_every_method_has_its_role(task: str) -> None:
    small = SMALL[task]
    for method, options in small.methods.items():
        for settings in small.networks.values():
            model = empty_network(settings, wiring_of(options), **small.dimensions)
            roles = roles_of(model)
            found = {name: roles[parameter] for name, parameter in model.named_parameters()}
            assert found == {name: expected(name) for name in found}, method
            assert all(sum(rows) == len(parameter) for parameter, rows in joined_rows(model).items())


def language_model(method: str) -> Llama:
    settings = ModelSettings(size="tiny", width=32, ffn_width=48, heads=4)
    return empty_network(settings, wiring_of(METHODS[method]), vocabulary=9)


JOINED = {
    "comt": {"qkv.weight": [32, 32, 32], "gate_up.weight": [48, 48]},
    "two-summaries": {"q_proj.A": [8, 8]},
    "hyper-connections": {"dynamic.W": [1, 1, 4]},
    "mhc": {"coefficients.phi": [4, 4, 16]},
}


@pytest.mark.parametrize("method", JOINED)
def test_matrices_that_are_stored_together(method: str) -> None:
    """Of a network of width 32 without grouped queries."""
    model = language_model(method)
    joined = joined_rows(model)
    for end, rows in JOINED[method].items():
        found = [joined.get(parameter) for name, parameter in model.named_parameters() if name.endswith(end)]
        assert found
        assert all([*each] == rows for each in found)


UPDATED = {
    "comt": {"qkv.weight", "output.weight", "gate_up.weight", "down.weight"}
    | {f"{name}_proj.A" for name in ("q", "k", "v", "o", "gate", "up", "down")},
    "hyper-connections": {"qkv.weight", "output.weight", "gate_up.weight", "down.weight"},  # not W, with single rows
    "mhc": {"qkv.weight", "output.weight", "gate_up.weight", "down.weight", "coefficients.phi"},
}


@pytest.mark.parametrize("method", UPDATED)
def test_what_muon_updates(method: str) -> None:
    model = language_model(method)
    matrices = hidden_matrices(model)
    found = {".".join(name.split(".")[-2:]) for name, parameter in model.named_parameters() if parameter in matrices}
    assert found == UPDATED[method]
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    assert not hidden_matrices(model)


def test_filters_are_no_matrices() -> None:
    small = SMALL["train-resnet"]
    options = small.methods["comt-sliding-window"]
    model = empty_network(next(iter(small.networks.values())), wiring_of(options), **small.dimensions)
    assert not hidden_matrices(model)


def test_a_module_names_the_role_of_what_is_inside() -> None:
    inner = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    outer = nn.Sequential(nn.Embedding(4, 3), inner, nn.Linear(2, 2))
    inner.role, outer[0].role = "gate", "embedding"
    assert [*roles_of(outer).values()] == ["embedding", *["gate"] * 4, "matrix", "scalar"]


HEIGHTS = [8, 12, 2, 12]


def both(updates: int, dtype: torch.dtype, decays: tuple[float, float, float]) -> tuple[list[torch.Tensor], ...]:
    """Changes of weights by `Muon`, of joined matrices in two groups, and by PyTorch's, of separate ones; rates and
    decays of the groups differ. Last a vector, which AdamW updates."""
    draws = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return 0.1 * torch.randn(shape, generator=draws).to(dtype)

    first = [draw(34, 10), draw(12, 10), draw(10)]
    weights = [nn.Parameter(each.clone()) for each in first]
    alone = [[nn.Parameter(part.clone()) for part in each.split(HEIGHTS)] for each in first[:1]]
    alone += [[nn.Parameter(each.clone())] for each in first[1:]]
    rates = [0.1, 0.05, 0.1]
    each_group = zip(weights, rates, decays, (True, True, False), strict=True)
    groups = [{"params": [w], "lr": rate, "weight_decay": decay, IS_MUON: of_muon}
              for w, rate, decay, of_muon in each_group]  # fmt: skip
    mine = Muon(groups, 1.0, {weights[0]: HEIGHTS}, fused=True)
    theirs: list[torch.optim.Optimizer] = [
        torch.optim.Muon(parts, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        for parts, rate, decay in zip(alone[:2], rates, decays, strict=False)
    ]
    theirs.append(torch.optim.AdamW(alone[2], lr=rates[2], weight_decay=decays[2], fused=True))
    for _ in range(updates):
        for whole, parts in zip(weights, alone, strict=True):
            whole.grad = draw(*whole.shape)
            for part, gradient in zip(parts, whole.grad.split([len(each) for each in parts]), strict=True):
                part.grad = gradient.clone()
        for optimizer in (mine, *theirs):
            optimizer.step()
    assert all(weight.grad is None for weight in weights[:2])
    found = [weight.detach() - start for weight, start in zip(weights, first, strict=True)]
    others = [torch.cat([part.detach() for part in parts]) - start for parts, start in zip(alone, first, strict=True)]
    return found, others


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_joined_matrices_as_torch_updates_separate_ones(dtype: torch.dtype) -> None:
    """PyTorch computes directions in bf16, with errors of some 2^-8 of the largest of their entries. In bf16, weights
    of up to 0.3 are rounded by 2^-11 in each of PyTorch's two sums, of changes of 0.01 to 0.03."""
    share = 0.02 if dtype == torch.float32 else 0.06
    for mine, theirs in zip(*both(3, dtype, (0.5, 0.2, 0.1)), strict=True):
        assert (mine - theirs).abs().mean() < share * theirs.abs().mean()


def test_many_matrices_are_updated_in_parts(monkeypatch) -> None:
    whole = both(2, torch.float32, (0.5, 0.2, 0.1))[0]
    monkeypatch.setattr(muon, "AT_ONCE", 120)
    for mine, other in zip(both(2, torch.float32, (0.5, 0.2, 0.1))[0], whole, strict=True):
        assert (mine - other).abs().max() < 1e-5  # products of another batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_decay_in_every_precision(dtype: torch.dtype) -> None:
    """100 updates with a decay of 1e-3 each leave 0.905. In bf16 a decay alone would be rounded away."""
    weight = nn.Parameter(torch.full((40, 50), 0.5, dtype=dtype))
    optimizer = Muon([{"params": [weight], IS_MUON: True}], 1e-2, {}, weight_decay=0.1)
    draws = torch.Generator().manual_seed(0)
    for _ in range(100):
        weight.grad = torch.randn(40, 50, generator=draws).to(dtype)
        optimizer.step()
    assert weight.float().mean().item() == pytest.approx(0.5 * 0.999**100, rel=0.02)


@pytest.mark.parametrize("shape", [(1, 7), (5, 5), (3, 9), (9, 3)], ids=str)
def test_directions_are_orthogonal(shape: tuple[int, int]) -> None:
    G = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    G[1] = 0
    X = orthogonal(G)
    U, S, Vh = torch.linalg.svd(G[0], full_matrices=False)
    assert not X[1].any()
    assert (U.T @ X[0] @ Vh.T - torch.diag((U.T @ X[0] @ Vh.T).diagonal())).abs().max() < 1e-4
    large = (U.T @ X[0] @ Vh.T).diagonal()[0.05 * S.norm() < S]
    assert large.min() > 0.65
    assert large.max() < 1.25


@pytest.mark.parametrize(
    "options",
    [
        {"method": "transponder", "weight_decay": 0.1, "micro_batch_size": 4},
        {"method": "hyper-connections", "precision": "bf16-pure", "gradient_clipping": 0.1},
    ],
    ids=str,
)
def test_resumes_to_the_bit(tiny_corpus, tmp_path, options) -> None:
    spec = tiny_spec(tiny_corpus, steps=8, log_every=1, save_every=3, optimizer="muon", **options)
    assert_resumes(spec, tmp_path, 6)  # the start, then step 5


def test_estimates_count_one_moment_of_matrices(tiny_corpus, tmp_path) -> None:
    adamw, muon = (tiny_spec(tiny_corpus, method="comt", steps=4, optimizer=name) for name in ("adamw", "muon"))
    run = training(muon, tmp_path)
    run.run()
    states = [tensor for state in run.optimizer.state.values() for tensor in state.values() if tensor.dim()]
    cost = cost_of(muon)
    assert sum(tensor.numel() for tensor in states) == 2 * cost.parameters - cost.matrices
    assert memory_of(adamw).total - memory_of(muon).total == 4 * cost.matrices > 0
    run.optimizer.state.clear()  # as when memory is reserved for them, before CUDA graphs are captured
    assert sum(map(torch.numel, run.updater._kept_by_steps())) == sum(map(torch.numel, states))
    assert tuple(cost.roles) == ROLES
    assert sum(cost.roles.values()) == cost.parameters


def test_sharded_matrices_are_refused(tiny_corpus) -> None:
    with pytest.raises(ValidationError, match="Muon needs whole matrices"):
        tiny_spec(tiny_corpus, optimizer="muon", sharding="fsdp")
