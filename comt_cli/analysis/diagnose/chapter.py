"""The chapter's claims on gradients in products and sums, zero branches, the Transformer block and scaling."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from comt_cli.analysis.diagnose.claims import Claim, Verdict, kind, printed_claim
from comt_cli.analysis.diagnose.measure import PLAIN, plain, scalings, trace, zero_branches
from comt_cli.analysis.diagnose.networks import RELU_MLP
from comt_cli.methods.base import Wiring, residual_connection

SEED = 42
"""The chapter's, wherever it sets one."""


def arithmetic_claims() -> Iterator[Claim]:
    """Products of factors near 1, and the chapter's model of the gradient of a residual network."""
    random = np.random.RandomState(SEED)  # the legacy stream, which is what the chapter's numbers come from
    layers = 50
    ends = {scale: float(np.prod(scale * (1 + 0.1 * random.randn(layers)))) for scale in (1.05, 1.0, 0.95)}
    for scale, says, factor in ((1.05, "explodes to 10x", 10.0), (0.95, "vanishes to 0.1x", 0.1)):
        yield Claim(
            f"product-{scale}",
            f"A gradient that every layer scales by {scale}, give or take 10 % of noise, {says} in {layers} layers.",
            f"{factor:g}x",
            f"{ends[scale]:.3g}x",
            kind(max(ends[scale] / factor, factor / ends[scale]) < 1.5),
            f"Up to 1.5 times off would do. Its noise at seed {SEED} gives {ends[scale]:.3g}x (and {ends[1.0]:.3g}x at "
            "scale 1), the typical walk "
            f"(median) {scale**layers * math.exp(-layers * 0.1**2 / 2):.3g}x. Without the noise {scale}^{layers} = "
            f"{scale**layers:.3g}.",
        )
    power = "Arithmetic."
    yield printed_claim("power-0.9", "0.9^50 is about 0.005.", ["0.005"], [0.9**50], power)
    yield printed_claim("power-0.5", "0.5^20 is about 0.000001.", ["0.000001"], [0.5**20], power)
    totals = [1 + 0.5 ** (layer + 1) for layer in (0, 4, 8, 12, 16)]
    yield printed_claim(
        "decomposition",
        "The gradient of a residual network is 1 plus the product of the branches' derivatives: with 0.5 a layer this "
        "at layers 0, 4, 8, 12, 16.",
        ["1.5000", "1.0312", "1.0020", "1.0001", "1.0000"],
        totals,
        "The sums are right, of a model that no network follows: the next claim.",
    )
    yield _floor()


def _floor() -> Claim:
    """The gradient of 20 blocks x + s x, by automatic differentiation."""
    gradients = []
    for slope in (0.5, -0.5):
        x = torch.ones((), dtype=torch.float64, requires_grad=True)
        h = x
        for _ in range(20):
            h = h + slope * h
        gradients.append(torch.autograd.grad(h, x)[0].item())
    return Claim(
        "floor",
        "Through the skip path the gradient of a residual network never falls below 1: 20 layers whose branches have "
        "the derivative 0.5 give 1.000001.",
        "1.000001",
        f"{gradients[0]:.1f} with derivative +0.5, {gradients[1]:.2g} with -0.5",
        Verdict.digits if all(gradient >= 1 for gradient in gradients) else Verdict.no,
        "The derivative of 20 layers x + 0.5 x is (1 + 0.5)^20, not 1 + 0.5^20, and of x - 0.5 x it is (1 - 0.5)^20: "
        "what the branches add can point against the skip path. 1 is no bound, only what is left where all branches "
        "are flat.",
    )


def zero_branch_claims() -> Iterator[Claim]:
    """Blocks whose branch ends in zeros; the connections are ours, the branch the chapter's."""
    ours = {"residual": Wiring(residual_connection("pre-norm")), **plain()}
    inputs, outputs = {}, {}
    for depth in (1, 50):
        for name, wiring in ours.items():
            network, x, _ = RELU_MLP.build(wiring, depth, SEED)
            zero_branches(network)
            with torch.no_grad():
                inputs[name, depth], outputs[name, depth] = x, network.streams(x)[-1]
    kept = {depth: torch.equal(inputs["residual", depth], outputs["residual", depth]) for depth in (1, 50)}
    lost = {depth: not outputs[PLAIN, depth].any() for depth in (1, 50)}
    norms = [h.norm().item() for h in (inputs["residual", 1], outputs["residual", 1], outputs[PLAIN, 1])]
    yield printed_claim(
        "zero-branch",
        "With a zero last layer a residual block returns its input (norm 8.3361) and a plain one zeros.",
        ["8.3361", "8.3361", "0.0000"],
        norms,
        "Exactly so, to the last bit. Its input was drawn without a seed; the norm of 64 standard normal numbers is "
        "8 give or take 0.7.",
        in_kind=kept[1] and lost[1],
    )
    yield Claim(
        "zero-branch-50",
        "50 such residual blocks return their input unchanged; 50 plain ones lose it.",
        "input; nothing",
        f"{'input, to the last bit' if kept[50] else 'not the input'}; {'nothing' if lost[50] else 'something'}",
        Verdict.digits if kept[50] and lost[50] else Verdict.no,
        "x + 0 is x in floating point too.",
    )
    network, x, _ = RELU_MLP.build(Wiring(residual_connection("rezero")), 1, SEED)
    with torch.no_grad():
        y = network.streams(x)[-1]
    yield Claim(
        "rezero",
        "A ReZero block is exactly the identity at the start.",
        "alpha 0; equal",
        f"alpha 0; {'equal' if torch.equal(x, y) else 'not equal'}",
        Verdict.digits if torch.equal(x, y) else Verdict.no,
        "x + 0 F(x) is x for every finite F(x).",
    )


