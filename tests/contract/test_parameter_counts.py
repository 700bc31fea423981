"""How many parameters every method of language models has: by formula, and as the papers print it."""

from __future__ import annotations

import math

import pytest
from method_cases import every_method, wiring_of

from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.methods import method_from
from comt_cli.methods.base import Wiring
from comt_cli.models.build import empty_network
from comt_cli.models.flops import parameter_count
from comt_cli.tasks.settings.llama import ModelSettings


def counted(size: str, wiring: Wiring) -> int:
    return parameter_count(empty_network(ModelSettings(size=size), wiring, vocabulary=32000))


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("60m", 58_073_600),
        ("71m", 70_578_688),
        ("130m", 134_105_856),
        ("250m", 247_370_496),
        ("350m", 367_969_280),
        ("1b", 1_339_082_752),
    ],
)
def test_the_plain_model_counts_what_the_published_one_does(size, parameters):
    assert counted(size, Wiring(PreNorm)) == parameters


def extra(  # noqa: PLR0911, PLR0912, PLR0915 - one case a method
    options: dict, D: int, W: int, H: int, L: int
) -> int:
    """What a method adds to Pre-LN, written out by hand: D width, W feed-forward width, H heads, L blocks."""
    method = method_from(options)
    widths = {"gate_proj": (D, W), "up_proj": (D, W), "down_proj": (W, D)}
    sites = [widths.get(site, (D, D)) for site in getattr(method, "sites", ())]
    match method.name:
        case "comt":
            gates = L * sum((i + 1) * method.hidden for i, _ in sites)
            return gates + of_residual(method.residual, D, W, H, L)
        case "transponder":
            kinds = method.granularity.split("-")
            bottlenecks = 2 if method.separate_summaries else 1
            alphas = len(kinds) * method.learnable_sigmoid
            rows = [("channel" in kinds) * o + ("scalar" in kinds) for _, o in sites]
            gates = L * sum(method.rank * (bottlenecks * i + r) + alphas for (i, _), r in zip(sites, rows, strict=True))
            return gates + of_residual(method.residual, D, W, H, L)
        case "transponder-path":
            return L * 2 * (method.rank * (D + (D if method.granularity == "channel" else 1)) + 1)
        case "transponder-static":
            return L * sum(o + 1 + method.learnable_sigmoid for _, o in sites)
        case "full-rank-gate":
            return L * sum(i * o for i, o in sites)
        case "sdpa-gate":
            return L * D * (D if method.granularity == "elementwise" else H)
        case "deepnorm":
            return -D
        case "rezero":
            return L - (2 * L + 1) * D
        case "sandwich-ln":
            return 2 * L * D
        case "highway":
            return 2 * L * (D * D + D)
        case "grc":
            return 2 * L * (D * D * (2 if method.reads == "both" else 1) + D)
        case "eau" | "eau+grc":
            r = round(method.rank * D)
            with_grc = extra({"name": "grc", "reads": method.reads}, D, W, H, L) if method.name == "eau+grc" else 0
            return L * (D * D + D + 2 * D * r + D + r) + with_grc
        case "sas":
            return 2 * L * 2 * (2 * D * D + D + D + 1)
        case "scaled":
            return 2 * L * (method.scale == "learned")
        case "laurel-rw":
            return 2 * L * 2
        case "laurel-lr":
            return 2 * L * 2 * method.rank * D
        case "laurel-rw-lr":
            return 2 * L * (2 * method.rank * D + 2)
        case "laurel-pa":  # the first two junctions have one and two activations to weigh
            return 2 * L * (2 * method.rank * D + method.history) - 3
        case "dyt":
            return 2 * L + 1 + 1
        case "keel":  # the first junction is Pre-LN
            return (2 * L - 1) * D
        case "start-lambdas":
            return 2 * L
        case "denseformer":
            assert method.dilation == method.period == 1
            return L * (L + 3) // 2
        case "hyper-connections":
            n = method.n
            return 2 * L * (n * n + 2 * n + (D * (n + 2) + 2) * method.dynamic)
        case "mhc" | "mhc-lite" | "identity-hc":
            n = method.n
            K = {"mhc": n * n, "mhc-lite": math.factorial(n), "identity-hc": 0}[method.name]
            return 2 * L * (n * D * (K + 2 * n) + K + 2 * n + (3 if K else 2))
        case "attention-residuals":  # a query and a gain at every junction but the first, and behind the last
            return 2 * L * 2 * D
        case "delta-attention-residuals":
            return (2 * L - 1) * 2 * D
        case "siamese-norm":
            return (2 * L + 1) * 2 * D
        case "resformer":
            return 2 * (L - 1) * method.learned
        case "svformer":  # these sizes have as many key-value heads as heads
            return -(L - 1) * D * D
        case "lime":  # as many key-value heads as heads
            return sum(layer * H * H for layer in range(2, L + 1))
        case "muddformer":
            norms = (L - 1) * 2 * D  # of keys and of values, behind the first block
            hidden = [4 * (i + 1) for i in range(1, L + 1)]
            shares = [*hidden[:-1], L + 1]
            return norms + sum(D * K + K * n + n for K, n in zip(hidden, shares, strict=True))
        case "deep-cross-attention":  # b of every source, w; three a block, with norms of keys and values, one at last
            sources = [i if method.last is None else min(i, method.last + 2) for i in range(1, L + 2)]
            return sum(3 * (S + 1) * D for S in sources[:-1]) + (sources[-1] + 1) * D + L * 2 * D
        case "prores":
            return 0
        case "wider":  # to the nearest whole channel of every feed-forward network
            wanted = extra(method.like, D, W, H, L)
            return L * 3 * D * round(wanted / (L * 3 * D))
        case "pre-ln" | "post-ln" | "mix-ln" | "layernorm-scaling" | "scaled-init" | "deepnorm-mixln-code":
            return 0
    pytest.skip(f"no formula is written down for {method.name}")


