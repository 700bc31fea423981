"""The start of every method of every task, which survives the model-wide initialisation."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from image_method_cases import IMAGES, built_resnet
from method_cases import SETTINGS, TOKENS, built, loss_of
from same_bits import Reason, assert_same_bits
from small_networks import SMALL, Case
from torch import Tensor, nn

from comt_cli.layers.convolution import BatchNorm, Convolution, MapLayerNorm, PixelGate, WindowGate
from comt_cli.layers.gates import ComtGate, FullRankGate, Site, StaticGate, TransponderGate
from comt_cli.layers.initialise import initialise
from comt_cli.layers.learned import Affine, Classifier, Constant, LowRank, NarrowGate
from comt_cli.layers.norms import DynamicErf, DynamicTanh, EmbeddingScale, GatedNorm
from comt_cli.layers.projection import Projections, TokenEmbedding
from comt_cli.layers.residual.attention_residuals import DepthAttention, DepthMixture
from comt_cli.layers.residual.dense import DenseFormer, DenseWeights, StartLambdas
from comt_cli.layers.residual.hyper_connections import Coefficients, Dynamic, HyperConnection
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.layers.residual.scaled import (
    FollowsTraining,
    GatedShare,
    Highway,
    LaurelPA,
    LaurelRW,
    LaurelRWLR,
    ProgressiveResidual,
    ReZero,
    ScaledBranch,
    SelfAdaptiveScaling,
)
from comt_cli.layers.residual.skips import BackoutAggregation, SkipGates
from comt_cli.layers.shared_values import LayerRouter, ValueResidual
from comt_cli.layers.smear import Smear
from comt_cli.layers.value_embedding import ValueEmbedding
from comt_cli.methods.base import Wiring
from comt_cli.tasks.settings.images import ResNetSettings

MEDIUM_IMAGES = SMALL["train-resnet"].medium
Check = Callable[[Tensor, nn.Module], None]


def std(tensor: Tensor) -> float:
    return tensor.detach().double().std().item()


def is_uniform(tensor: Tensor, bound: float) -> None:
    """Within the bound; and where there are draws enough to tell, reaching near it and spread as a uniform one is."""
    largest = tensor.abs().max().item()
    assert largest <= bound
    if tensor.numel() >= 500:
        assert largest > 0.98 * bound
        assert std(tensor) == pytest.approx(bound / math.sqrt(3), rel=0.1)


def is_normal(tensor: Tensor, expected: float) -> None:
    """The standard deviation, up to five standard errors of that many draws."""
    assert std(tensor) == pytest.approx(expected, rel=5 / math.sqrt(2 * tensor.numel()))


def normal(std_of: float | Callable[[Tensor], float]) -> Check:
    return lambda tensor, _: is_normal(tensor, std_of(tensor) if callable(std_of) else std_of)


def torch_linear(tensor: Tensor, _: nn.Module) -> None:
    is_uniform(tensor, 1 / math.sqrt(tensor.shape[1:].numel()))


def kaiming(tensor: Tensor, _: nn.Module) -> None:
    is_uniform(tensor, math.sqrt(6 / tensor.shape[1]))


def orthogonal(A: Tensor, _: nn.Module) -> None:
    """Rows of D/r entries of 1/(rD)."""
    torch.testing.assert_close(A @ A.T, torch.eye(len(A)) / len(A) ** 2)


def of_the_embedding(tensor: Tensor, connection: nn.Module) -> None:
    """0, or from 0.2 down to 0.05."""
    down = connection.site.layer / (connection.site.layers - 1)
    assert (connection.first_r, tensor.item()) in ((1, 0), pytest.approx((1.15 - 0.1 * down, 0.2 - 0.15 * down)))


def coefficients(phi: Tensor, part: nn.Module) -> None:
    is_normal(phi, math.sqrt(2 / sum(phi.shape)) if part.random else 0)


def router(tensor: Tensor, _: nn.Module) -> None:
    """The block's own heads, stored as 0, and small draws for earlier ones."""
    heads, sources = tensor.shape
    assert not tensor[:, sources - heads :].any()
    is_uniform(tensor[:, : sources - heads], math.sqrt(3 / sources))
    assert tensor.any()


def positive(tensor: Tensor, gate: nn.Module) -> None:
    """Uniform from 0 to its end."""
    assert gate.start in (0, 0.02)
    is_uniform(tensor - gate.start / 2, gate.start / 2 + 1e-9)


