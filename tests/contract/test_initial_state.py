"""How every method of every task starts, and that it survives the model-wide initialisation."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from image_method_cases import IMAGES, built_resnet
from method_cases import SETTINGS, TOKENS, VOCABULARY, built, loss_of
from same_bits import Reason, assert_same_bits
from small_networks import SMALL, cases
from torch import Tensor, nn

from comt_cli.layers.convolution import BatchNorm, Convolution, PixelGate, WindowGate
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
from comt_cli.layers.learned import Affine, Classifier, Constant, LowRank
from comt_cli.layers.map_norms import MapLayerNorm
from comt_cli.layers.norms import DynamicTanh, EmbeddingScale
from comt_cli.layers.projection import Projections, TokenEmbedding
from comt_cli.layers.residual.attention_residuals import AttentionResiduals, DeltaAttentionResiduals
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.layers.residual.channel_gates import GatedResidual, Highway
from comt_cli.layers.residual.deep_cross_attention import DeepCrossAttention, DepthMixture
from comt_cli.layers.residual.denseformer import DenseFormer
from comt_cli.layers.residual.hyper_connections import Dynamic, HyperConnection
from comt_cli.layers.residual.laurel import LaurelLR, LaurelPA, LaurelRW, LaurelRWLR
from comt_cli.layers.residual.manifold_hyper_connections import Coefficients, ManifoldHyperConnection
from comt_cli.layers.residual.mudd import DenseWeights, MultiwayDense
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.layers.residual.progressive import ProgressiveResidual
from comt_cli.layers.residual.sas import GatedShare, SelfAdaptiveScaling
from comt_cli.layers.residual.scaled import ReZero, ScaledBranch
from comt_cli.layers.residual.start_lambdas import StartLambdas
from comt_cli.layers.shared_values import LayerRouter
from comt_cli.methods.base import Wiring
from comt_cli.models.resnet import ResNet
from comt_cli.tasks.settings.resnet import ResNetSettings

MEDIUM_IMAGES = SMALL["train-resnet"].medium


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


# ---- how each part starts


def gain_starts(part: nn.RMSNorm) -> None:
    assert (part.weight == 1).all()


def tanh_starts(part: DynamicTanh) -> None:
    assert part.alpha == 0.5
    assert (part.weight == 1).all()


def scale_starts(part: EmbeddingScale) -> None:
    assert part.factor == math.sqrt(256)  # the medium network's width


def embedding_starts(part: TokenEmbedding) -> None:
    is_normal(part.weight, 0.02)


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
    is_normal(gate.W, 0.02)


def eau_starts(gate: Gate) -> None:
    for part in (gate.W1, gate.W2, gate.W3):
        assert (part.bias == 0).all()
        is_normal(part.weight, 0.02)


def rezero_starts(connection: ResidualConnection) -> None:
    assert connection.a() == 0


def scaled_starts(connection: ResidualConnection) -> None:
    if connection.learned is not None:
        assert connection.learned() == 1
    else:  # 1/sqrt(L), of the 6 or 3 blocks of the medium networks
        assert connection.fixed in (0.1, pytest.approx(1 / math.sqrt(6)), pytest.approx(1 / math.sqrt(3)))


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


def grc_starts(connection: ResidualConnection) -> None:
    assert (connection.gate.bias == 0).all()


def sas_starts(connection: ResidualConnection) -> None:
    """0 where tokens stream, 3 and -3 in ResNets."""
    alpha, beta = (gate.output.bias.unique().tolist() for gate in (connection.alpha_gate, connection.beta_gate))
    assert (alpha, beta) in (([0], [0]), ([3], [-3]))
    for gate in (connection.alpha_gate, connection.beta_gate):
        assert not hasattr(gate, "hidden") or (gate.hidden.bias == 0).all()


def share_starts(connection: ResidualConnection) -> None:
    assert (getattr(connection.gate, "output", connection.gate).bias == -3).all()


def lambdas_start(connection: ResidualConnection) -> None:
    if connection.r is not None:
        assert connection.r() == 0
        down = connection.site.layer / (connection.site.layers - 1)
        graded = pytest.approx((1.15 - 0.1 * down, 0.2 - 0.15 * down))
        assert (connection.first_r, connection.m().item()) in ((1, 0), graded)


def dense_starts(connection: ResidualConnection) -> None:
    assert connection.DWA is None or (connection.DWA() == 0).all()


def hyper_starts(connection: ResidualConnection) -> None:
    """As what is added to their start. Coefficients themselves: `test_modern_starts`."""
    for part in (connection.A_m, connection.B, connection.A_r):
        assert (part() == 0).all()
    if connection.dynamic is not None:
        assert (connection.dynamic.W == 0).all()
        assert connection.dynamic.s_a() == connection.dynamic.s_b() == torch.tensor(0.01)


def manifold_starts(connection: ResidualConnection) -> None:
    part = connection.coefficients
    assert (part.b() == 0).all()
    assert (part.alpha() == torch.tensor(0.01)).all()
    if part.random:
        is_normal(part.phi, math.sqrt(2 / sum(part.phi.shape)))
    else:
        assert (part.phi == 0).all()


def depth_attention_starts(connection: ResidualConnection) -> None:
    if connection.attention is not None:
        assert (connection.attention.query() == 0).all()
        assert (connection.attention.gain_offset() == 0).all()


def mudd_starts(connection: ResidualConnection) -> None:
    if connection.dense is not None:
        assert (connection.dense.W2 == 0).all()
        assert (connection.dense.a() == 0).all()
        is_normal(connection.dense.W1, connection.site.width**-0.5)


def depth_mixture_starts(part: DepthMixture) -> None:
    is_normal(part.w, 1e-3)
    assert (part.offset() == 0).all()


def progress_starts(connection: ResidualConnection) -> None:
    assert connection.share.value == 0


def convolution_starts(part: Convolution) -> None:
    """He's, by the outputs."""
    d_out, _, window, _ = part.weight.shape
    is_normal(part.weight, math.sqrt(2 / (d_out * window * window)))


