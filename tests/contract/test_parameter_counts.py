"""Parameters of every method, in language models and in ResNets: by formula, and as the papers print it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
from image_method_cases import IMAGE_METHODS
from method_cases import METHODS, wiring_of

from comt_cli.methods import method_from
from comt_cli.models.build import empty_network
from comt_cli.models.flops import parameter_count
from comt_cli.tasks.settings.images import ResNetSettings
from comt_cli.tasks.settings.language import ModelSettings


def counted(size: str, options: dict) -> int:
    return parameter_count(empty_network(ModelSettings(size=size), wiring_of(options), vocabulary=32000))


@functools.cache
def plain_language(size: str) -> int:
    return counted(size, {"name": "pre-ln"})


def added(size: str, options: dict) -> int:
    return counted(size, options) - plain_language(size)


def images_counted(size: str, options: dict, classes: int = 10, stem: str = "3x3") -> int:
    return parameter_count(empty_network(ResNetSettings(size=size, stem=stem), wiring_of(options), classes=classes))


@functools.cache
def plain_of_images(size: str, classes: int = 10, stem: str = "3x3") -> int:
    return images_counted(size, {"name": "addition"}, classes, stem)


def test_the_plain_networks_count_what_the_published_ones_do():
    llama = {
        "60m": 58_073_600,
        "71m": 70_578_688,
        "130m": 134_105_856,
        "250m": 247_370_496,
        "350m": 367_969_280,
        "1b": 1_339_082_752,
    }
    assert {size: plain_language(size) for size in llama} == llama
    resnets = {
        ("resnet18", "3x3", 10): 11_173_962,
        ("resnet50", "3x3", 100): 23_705_252,
        ("resnet152", "3x3", 10): 58_156_618,
        ("resnet18", "7x7", 1000): 11_689_512,  # torchvision's
        ("resnet50", "7x7", 1000): 25_557_032,
        ("resnet152", "7x7", 1000): 60_192_808,
        # The 1.7 million of He et al. 2016a, Table 6: stem 432; 18 blocks of 16, 32, 64 channels, 1x1 projections.
        ("preact-resnet110", "3x3", 10): 1_730_522,
    }
    assert {each: plain_of_images(each[0], stem=each[1], classes=each[2]) for each in resnets} == resnets


def channels_read(reads: float | None, D: int) -> int:
    """With a width that 16 divides."""
    return {None: D, 0.0625: D // 16}.get(reads, reads)


FORMULAS: dict[str, Callable[[Any, int, int, int, int], int]] = {
    **dict.fromkeys(("pre-ln", "post-ln", "mix-ln", "layernorm-scaling", "scaled-init"), lambda *_: 0),
    **dict.fromkeys(("deepnorm-mixln-code", "prores", "xsa"), lambda *_: 0),
    "transponder-path": lambda m, D, W, H, L: L * 2 * (m.rank * (D + (D if m.granularity == "channel" else 1)) + 1),
    "sdpa-gate": lambda m, D, W, H, L: L * channels_read(m.reads, D) * (D if m.granularity == "elementwise" else H),
    "deepnorm": lambda m, D, W, H, L: -D,
    "rezero": lambda m, D, W, H, L: L - (2 * L + 1) * D,
    "sandwich-ln": lambda m, D, W, H, L: 2 * L * D,
    # Norms of three kinds for the heads instead of one before attention, which the starred first block has too.
    "hybrid-norm": lambda m, D, W, H, L: 3 * L * (D // H) - (L - m.starred) * D,
    "gated-norm": lambda m, D, W, H, L: (2 * L + 1) * 2 * m.rank * D,
    "peri-ln": lambda m, D, W, H, L: (2 * L + 1) * D,
    "highway": lambda m, D, W, H, L: 2 * L * (D * D + D),
    "grc": lambda m, D, W, H, L: 2 * L * (D * D * (2 if m.reads == "both" else 1) + D),
    "sas": lambda m, D, W, H, L: 2 * L * 2 * (2 * D * D + D + D + 1),
    "scaled": lambda m, D, W, H, L: 2 * L * (m.scale == "learned"),
    "laurel-rw": lambda m, D, W, H, L: 2 * L * 2,
    "laurel-lr": lambda m, D, W, H, L: 2 * L * 2 * m.rank * D,
    "laurel-rw-lr": lambda m, D, W, H, L: 2 * L * (2 * m.rank * D + 2),
    # The first two junctions have one and two activations to weigh.
    "laurel-pa": lambda m, D, W, H, L: 2 * L * (2 * m.rank * D + m.history) - 3,
    "dyt": lambda m, D, W, H, L: 1 + (2 * L + 1) * (2 + D if m.function == "erf" else 1),
    "keel": lambda m, D, W, H, L: (2 * L - 1) * D,  # the first junction is Pre-LN
    "start-lambdas": lambda m, D, W, H, L: 2 * L,
    "denseformer": lambda m, D, W, H, L: L * (L + 3) // 2,  # of a dilation and a period of one
    "hyper-connections": lambda m, D, W, H, L: 2 * L * (m.n**2 + 2 * m.n + (D * (m.n + 2) + 2) * m.dynamic),
    # A query and a gain at every junction but the first, and behind the last.
    "attention-residuals": lambda m, D, W, H, L: 2 * L * 2 * D,
    "delta-attention-residuals": lambda m, D, W, H, L: (2 * L - 1) * 2 * D,
    "siamese-norm": lambda m, D, W, H, L: (2 * L + 1) * 2 * D,
    "resformer": lambda m, D, W, H, L: 2 * (L - 1) * m.learned,
    # These sizes have as many key-value heads as heads.
    "svformer": lambda m, D, W, H, L: -(L - 1) * D * D,
    "backout": lambda *_: 1,
    "skip-gates": lambda m, D, W, H, L: L // 2 * (13 if m.gate == "token" else 1),
    "smear": lambda m, D, W, H, L: m.channels + 1,
    "value-embeddings": lambda m, D, W, H, L: -(-L // m.every) * (32000 * D + H * m.channels),
    "lime": lambda m, D, W, H, L: sum(layer * H * H for layer in range(2, L + 1)),
}
"""Parameters that a method adds to Pre-LN, written out by hand: D width, W feed-forward width, H heads, L blocks."""


def extra(options: dict, D: int, W: int, H: int, L: int) -> int | None:  # noqa: PLR0911 - one case a method
    """Parameters that a method adds, where that takes more than a line, too. None: no formula is written down."""
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
        case "transponder-static":
            return L * sum(o + 1 + method.learnable_sigmoid for _, o in sites)
        case "full-rank-gate":
            return L * sum(i * o for i, o in sites)
        case "eau" | "eau+grc":
            r = round(method.rank * D)
            with_grc = extra({"name": "grc", "reads": method.reads}, D, W, H, L) if method.name == "eau+grc" else 0
            return L * (D * D + D + 2 * D * r + D + r) + with_grc
        case "mhc" | "mhc-lite" | "identity-hc":
            n = method.n
            K = {"mhc": n * n, "mhc-lite": math.factorial(n), "identity-hc": 0}[method.name]
            read_out = (n * n * D + n + 1) * (method.read_out == "learned")
            return 2 * L * (n * D * (K + 2 * n) + K + 2 * n + (3 if K else 2)) + read_out
        case "muddformer":
            last = method.last or L
            norms = (last - 1) * 2 * D  # of keys and of values, behind the first block with mixtures
            hidden = [4 * (i + 1) for i in range(L - last + 1, L + 1)]
            shares = [*hidden[:-1], L + 1]
            return norms + sum(D * K + K * n + n for K, n in zip(hidden, shares, strict=True))
        case "deep-cross-attention":  # b of every source, w; three a block, with norms of keys and values, one at last
            sources = [i if method.last is None else min(i, method.last + 2) for i in range(1, L + 2)]
            return sum(3 * (S + 1) * D for S in sources[:-1]) + (sources[-1] + 1) * D + L * 2 * D
        case "embedding-norm":
            return 0 if method.of is None else extra(method.of, D, W, H, L)
        case "wider":  # to the nearest whole channel of every feed-forward network
            return L * 3 * D * round(extra(method.like, D, W, H, L) / (L * 3 * D))
    formula = FORMULAS.get(method.name)
    return None if formula is None else formula(method, D, W, H, L)


def of_residual(name: str, *shape: int) -> int:
    """Parameters of gates' residual connection: those of the method of its name, as far as it adds anything."""
    method = {"mudd": "muddformer"}.get(name, name)
    return 0 if name in ("pre-norm", "post-norm") else extra({"name": method}, *shape)


