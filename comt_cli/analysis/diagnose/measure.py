"""Norms of signals and gradients along networks at their start. Shapes: D width, x [..., D], L depth."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from comt_cli.analysis.diagnose.networks import LINEAR_RELU, RELU_MLP, FreeBranch, Network, Plain, Setup, Stack
from comt_cli.layers.residual.scaled import Scale, ScaledBranch
from comt_cli.methods.base import Wiring, residual_connection

PLAIN = "plain"
"""The name of a network without skip paths."""

LOSSES = {
    "functional": "the inner product of the output and a random tensor",
    "distance": "half the squared distance of the output and a random tensor",
    "sum": "the sum of the output, as in the chapter",
}


def loss_of(name: str, y: Tensor, random: Tensor) -> Tensor:
    """The loss called so, a number; `random` is a tensor like the output y."""
    match name:
        case "functional":
            return (y * random).sum()
        case "distance":
            return (y - random).square().sum() / 2
        case "sum":
            return y.sum()
    raise KeyError(name)


@dataclass(frozen=True)
class Trace:
    """One forward and backward pass: L2 norms of the stream and of the loss's gradient there, before the first block
    and after each; the gradient's norm at the output, which is the last stream or what a final norm makes of it."""

    activations: list[float]
    gradients: list[float]
    output_gradient: float
    output: Tensor

    @property
    def passed(self) -> float:
        """The gradient's norm at the input over its norm at the output."""
        return self.gradients[0] / self.output_gradient


def trace(network: Network, x: Tensor, random: Tensor, loss: str = "functional") -> Trace:
    """Run `network` on x and the loss back to it."""
    streams = network.streams(x.requires_grad_())
    y = network.output(streams[-1])
    places = streams if y is streams[-1] else [*streams, y]
    gradients = torch.autograd.grad(loss_of(loss, y, random), places)
    norms = [gradient.norm().item() for gradient in gradients]
    return Trace([h.detach().norm().item() for h in streams], norms[: len(streams)], norms[-1], y.detach())


def gradient_by_depth(
    setup: Setup, wirings: Mapping[str, Wiring], depths: Sequence[int], seeds: Sequence[int], width: int | None
) -> pd.DataFrame:
    """Rows `setup, connection, depth, seed` with what reaches the input, and what comes out, of networks that deep.

    gradient_norm    of the loss `functional` at the input
    passed           that, over its norm at the output
    output_norm      and `output_mean`, `output_std` of all its numbers
    """

    def rows() -> Iterator[dict[str, Any]]:
        for name, wiring in wirings.items():
            for depth in depths:
                for seed in seeds:
                    seen = trace(*setup.build(wiring, depth, seed, width))
                    y = seen.output
                    yield {
                        "setup": setup.name,
                        "connection": name,
                        "depth": depth,
                        "seed": seed,
                        "gradient_norm": seen.gradients[0],
                        "passed": seen.passed,
                        "output_norm": y.norm().item(),
                        "output_mean": y.mean().item(),
                        "output_std": y.std().item(),
                    }

    return pd.DataFrame(rows())


def gradient_by_loss(depths: Sequence[int], seeds: Sequence[int], width: int | None) -> pd.DataFrame:
    """The chapter's comparison of pre- and post-norm with each loss, and in both precisions.

    Rows `connection, precision, loss, depth, seed, gradient_norm` (at the input). The connection `pre-norm, final
    norm` has a LayerNorm behind its last block, as Transformers with pre-norm do.
    """
    names = {"post-norm": None, "pre-norm": None, "pre-norm, final norm": torch.nn.functional.layer_norm}

    def rows() -> Iterator[dict[str, Any]]:
        for (name, norm), depth, seed in itertools.product(names.items(), depths, seeds):
            wiring = Wiring(residual_connection(name.partition(",")[0]))
            for precision in (torch.float32, torch.float64):
                network, x, random = LINEAR_RELU.build(wiring, depth, seed, width)
                network, x, random = network.to(precision), x.to(precision), random.to(precision)  # the same numbers
                h = network.streams(x.requires_grad_())[-1]
                y = h if norm is None else norm(h, h.shape[-1:])
                for loss in LOSSES:
                    (gradient,) = torch.autograd.grad(loss_of(loss, y, random), x, retain_graph=True)
                    yield {
                        "connection": name,
                        "precision": str(precision).removeprefix("torch."),
                        "loss": loss,
                        "depth": depth,
                        "seed": seed,
                        "gradient_norm": gradient.norm().item(),
                    }

    return pd.DataFrame(rows())