def norm_starts(part: BatchNorm | MapLayerNorm) -> None:
    assert part.weight is None or (part.weight == 1).all()
    assert (part.bias == 0).all()
    if isinstance(part, BatchNorm):
        assert (part.running_mean == 0).all()
        assert (part.running_var == 1).all()


def window_starts(part: WindowGate) -> None:
    is_uniform(part.filters, 1 / math.sqrt(part.filters[0].numel()))
    is_uniform(part.w, 1 / math.sqrt(len(part.filters)))


def pixel_starts(part: PixelGate) -> None:
    is_uniform(part.A, 1 / math.sqrt(part.A.shape[1]))
    is_uniform(part.b, 1 / math.sqrt(part.b.shape[1]))


def classifier_starts(part: Classifier) -> None:
    is_uniform(part.weight, 1 / math.sqrt(part.weight.shape[1]))
    is_uniform(part.bias, 1 / math.sqrt(part.weight.shape[1]))


def affine_starts(part: Affine) -> None:
    """The connections say which bias."""
    is_normal(part.weight, 0.02)
    assert part.bias.unique().numel() == 1


STARTS = {
    nn.RMSNorm: gain_starts,
    DynamicTanh: tanh_starts,
    EmbeddingScale: scale_starts,
    TokenEmbedding: embedding_starts,
    ComtGate: comt_starts,
    TransponderGate: transponder_starts,
    StaticGate: static_starts,
    FullRankGate: full_rank_starts,
    HeadGate: full_rank_starts,
    EvaluatorAdjuster: eau_starts,
    ReZero: rezero_starts,
    ScaledBranch: scaled_starts,
    LaurelRW: laurel_rw_starts,
    LaurelLR: low_rank_starts,
    LaurelRWLR: low_rank_starts,
    LaurelPA: low_rank_starts,
    Highway: highway_starts,
    GatedResidual: grc_starts,
    SelfAdaptiveScaling: sas_starts,
    GatedShare: share_starts,
    StartLambdas: lambdas_start,
    DenseFormer: dense_starts,
    HyperConnection: hyper_starts,
    ManifoldHyperConnection: manifold_starts,
    AttentionResiduals: depth_attention_starts,
    DeltaAttentionResiduals: depth_attention_starts,
    ProgressiveResidual: progress_starts,
    MultiwayDense: mudd_starts,
    DepthMixture: depth_mixture_starts,
    DeepCrossAttention: lambda part: None,
    DenseWeights: lambda part: None,
    LayerRouter: lambda part: None,  # `test_shared_values`
    Convolution: convolution_starts,
    BatchNorm: norm_starts,
    MapLayerNorm: norm_starts,
    WindowGate: window_starts,
    PixelGate: pixel_starts,
    Classifier: classifier_starts,
    Affine: affine_starts,
    Constant: lambda part: None,  # the connections say which
    Dynamic: lambda part: None,
    Coefficients: lambda part: None,
    LowRank: lambda part: None,
}


def is_norm(part: nn.Module) -> bool:
    return isinstance(part, nn.Identity | nn.RMSNorm | DynamicTanh | BatchNorm | MapLayerNorm)