def compare(pairs: dict[str, tuple[int, int | None]]) -> None:
    """Skipped last where a method has no formula: every one that does has been compared."""
    known = {name: pair for name, pair in pairs.items() if pair[1] is not None}
    assert {name: found for name, (found, _) in known.items()} == {name: wanted for name, (_, wanted) in known.items()}
    if known.keys() < pairs.keys():
        pytest.skip(f"no formula is written down for {', '.join(pairs.keys() - known.keys())}")


@pytest.mark.parametrize("size", ["130m", pytest.param("1b", marks=pytest.mark.slow)])
def test_extra_parameters(size):
    """FLOPs of full-rank gates grow as their parameters do, so both kinds of widening come to the same."""
    shape = ModelSettings(size=size).shape()
    dimensions = shape.width, shape.ffn_width, shape.heads, shape.layers
    compare({name: (added(size, each), extra(each, *dimensions)) for name, each in METHODS.items()})


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
        ours = 100 * added(size, options) / plain_language(size)
        assert f"{ours:.{len(percent) - percent.index('.') - 1}f}" == percent, size


# ---- ResNets

BLOCKS = {"resnet18": (64, (2, 2, 2, 2)), "resnet50": (64, (3, 4, 6, 3)), "preact-resnet110": (16, (18, 18, 18))}