def one_of(*values: float) -> Check:
    return lambda tensor, _: pytest.fail(f"{tensor}") if tensor.unique().item() not in values else None


UNIT_GAIN = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
STARTS: dict[type[nn.Module], dict[str, float | Check]] = {
    nn.RMSNorm: UNIT_GAIN,
    BatchNorm: UNIT_GAIN,
    MapLayerNorm: UNIT_GAIN,
    DynamicErf: {"alpha": 0.5, "weight": 1, "shift": 0, "bias": 0},
    DynamicTanh: {"alpha": 0.5, "weight": 1},
    GatedNorm: {"A": normal(0.02), "B": normal(0.02)},
    EmbeddingScale: {"factor": 16},  # the root of the medium network's width
    TokenEmbedding: {"weight": normal(0.02)},
    ComtGate: {"A": torch_linear, "B": torch_linear},
    TransponderGate: {
        **dict.fromkeys(("A", "B_channel", "B_scalar"), kaiming),
        **dict.fromkeys(("log_alpha_channel", "log_alpha_scalar"), 0),
    },
    StaticGate: {"beta1": 1, "beta2": 0, "log_alpha": 0},
    FullRankGate: {"W": normal(0.02)},
    Affine: {"weight": normal(0.02), "bias": 0},
    LowRank: {"A": orthogonal, "B": 0},
    ReZero: {"a.value": 0},
    ScaledBranch: {"learned.value": 1},
    LaurelRW: {"weights.value": 0},
    LaurelRWLR: {"weights.value": 0},
    LaurelPA: {"g.value": 1 / 3},
    Highway: {"transform_gate.bias": -2},
    SelfAdaptiveScaling: {
        "alpha_gate.output.bias": one_of(0, 3),
        "beta_gate.output.bias": one_of(0, -3),
        "gamma_gate.output.bias": one_of(0, -1),
    },
    GatedShare: {"gate.bias": -3, "gate.output.bias": -3},
    StartLambdas: {"r.value": 0, "m.value": of_the_embedding},
    DenseFormer: {"DWA.value": 0},
    HyperConnection: {"A_m.value": 0, "B.value": 0, "A_r.value": 0},  # what is added to their start
    Dynamic: {"W": 0, "s_a.value": 0.01, "s_b.value": 0.01},
    Coefficients: {"b.value": 0, "alpha.value": 0.01, "phi": coefficients},
    DepthAttention: {"query.value": 0, "gain_offset.value": 0},
    DenseWeights: {"W1": normal(lambda W1: W1.shape[1] ** -0.5), "W2": 0, "a.value": 0},
    DepthMixture: {"w": normal(1e-3), "offset.value": 0},
    BackoutAggregation: {"offset.value": 0},
    SkipGates: {"offset.value": 0},
    ProgressiveResidual: {"share.value": 0},
    ValueResidual: {"shares.value": 0},
    LayerRouter: {"router": router},
    NarrowGate: {"W": positive},
    Smear: {"share.value": 0},
    ValueEmbedding: {"table.weight": normal(1 / 16)},  # the inverse root of the medium network's width
    Convolution: {"weight": normal(lambda W: math.sqrt(2 / (len(W) * W[0, 0].numel())))},  # He's, by the outputs
    WindowGate: {"filters": torch_linear, "w": torch_linear},
    PixelGate: {"A": torch_linear, "b": torch_linear},
    Classifier: {"weight": torch_linear, "bias": lambda b, part: is_uniform(b, part.weight.shape[1] ** -0.5)},
}
"""By a module's class: the numbers of its parameters and buffers, or a check of them. A connection comes before its
parts."""

VARIANTS = ("scaled-init-of-4", "start-lambdas-graded", "mhc-random", "mhc-read-out")
CASES = [
    Case(command, next(iter(SMALL[command].networks)), name)
    for command in ("train-lm", "train-resnet")
    for name in (*SMALL[command].tested, *(VARIANTS if command == "train-lm" else ()))
]


