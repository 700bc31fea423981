"""Roles of parameters, and Muon on each matrix by itself. Its whole steps: `test_step`."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from method_cases import METHODS
from small_networks import SMALL
from tiny_runs import assert_resumes, tiny_spec, training
from torch import nn

from comt_cli.errors import UserError
from comt_cli.layers.roles import ROLES, hidden_matrices, joined_rows, roles_of
from comt_cli.models.accounting import cost_of, training_bytes
from comt_cli.models.build import empty_network, wiring_of
from comt_cli.tasks.settings.language import ModelSettings
from comt_cli.training.muon import IS_MUON, Muon, orthogonal

EXPECTED = {  # the first pattern that is found in a parameter's name
    "embedding": r"^(embedding|positions|segments|regions)\.",
    "head": r"^(head|classifier)\.",
    "gate": r"\.gates?\.(?!.*connection)|(alpha|beta|gamma|transform)_gate\.|connection\.gate\.|dynamic\.W$|phi$"
    r"|dense\.W[12]$|(keys|queries|values|mixture)\.w$",
    "scalar": r"\.value$|norm\d?\.|\.bias$|router$|entry\.factor$",
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


JOINED = {
    "comt": {"qkv.weight": [32, 32, 32], "gate_up.weight": [48, 48]},
    "two-summaries": {"q_proj.A": [8, 8]},
    "hyper-connections": {"dynamic.W": [1, 1, 4]},
    "mhc": {"coefficients.phi": [4, 4, 16]},
}


@pytest.mark.parametrize("method", JOINED)
def test_matrices_that_are_stored_together(method: str) -> None:
    """Of a network of width 32 without grouped queries."""
    model = empty_network(
        ModelSettings(size="tiny", width=32, ffn_width=48, heads=4), wiring_of(METHODS[method]), vocabulary=9
    )
    joined = joined_rows(model)
    for end, rows in JOINED[method].items():
        found = [joined.get(parameter) for name, parameter in model.named_parameters() if name.endswith(end)]
        assert found
        assert all([*each] == rows for each in found)


def test_what_muon_updates() -> None:
    """Neither vectors nor filters, nor what is frozen."""
    for task, method in (("train-lm", "comt"), ("train-resnet", "comt-sliding-window")):
        small = SMALL[task]
        model = empty_network(next(iter(small.networks.values())), wiring_of(small.methods[method]), **small.dimensions)
        roles, matrices = roles_of(model), hidden_matrices(model)
        for name, parameter in model.named_parameters():
            is_map = roles[parameter] in ("matrix", "gate") and parameter.dim() == 2 and 1 not in parameter.shape
            assert (parameter in matrices) == is_map, name
        for parameter in model.parameters():
            parameter.requires_grad_(requires_grad=False)
        assert matrices or task == "train-resnet"
        assert not hidden_matrices(model)


def test_a_module_names_the_role_of_what_is_inside() -> None:
    inner = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    outer = nn.Sequential(nn.Embedding(4, 3), inner, nn.Linear(2, 2))
    inner.role, outer[0].role = "gate", "embedding"
    assert [*roles_of(outer).values()] == ["embedding", *["gate"] * 4, "matrix", "scalar"]


def both(updates: int, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[list[torch.Tensor], ...]:
    """Weights after updates by `Muon`, of matrices that are joined, and by PyTorch's, of separate ones."""
    draws = torch.Generator().manual_seed(0)
    heights = [8, 12, 1, 20]

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draws).to(dtype)

    joined, vector = nn.Parameter(draw(41, 10)), nn.Parameter(draw(10))
    separate = [nn.Parameter(part.clone()) for part in joined.detach().split(heights)]
    alone = nn.Parameter(vector.detach().clone())
    groups = [{"params": [joined], IS_MUON: True}, {"params": [vector], IS_MUON: False}]
    mine = Muon(groups, 1e-2, {joined: heights}, fused=True, **options)
    theirs = torch.optim.Muon(separate, lr=1e-2, adjust_lr_fn="match_rms_adamw", **options)
    adamw = torch.optim.AdamW([alone], lr=1e-2, fused=True, **options)
    for _ in range(updates):
        joined.grad, vector.grad = draw(41, 10), draw(10)
        for part, gradient in zip(separate, joined.grad.split(heights), strict=True):
            part.grad = gradient.clone()
        alone.grad = vector.grad.clone()
        for optimizer in (mine, theirs, adamw):
            optimizer.step()
    return [*joined.detach().split(heights), vector.detach()], [*(part.detach() for part in separate), alone.detach()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_joined_matrices_as_torch_updates_separate_ones(dtype: torch.dtype) -> None:
    """PyTorch computes the directions in bf16, with errors of some 2^-8 of entries near 1 / sqrt(10). An update is 0.2
    sqrt(20) 1e-2 of that at most. In bf16, weights of up to 4 are rounded by 2^-8 after every update."""
    updates = 5
    for mine, theirs in zip(*both(updates, dtype, weight_decay=0.1), strict=True):
        update = 0.2 * 20**0.5 * 1e-2
        error = update * 2**-6 if dtype == torch.float32 else 2**-7 + update * 2**-6
        assert (mine - theirs).abs().max() < updates * error
        assert (mine - theirs).abs().max() < 0.2 * updates * update or dtype != torch.float32


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
    assert training_bytes(adamw, 1) - training_bytes(muon, 1) == 4 * cost.matrices > 0
    assert tuple(cost.roles) == ROLES
    assert sum(cost.roles.values()) == cost.parameters


def test_sharded_matrices_are_refused(tiny_corpus) -> None:
    with pytest.raises((UserError, ValueError), match="Muon needs whole matrices"):
        tiny_spec(tiny_corpus, optimizer="muon", sharding="fsdp")