def blocks_of(size: str) -> list[tuple[list[tuple[int, int]], list[int], int]]:
    """Input channels and windows of every block's convolutions, the widths of its norms, and its own."""
    (first, counts), blocks = BLOCKS[size], []
    d_in = first
    for stage, count in enumerate(counts):
        width = first * 2**stage
        for _ in range(count):
            if size == "resnet50":
                blocks.append(([(d_in, 1), (width, 3), (width, 1)], [width, width, 4 * width], 4 * width))
            else:
                blocks.append(([(d_in, 3), (width, 3)], [d_in if "preact" in size else width, width], width))
            d_in = blocks[-1][-1]
    return blocks


def extra_of_images(options: dict, size: str) -> int | None:  # noqa: PLR0911 - one case a method
    """Parameters that a method adds to plain addition, written out by hand."""
    method, blocks = method_from(options), blocks_of(size)

    def chosen(values: list, sites: tuple[str, ...]) -> list:
        return [value for number, value in enumerate(values, 1) if any(site.endswith(str(number)) for site in sites)]

    def scaling_gate(C: int, kind: str) -> int:
        """SAS, section 5: (h x h) + h, (2h x 1) + 1, and Eq. 2's two layers."""
        return {"transform": C * C + C, "single-layer": 2 * C + 1, "two-layer": 2 * C * C + C + C + 1}[kind]

    match method.name:
        case "comt-sliding-window":
            sites = [site for convolutions, _, _ in blocks for site in chosen(convolutions, method.sites)]
            return sum(max(1, C // method.ratio) * (C * k * k + 1) for C, k in sites)
        case "comt-pixel":
            widths = [width for _, norms, _ in blocks for width in chosen(norms, method.sites)]
            return sum(method.hidden * (C + 1) - (C if method.gamma == "dropped" else 0) for C in widths)
        case "sas-resnet":
            gates = 3 if method.gamma == "free" else 2
            return sum(gates * scaling_gate(C, method.gate) + 2 * C for _, _, C in blocks)
        case "scaling-gate":
            return sum(scaling_gate(C, method.gate) for _, _, C in blocks)
        case "highway":
            return sum(C * C + C for _, _, C in blocks)
        case "rezero":
            return len(blocks)
        case "scaled":
            return len(blocks) * (method.scale == "learned")
        case "addition":
            return 0
    return None


@pytest.mark.parametrize("size", BLOCKS)
def test_extra_parameters_of_images(size):
    base = plain_of_images(size)
    each = IMAGE_METHODS.items()
    compare({name: (images_counted(size, given) - base, extra_of_images(given, size)) for name, given in each})


# CoMT, Table A7: the increase in per cent for 10 and 100 classes. Of two cells for 10 classes the paper is at odds
# with itself: it prints 5.72 for resnet18's window of 16, where the arithmetic of the others gives 5.71, and 1.04 for
# resnet152's pixel gate of 8, where its own cell for 100 classes has 0.99; only the classifier differs.
PRINTED = {
    ("resnet18", "window"): {16: ("5.71", "5.69"), 32: ("2.86", "2.84"), 64: ("1.43", "1.42")},
    ("resnet18", "pixel"): {2: ("0.07", "0.07"), 4: ("0.14", "0.14"), 8: ("0.28", "0.27")},
    ("resnet50", "window"): {16: ("7.58", "7.52"), 32: ("3.79", "3.76"), 64: ("1.89", "1.88")},
    ("resnet50", "pixel"): {2: ("0.19", "0.19"), 4: ("0.39", "0.38"), 8: ("0.77", "0.77")},
    ("resnet152", "window"): {16: ("8.75", "8.72"), 32: ("4.37", "4.36"), 64: ("2.19", "2.18")},
    ("resnet152", "pixel"): {2: ("0.25", "0.25"), 4: ("0.49", "0.49"), 8: ("0.99", "0.99")},
}


@pytest.mark.parametrize(("size", "kind"), PRINTED)
def test_the_increases_of_table_a7(size, kind):
    name, option = {"window": ("comt-sliding-window", "ratio"), "pixel": ("comt-pixel", "hidden")}[kind]
    plain = [plain_of_images(size, classes) for classes in (10, 100)]
    found = {}
    for value in PRINTED[size, kind]:
        ours = [images_counted(size, {"name": name, option: value}, classes) for classes in (10, 100)]
        found[value] = tuple(f"{100 * (one - base) / base:.2f}" for one, base in zip(ours, plain, strict=True))
    assert found == PRINTED[size, kind]