def scalings(depth: int) -> Mapping[str, Wiring]:
    """The scalings of the chapter, y = x + s F(x), by what s is at the start; L is `depth`, as it counts blocks."""
    kinds: dict[str, Scale] = {"1": 1.0, "0.5": 0.5, "0.1": 0.1, "1/sqrt(L)": depth**-0.5, "learned": "learned"}
    return {name: Wiring(partial(ScaledBranch, scale=scale)) for name, scale in kinds.items()}


def along_layers(
    setup: Setup, wirings: Mapping[str, Wiring], depth: int, seeds: Sequence[int], width: int | None
) -> pd.DataFrame:
    """Rows `setup, connection, layer, seed` for layers 0 (the input) to `depth`: `activation_norm` of the stream there,
    `growth`, that over its norm at the input, and `gradient_norm` and `passed`, the loss's gradient there and that over
    its norm at the output (loss `functional`)."""

    def rows() -> Iterator[dict[str, Any]]:
        for (name, wiring), seed in itertools.product(wirings.items(), seeds):
            seen = trace(*setup.build(wiring, depth, seed, width))
            for layer, (activation, gradient) in enumerate(zip(seen.activations, seen.gradients, strict=True)):
                yield {
                    "setup": setup.name,
                    "connection": name,
                    "layer": layer,
                    "seed": seed,
                    "activation_norm": activation,
                    "growth": activation / seen.activations[0],
                    "gradient_norm": gradient,
                    "passed": gradient / seen.output_gradient,
                }

    return pd.DataFrame(rows())


def at_the_start(
    wirings: Mapping[str, Wiring], setups: Iterable[Setup], depth: int, seed: int, width: int | None = None
) -> pd.DataFrame:
    """Whether `depth` blocks are the identity: rows `connection` with the largest |h - x| of the stream h after them.

    One column a set-up, as the networks start, and `zero_branch`, where the branch's last layer is zero (in the
    set-up `relu-mlp`, without norms), with `zero_branch_norm`, the norm of h there. A difference of exactly 0 means
    that h and x are equal to the last bit; None where a method does not fit the set-up.
    """
    rows = []
    for name, wiring in wirings.items():
        apart = {setup.name: _ends(setup, wiring, depth, seed, width)[0] for setup in setups}
        zero, norm = _ends(RELU_MLP, wiring, depth, seed, width, zero=True)
        rows.append({"connection": name, **apart, "zero_branch": zero, "zero_branch_norm": norm})
    return pd.DataFrame(rows)


def _ends(
    setup: Setup, wiring: Wiring, depth: int, seed: int, width: int | None, zero: bool = False
) -> tuple[float, float] | tuple[None, None]:
    """The largest |h - x|, and the norm of h."""
    if not setup.fits(wiring):
        return None, None
    network, x, _ = setup.build(wiring, depth, seed, width)
    if zero:
        zero_branches(network)
    with torch.no_grad():
        first, *_, last = network.streams(x)
    return (last - first).abs().max().item(), last.norm().item()


def zero_branches(network: Network) -> None:
    """Set the last linear layer of every branch to zero, in place: F(x) = 0."""
    assert isinstance(network, Stack)
    for branch in network.branches:
        assert isinstance(branch, FreeBranch)
        assert branch.linear2 is not None
        torch.nn.init.zeros_(branch.linear2.weight)
        torch.nn.init.zeros_(branch.linear2.bias)


def plain() -> Mapping[str, Wiring]:
    """The network without skip paths, under its name."""
    return {PLAIN: Wiring(Plain)}


def summary(frame: pd.DataFrame, values: Sequence[str]) -> pd.DataFrame:
    """Over the seeds, for each combination of the names and numbers that were chosen and not measured:
    `<value>_mean`, `_std` (NaN of one seed), `_low` and `_high` of every value, and the number of `seeds`."""
    by = [name for name in frame.columns if name not in (*_MEASURED, "seed")]
    groups = frame.groupby(by, sort=False)
    columns = {"seeds": groups["seed"].nunique()}
    for value in values:
        for name, statistic in (("mean", "mean"), ("std", "std"), ("low", "min"), ("high", "max")):
            columns[f"{value}_{name}"] = getattr(groups[value], statistic)()
    return pd.DataFrame(columns).reset_index()


_MEASURED = ("gradient_norm", "passed", "output_norm", "output_mean", "output_std", "activation_norm", "growth")