@cases(normal=True)
def test_the_initial_state_is_the_documented_one_and_survives(case):
    """Every linear layer N(0, 0.02^2), every gain 1, except where a method says otherwise."""
    model = case.built(settings=case.small.medium)
    for path, module in model.named_modules():
        kind = next((kind for kind in type(module).__mro__ if kind in STARTS), None)
        if isinstance(module, Projections):
            for site in module.sites:
                is_normal(module.site_weights()[site.name], initial_std(case.options, site))
        elif kind is not None:
            STARTS[kind](module)
        elif isinstance(module, Gate | ResidualConnection):
            own = [*module.parameters(recurse=False), *(part for part in module.children() if not is_norm(part))]
            if own:
                pytest.skip(f"how a {type(module).__name__} starts is not written down in STARTS")
        elif any(True for _ in module.parameters(recurse=False)):
            pytest.fail(f"how {path}, a {type(module).__name__}, starts is not written down in STARTS")


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
    torch.testing.assert_close(same(TOKENS), tied(TOKENS))
    loss_of(same).backward()
    torch.testing.assert_close(tied.embedding.weight.grad, same.embedding.weight.grad + same.head.weight.grad)


# ---- image classifiers


def connections(name: str, **options) -> list[nn.Module]:
    return [block.connection for block in built_resnet({"name": name, **options}, MEDIUM_IMAGES).blocks]


def test_the_documented_biases():
    for connection in connections("sas-resnet"):
        assert (connection.alpha_gate.output.bias == 3).all()
        assert (connection.beta_gate.output.bias == -3).all()
        assert (connection.alpha_gate.hidden.bias == 0).all()
        assert connection.gamma_gate is None
    for connection in connections("sas-resnet", gamma="free", gamma_bias=-1.5):
        assert (connection.gamma_gate.output.bias == -1.5).all()
    for connection in connections("scaling-gate"):
        assert (connection.gate.output.bias == -3).all()
    for connection in connections("scaling-gate", gate="transform", bias=-2.0):
        assert (connection.gate.bias == -2).all()
    for connection in connections("highway"):
        assert (connection.transform_gate.bias == -2).all()
    assert all(connection.a() == 0 for connection in connections("rezero"))
    assert all(connection.learned() == 1 for connection in connections("scaled", scale="learned"))
    assert [connection.fixed for connection in connections("scaled")] == [0.1] * 3
    assert [connection.fixed for connection in connections("scaled", scale="depth")] == [1 / math.sqrt(3)] * 3


def test_rezeros_blocks_start_as_their_skip_path():
    model = built_resnet({"name": "rezero"})
    x_BCHW = torch.relu(torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(1)))
    keeps, changes = model.blocks
    assert_same_bits(keeps(x_BCHW), x_BCHW, Reason.IDENTITY)
    assert_same_bits(changes(x_BCHW), F.relu(changes.shortcut(x_BCHW)), Reason.IDENTITY)
    preact = built_resnet({"name": "rezero"}, ResNetSettings(size="preact-resnet110", width=8, blocks=(2,)))
    assert_same_bits(preact.blocks[1](x_BCHW), x_BCHW, Reason.IDENTITY)


def test_a_learned_scale_starts_as_plain_addition():
    plain, learned = (
        built_resnet(options) for options in ({"name": "addition"}, {"name": "scaled", "scale": "learned"})
    )
    assert_same_bits(learned(IMAGES), plain(IMAGES), Reason.IDENTITY, "the logits")


def gate_maps(model: ResNet) -> list[Tensor]:
    maps: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, WindowGate | PixelGate):
            module.register_forward_hook(lambda gate, read, _: maps.append(gate.values(read[1])["scalar"]))
    with torch.no_grad():
        model(IMAGES)
    return maps


def test_gates_of_images_start_near_a_half():
    """Symmetric around 1/2 over the draws of their matrices; one network's 4 gates lie within some tenths of it."""
    for options in ({"name": "comt-sliding-window"}, {"name": "comt-pixel"}):
        maps = [gate for seed in range(20) for gate in gate_maps(built_resnet(options, MEDIUM_IMAGES, seed))]
        means = torch.stack([gate.mean() for gate in maps])
        assert all(gate.shape[:2] == (3, 1) for gate in maps)
        # 120 gates. One filter: z = w / 2, w uniform in +-1, so z has .29 and the gate a quarter of it, .07.
        assert means.mean().item() == pytest.approx(0.5, abs=0.03)
        assert std(means) == pytest.approx(0.07, abs=0.03)