def of_residual(name: str, *shape: int) -> int:
    """What gates' residual connection adds: that of the method of its name, as far as it adds anything."""
    method = {"mudd": "muddformer"}.get(name, name)
    return 0 if name in ("pre-norm", "post-norm") else extra({"name": method}, *shape)


@every_method
def test_extra_parameters(options):
    """FLOPs of full-rank gates grow as their parameters do, so both kinds of widening come to the same."""
    for size in ("130m", "1b"):
        shape = ModelSettings(size=size).shape()
        wanted = extra(options, shape.width, shape.ffn_width, shape.heads, shape.layers)
        assert counted(size, wiring_of(options)) - counted(size, Wiring(PreNorm)) == wanted


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"name": "hyper-connections", "dynamic": False}, 576),
        ({"name": "hyper-connections"}, 111_216),
        ({"name": "mhc"}, 1_770_120),
        ({"name": "mhc-lite"}, 2_360_136),
        ({"name": "attention-residuals"}, 38_400 - 1_536),  # less the first junction's, which learns nothing
        ({"name": "denseformer"}, 90),
        ({"name": "svformer"}, -6_488_064),
        ({"name": "keel"}, 17_664),
        ({"name": "siamese-norm"}, 38_400),
        ({"name": "muddformer"}, 287_861 + 11 * 2 * 768),  # with norms of keys and values in blocks 2 to 12
        ({"name": "lime"}, 11_088),
        # 3 (78 + 12) 768 in the blocks and 14 x 768 behind them, and norms of keys and values
        ({"name": "deep-cross-attention"}, 218_112 + 12 * 2 * 768),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_what_modern_connections_add_to_130m(options, count):
    """As the papers' formulas have it."""
    assert counted("130m", wiring_of(options)) - counted("130m", Wiring(PreNorm)) == count


@pytest.mark.parametrize(
    ("options", "percents"),
    [
        ({"name": "comt"}, {"130m": "0.12", "250m": "0.14", "1b": "0.064"}),
        ({"name": "transponder"}, {"60m": "1.08", "130m": "1.05", "250m": "1.25"}),
        ({"name": "transponder", "separate_summaries": True}, {"60m": "1.57", "130m": "1.52", "250m": "1.81"}),
        ({"name": "transponder", "granularity": "scalar"}, {"60m": "0.49", "130m": "0.48", "250m": "0.56"}),
        ({"name": "full-rank-gate"}, {"60m": "14.4", "130m": "21.1", "250m": "22.9"}),
        ({"name": "full-rank-gate", "sites": "all"}, {"60m": "43.6", "130m": "63.3", "250m": "80.1"}),
        ({"name": "sdpa-gate"}, {"60m": "3.6", "250m": "5.7"}),
        ({"name": "sdpa-gate", "granularity": "headwise"}, {"60m": "0.06", "250m": "0.12"}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if "name" in value else "",
)
def test_extra_parameters_as_the_papers_and_their_arithmetic_have_them(options, percents):
    for size, percent in percents.items():
        plain = counted(size, Wiring(PreNorm))
        ours = 100 * (counted(size, wiring_of(options)) - plain) / plain
        assert f"{ours:.{len(percent) - percent.index('.') - 1}f}" == percent, size