def transformer_claims() -> Iterator[Claim]:
    """The size of a Transformer block of width 512, counted on a real one."""
    with torch.device("meta"):
        parts = [nn.MultiheadAttention(512, 8), nn.Linear(512, 2048), nn.Linear(2048, 512)]
        parts += [nn.LayerNorm(512), nn.LayerNorm(512)]
    count = sum(parameter.numel() for part in parts for parameter in part.parameters())
    shape = "A Transformer block of width 512, feed-forward width 2048, with two LayerNorms"
    yield Claim(
        "block-size",
        f"{shape} has this many parameters (its output).",
        "3,152,384",
        f"{count:,}",
        Verdict.digits if count == 3_152_384 else Verdict.no,
        "4 D^2 + 4 D in attention, 2 D F + D + F behind it, 4 D in the norms.",
    )
    yield Claim(
        "block-size-text",
        f"{shape} has over 6 million (its text).",
        "over 6 million",
        f"{count / 1e6:.2f} million",
        Verdict.in_kind if count > 6e6 else Verdict.no,
        "The text contradicts the output above it.",
    )


def scaling_claims() -> Iterator[Claim]:
    """The norm of the stream along 30 and more blocks x + s F(x) without norms."""

    def norms(name: str, depth: int, seed: int = SEED) -> list[float]:
        return trace(*RELU_MLP.build(scalings(depth)[name], depth, seed)).activations

    def shown(path: list[float]) -> str:
        return f"{path[0]:.2f} to {path[-1]:.2f} ({path[-1] / path[0]:.2f}x)"

    paths = {name: norms(name, 30) for name in ("1", "0.5", "0.1")}
    grown = {name: path[-1] / path[0] for name, path in paths.items()}
    yield Claim(
        "scale-1",
        "With factor 1 the norm grows steadily over 30 blocks.",
        "grows",
        shown(paths["1"]),
        kind(grown["1"] > 2),
        "Nothing holds it: there is no norm, neither in the branch nor behind it.",
    )
    long = np.array(norms("1", 200))
    rate = (long[200] / long[100]) ** (1 / 100)
    linear, geometric = (_fit(target) for target in (long, np.log(long)))
    yield Claim(
        "scale-1-linear",
        "It grows roughly linearly, since each block adds a vector of similar size.",
        "roughly linear",
        f"{long[50] / long[0]:.1f}x at 50 blocks, {long[100] / long[0]:.1f}x at 100, {long[200] / long[0]:.0f}x at 200",
        kind(linear > geometric),
        f"Without a norm what a block adds is in proportion to x: the growth is geometric, {rate - 1:.1%} a block. 30 "
        f"blocks are too few to see it (a line explains {_fit(np.array(paths['1'])):.1%} of the variance). Over 200 a "
        f"line explains {linear:.1%}, an exponential {geometric:.1%} (of the logarithm's). And vectors of similar size "
        "in directions of their own would add up like a square root.",
    )
    yield Claim(
        "scale-0.5",
        "With factor 0.5 it grows much more slowly.",
        "slower",
        shown(paths["0.5"]),
        kind(1 < grown["0.5"] < 1 + (grown["1"] - 1) / 2),
        "What a block adds to the squared norm is about a quarter of what it is with factor 1.",
    )
    yield Claim(
        "scale-0.1",
        "With factor 0.1 it stays nearly constant.",
        "nearly constant",
        shown(paths["0.1"]),
        kind(abs(grown["0.1"] - 1) < 0.05),
        "And here about a hundredth.",
    )
    depths = (10, 30, 100, 300)
    ends = []
    for depth in depths:
        seen = [norms("1/sqrt(L)", depth, seed) for seed in range(5)]
        ends.append(float(np.mean([path[-1] / path[0] for path in seen])))
    yield Claim(
        "scale-depth",
        "The factor 1/sqrt(L) keeps the size of the output bounded however deep the network.",
        "bounded",
        ", ".join(f"{end:.2f}x" for end in ends) + f" at L = {', '.join(map(str, depths))}",
        kind(max(ends) < 1.5),
        "Means of 5 seeds. (1 + c/L)^L stays below e^c.",
    )


def _fit(values: np.ndarray) -> float:
    """The share of the variance of `values` along their index that a straight line explains."""
    index = np.arange(len(values))
    return float(np.corrcoef(index, values)[0, 1] ** 2)


CLAIMS = arithmetic_claims, zero_branch_claims, transformer_claims, scaling_claims
