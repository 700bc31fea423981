"""How every method starts, and that it survives the model-wide initialisation."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from method_cases import SETTINGS, TOKENS, VOCABULARY, built, every_method, loss_of, projections, wiring_of
from torch import Tensor, nn

from comt_cli.layers.gates import (
    ComtGate,
    EvaluatorAdjuster,
    FullRankGate,
    Gate,
    HeadGate,
    Site,
    StaticGate,
    TransponderGate,
)
from comt_cli.layers.initialise import initialise
from comt_cli.layers.norms import DynamicTanh
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.layers.residual.grc import GatedResidual
from comt_cli.layers.residual.highway import Highway
from comt_cli.layers.residual.laurel import LaurelLR, LaurelPA, LaurelRW, LaurelRWLR
from comt_cli.layers.residual.pre_norm import PreNorm
from comt_cli.layers.residual.rezero import ReZero
from comt_cli.layers.residual.sas import SelfAdaptiveScaling
from comt_cli.layers.residual.scaled import ScaledBranch
from comt_cli.methods.base import Wiring
from comt_cli.tasks.settings.llama import ModelSettings

MEDIUM = ModelSettings(size="tiny", width=256, ffn_width=512, layers=6, heads=4)


@every_method
def test_the_initial_state_is_the_documented_one_and_survives(options):
    """Every linear layer N(0, 0.02^2), every gain 1, except where a method says otherwise."""
    model = built(wiring_of(options), MEDIUM)
    for path, module in model.named_modules():
        if isinstance(module, nn.RMSNorm):
            assert (module.weight == 1).all(), path
    assert std(model.embedding.weight) == pytest.approx(0.02, rel=0.05)
    assert std(model.head.weight) == pytest.approx(0.02, rel=0.05)
    for path, module in projections(model):
        for site in module.sites:
            # 65536 draws or more: the standard error of a standard deviation is 0.3 %.
            expected = initial_std(options["name"], site)
            assert std(module.site_weights()[site.name]) == pytest.approx(expected, rel=0.02), (path, site.name)
    for part in (module for module in model.modules() if isinstance(module, Gate | ResidualConnection)):
        if type(part) in STARTS:
            STARTS[type(part)](part)
        elif not all(isinstance(child, nn.RMSNorm | DynamicTanh) for child in part.children()) or any(
            True for _ in part.parameters(recurse=False)
        ):
            pytest.skip(f"how a {type(part).__name__} starts is not written down in STARTS")


def initial_std(method: str, site: Site) -> float:
    """With 6 blocks. Glorot times (8L)^(-1/4) for DeepNorm, (8L)^(+1/4) in the faulty code, all but query and key."""
    glorot = math.sqrt(2 / (site.d_in + site.d_out))
    unscaled = site.name in ("q_proj", "k_proj")
    match method:
        case "deepnorm":
            return glorot * (1 if unscaled else 48**-0.25)
        case "deepnorm-mixln-code":
            return glorot * (1 if unscaled else 48**0.25)
        case "scaled-init" if site.name in ("o_proj", "down_proj"):
            return 0.02 / math.sqrt(12)
    return 0.02


def std(tensor: Tensor) -> float:
    return tensor.detach().double().std().item()


def is_uniform(matrix: Tensor, bound: float) -> None:
    """Within the bound and reaching near it; spread as a uniform one is where there are draws enough to tell."""
    largest = matrix.abs().max().item()
    assert largest <= bound
    if matrix.numel() >= 500:
        assert largest > 0.98 * bound
        assert std(matrix) == pytest.approx(bound / math.sqrt(3), rel=0.1)


def comt_starts(gate: Gate) -> None:
    is_uniform(gate.A, 1 / math.sqrt(gate.A.shape[1]))
    is_uniform(gate.B, 1 / math.sqrt(gate.B.shape[1]))


def transponder_starts(gate: Gate) -> None:
    for name, parameter in gate.named_parameters():
        if "alpha" in name:
            assert parameter == 0
        else:
            is_uniform(parameter, math.sqrt(6 / parameter.shape[1]))


def static_starts(gate: Gate) -> None:
    assert (gate.values(None)["channel"] == 1).all()
    assert gate.beta1 == 1


def full_rank_starts(gate: Gate) -> None:
    assert std(gate.W) == pytest.approx(0.02, rel=0.1)


def eau_starts(gate: Gate) -> None:
    for part in (gate.W1, gate.W2, gate.W3):
        assert (part.bias == 0).all()
        assert std(part.weight) == pytest.approx(0.02, rel=0.05)


STARTS = {
    ComtGate: comt_starts,
    TransponderGate: transponder_starts,
    StaticGate: static_starts,
    FullRankGate: full_rank_starts,
    HeadGate: full_rank_starts,
    EvaluatorAdjuster: eau_starts,
}


def rezero_starts(connection: ResidualConnection) -> None:
    assert connection.a() == 0


def scaled_starts(connection: ResidualConnection) -> None:
    if connection.learned is not None:
        assert connection.learned() == 1
    else:
        assert connection.fixed in (0.1, pytest.approx(1 / math.sqrt(6)))


def low_rank_starts(connection: ResidualConnection) -> None:
    A, B = connection.low_rank.A, connection.low_rank.B
    assert (B == 0).all()
    torch.testing.assert_close(A @ A.T, torch.eye(len(A)) / len(A) ** 2)  # orthogonal rows: D/r entries of 1/(rD)
    if isinstance(connection, LaurelPA):
        assert (connection.g() == torch.tensor(1 / 3)).all()
    if isinstance(connection, LaurelRWLR):
        laurel_rw_starts(connection)


def laurel_rw_starts(connection: ResidualConnection) -> None:
    assert (connection.weights() == 0.5).all()


def highway_starts(connection: ResidualConnection) -> None:
    assert (connection.transform_gate.bias == -2).all()
    assert std(connection.transform_gate.weight) == pytest.approx(0.02, rel=0.02)


def grc_starts(connection: ResidualConnection) -> None:
    assert (connection.gate.bias == 0).all()
    assert std(connection.gate.weight) == pytest.approx(0.02, rel=0.02)


def sas_starts(connection: ResidualConnection) -> None:
    for gate in (connection.alpha_gate, connection.beta_gate):
        assert (gate.output.bias == 0).all()
        assert (gate.hidden.bias == 0).all()
        assert std(gate.hidden.weight) == pytest.approx(0.02, rel=0.02)


STARTS |= {
    ReZero: rezero_starts,
    ScaledBranch: scaled_starts,
    LaurelRW: laurel_rw_starts,
    LaurelLR: low_rank_starts,
    LaurelRWLR: low_rank_starts,
    LaurelPA: low_rank_starts,
    Highway: highway_starts,
    GatedResidual: grc_starts,
    SelfAdaptiveScaling: sas_starts,
}


def gate_values_at_the_start(gate_class, kind: str, count: int = 120, **options) -> Tensor:
    """Values of many fresh gates, each on many tokens of unit variance; [gates, tokens, channels]."""
    site = Site("q_proj", "decoder", 0, 12, 768, 64)
    x_TD = torch.randn(32, 768, generator=torch.Generator().manual_seed(3))
    values = []
    for seed in range(count):
        gate = gate_class(site, **options)
        initialise(gate, seed)
        with torch.no_grad():
            values.append(gate.values(x_TD @ gate.down_projection().T)[kind])
    return torch.stack(values)


def test_comts_gates_start_near_a_half():
    """B is symmetric around 0, so the expectation is exactly 1/2; the .51 of single networks is their draw.

    B's two entries have standard deviation .41 each and phi is about .5, so z has .29 and gamma a quarter of that, .07.
    The standard error of the mean over 120 gates is .007.
    """
    values = gate_values_at_the_start(ComtGate, "scalar", hidden=2, init="torch-linear")
    assert values.mean().item() == pytest.approx(0.5, abs=0.02)
    assert std(values) == pytest.approx(0.07, abs=0.02)
    normal = gate_values_at_the_start(ComtGate, "scalar", hidden=2, init="normal")
    assert normal.mean().item() == pytest.approx(0.5, abs=0.005)  # what the model-wide overwriting came to
    assert std(normal) < 0.01


@pytest.mark.parametrize("kind", ["channel", "scalar"])
def test_transponders_gates_start_around_one(kind):
    """Mean about 1, standard deviation about .35: not the identity, because phi is not 0 at 0."""
    values = gate_values_at_the_start(TransponderGate, kind, rank=8, init="kaiming-uniform")
    assert values.mean().item() == pytest.approx(1.0, abs=0.05)
    assert std(values) == pytest.approx(0.35, abs=0.08)
    assert values.min() > 0
    assert values.max() < 2


def test_a_module_that_does_not_say_how_it_starts_is_refused():
    with pytest.raises(TypeError, match=r"0 \(Linear\) holds parameters but has no initialise"):
        initialise(nn.Sequential(nn.Linear(2, 2)), 1)


def test_tied_embeddings_are_one_matrix():
    tied = built(Wiring(PreNorm), SETTINGS.model_copy(update={"tied_embeddings": True}))
    untied = built(Wiring(PreNorm))
    assert "head.weight" not in tied.state_dict()
    difference = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert difference == VOCABULARY * 48
    loss_of(tied).backward()
    same = copy.deepcopy(untied)
    with torch.no_grad():
        same.head.weight.copy_(same.embedding.weight)
    assert torch.equal(same(TOKENS), tied(TOKENS))
    loss_of(same).backward()
    torch.testing.assert_close(tied.embedding.weight.grad, same.embedding.weight.grad + same.head.weight.grad)