@pytest.mark.parametrize("case", CASES, ids=["-".join(case) for case in CASES])
def test_the_initial_state_is_the_documented_one_and_survives(case):
    """Every linear layer N(0, 0.02^2), every gain 1, except where a method says otherwise."""
    model = case.built(settings=case.small.medium)
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        *parts, _ = path.split(".")
        owner = model.get_submodule(".".join(parts))
        if isinstance(owner, Projections):
            for site in owner.sites:
                is_normal(owner.site_weights()[site.name], initial_std(case.options, site))
            continue
        for depth in range(len(parts) + 1):
            module, name = model.get_submodule(".".join(parts[:depth])), ".".join(path.split(".")[depth:])
            starts = next((STARTS[kind] for kind in type(module).__mro__ if kind in STARTS), {})
            if name in starts:
                expected = starts[name]
                if callable(expected):
                    expected(tensor.detach(), module)
                else:
                    assert (tensor == torch.tensor(expected)).all(), path
                break
        else:
            # A start of ours has to be written down; those of others' methods may be left out.
            assert type(owner).__module__.partition(".")[0] != "comt_cli", path
    known = (Projections, Constant, FollowsTraining, *STARTS)
    for module in model.modules():
        has_own = any(True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False)))
        assert isinstance(module, known) or not has_own or not type(module).__module__.startswith("comt_cli"), module


def initial_std(options: dict, site: Site) -> float:
    """With 6 blocks. Glorot times (8L)^(-1/4) for DeepNorm, (8L)^(+1/4) in the faulty code, all but query and key."""
    glorot = math.sqrt(2 / (site.d_in + site.d_out))
    unscaled = site.name in ("q_proj", "k_proj")
    match options["name"]:
        case "deepnorm":
            return glorot * (1 if unscaled else 48**-0.25)
        case "deepnorm-mixln-code":
            return glorot * (1 if unscaled else 48**0.25)
        case "scaled-init" if site.name in ("o_proj", "down_proj"):
            return 0.02 / math.sqrt(options.get("additions", 12))
    return 0.02


def test_a_module_that_does_not_say_how_it_starts_is_refused():
    with pytest.raises(TypeError, match=r"0 \(Linear\) has parameters but no initialise"):
        initialise(nn.Sequential(nn.Linear(2, 2)), 1)


def test_tied_embeddings_are_one_matrix():
    tied = built(Wiring(PreNorm), SETTINGS.model_copy(update={"tied_embeddings": True}))
    untied = built(Wiring(PreNorm))
    assert "head.weight" not in tied.state_dict()
    loss_of(tied).backward()
    same = copy.deepcopy(untied)
    with torch.no_grad():
        same.head.weight.copy_(same.embedding.weight)
    torch.testing.assert_close(same(TOKENS), tied(TOKENS))
    loss_of(same).backward()
    torch.testing.assert_close(tied.embedding.weight.grad, same.embedding.weight.grad + same.head.weight.grad)


def test_the_documented_biases():
    """Biases of options, and those that language models and image classifiers have in common."""
    for options, path, expected in (
        ({"name": "sas-resnet"}, "alpha_gate.output", 3),
        ({"name": "sas-resnet"}, "beta_gate.output", -3),
        ({"name": "sas-resnet"}, "alpha_gate.hidden", 0),
        ({"name": "sas-resnet", "gamma": "free", "gamma_bias": -1.5}, "gamma_gate.output", -1.5),
        ({"name": "scaling-gate", "gate": "transform", "bias": -2.0}, "gate", -2),
    ):
        for block in built_resnet(options, MEDIUM_IMAGES).blocks:
            assert (block.connection.get_submodule(path).bias == expected).all(), options
    for scale, expected in ((0.1, 0.1), ("depth", 1 / math.sqrt(3))):
        blocks = built_resnet({"name": "scaled", "scale": scale}, MEDIUM_IMAGES).blocks
        assert [block.connection.fixed for block in blocks] == [expected] * 3


def test_image_classifiers_that_start_as_their_skip_path_or_as_plain_addition():
    model = built_resnet({"name": "rezero"})
    x_BCHW = torch.relu(torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(1)))
    keeps, changes = model.blocks
    assert_same_bits(keeps(x_BCHW), x_BCHW, Reason.IDENTITY)
    assert_same_bits(changes(x_BCHW), F.relu(changes.shortcut(x_BCHW)), Reason.IDENTITY)
    preact = built_resnet({"name": "rezero"}, ResNetSettings(size="preact-resnet110", width=8, blocks=(2,)))
    assert_same_bits(preact.blocks[1](x_BCHW), x_BCHW, Reason.IDENTITY)
    both = ({"name": "addition"}, {"name": "scaled", "scale": "learned"})
    plain, learned = (built_resnet(options)(IMAGES) for options in both)
    assert_same_bits(learned, plain, Reason.IDENTITY, "the logits")
