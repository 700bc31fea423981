"""Norms of signals and gradients along networks at their start. Shapes: D width, x [..., D]."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from comt_cli.lab.diagnose.networks import LINEAR_RELU, PLAIN, RELU_MLP, ZERO_BRANCH, Network, Setup
from comt_cli.layers.residual.scaled import Scale, ScaledBranch
from comt_cli.methods.base import Wiring, residual_connection

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "functional": lambda y, random: (y * random).sum(),
    "distance": lambda y, random: (y - random).square().sum() / 2,
    "sum": lambda y, _: y.sum(),
}
"""Of the output y and a random tensor like it: a linear functional, half the squared distance, and the chapter's."""


@dataclass(frozen=True)
class Trace:
    """One forward and backward pass: the stream before the first block and after each, and the L2 norms of the loss's
    gradient there; the output, which is the last stream or what a final norm makes of it, and the norm there."""

    streams: list[Tensor]
    gradients: list[float]
    output: Tensor
    output_gradient: float

    @property
    def activations(self) -> list[float]:
        """L2 norms of the streams."""
        return [h.norm().item() for h in self.streams]


def trace(network: Network, x: Tensor, random: Tensor, loss: str = "functional") -> Trace:
    """Run `network` on x and the loss back to it."""
    streams = network.streams(x.requires_grad_())
    y = network.output(streams[-1])
    places = streams if y is streams[-1] else [*streams, y]
    gradients = torch.autograd.grad(LOSSES[loss](y, random), places)
    norms = [gradient.norm().item() for gradient in gradients]
    return Trace([h.detach() for h in streams], norms[: len(streams)], y.detach(), norms[-1])


def along_layers(
    setup: Setup, wirings: Mapping[str, Wiring], depths: Sequence[int], seeds: Sequence[int], width: int | None
) -> pd.DataFrame:
    """Networks of all these depths, layer by layer: one row for each `setup, connection, depth, seed, layer`, from 0
    (the input) to the depth. Methods that the set-up has no place for are left out. The loss is `functional`.

    activation_norm  of the stream h there, `growth` that over the norm of the input x, `apart` the largest |h - x|
    gradient_norm    of the loss there, `passed` that over its norm at the output
    output_norm      of what comes out of the network, and `output_mean`, `output_std` of all its numbers
    """
    frames = []
    fitting = [(name, wiring) for name, wiring in wirings.items() if setup.fits(wiring)]
    for (name, wiring), depth, seed in itertools.product(fitting, depths, seeds):
        seen = trace(*setup.build(wiring, depth, seed, width))
        x, y, norms = seen.streams[0], seen.output, seen.activations
        columns = {
            "setup": setup.name,
            "connection": name,
            "depth": depth,
            "seed": seed,
            "layer": range(depth + 1),
            "activation_norm": norms,
            "growth": [norm / norms[0] for norm in norms],
            "apart": [(h - x).abs().max().item() for h in seen.streams],
            "gradient_norm": seen.gradients,
            "passed": [norm / seen.output_gradient for norm in seen.gradients],
            "output_norm": y.norm().item(),
            "output_mean": y.mean().item(),
            "output_std": y.std().item(),
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def gradient_by_loss(depths: Sequence[int], seeds: Sequence[int], width: int | None = None) -> pd.DataFrame:
    """The chapter's comparison of pre- and post-norm with each loss, and in both precisions.

    Rows `connection, precision, loss, depth, seed, gradient_norm` (at the input). The connection `pre-norm, final
    norm` has a LayerNorm behind its last block, as Transformers with pre-norm do.
    """
    rows = []
    for name, depth, seed, precision, loss in itertools.product(
        ("post-norm", "pre-norm", "pre-norm, final norm"), depths, seeds, (torch.float32, torch.float64), LOSSES
    ):
        connection, _, has_final_norm = name.partition(", ")
        network, *tensors = LINEAR_RELU.build(Wiring(residual_connection(connection)), depth, seed, width)
        network.module.to(precision)
        x, random = (tensor.to(precision) for tensor in tensors)  # the same numbers in both
        if has_final_norm:
            network = replace(network, output=partial(F.layer_norm, normalized_shape=x.shape[-1:]))
        gradient = trace(network, x, random, loss).gradients[0]
        rows.append((name, str(precision).removeprefix("torch."), loss, depth, seed, gradient))
    return pd.DataFrame(rows, columns=["connection", "precision", "loss", "depth", "seed", "gradient_norm"])


def scalings(depth: int) -> dict[str, Wiring]:
    """The scalings of the chapter, y = x + s F(x), by what s is at the start; L is `depth`, as it counts blocks."""
    kinds: dict[str, Scale] = {"1": 1.0, "0.5": 0.5, "0.1": 0.1, "1/sqrt(L)": depth**-0.5, "learned": "learned"}
    return {name: Wiring(partial(ScaledBranch, scale=scale)) for name, scale in kinds.items()}


def summary(frame: pd.DataFrame, by: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """Over the seeds, for each combination of `by`: the number of `seeds`, and of every value `<value>_mean`, `_std`
    (NaN of one seed), `_low` and `_high`."""
    statistics = {"mean": "mean", "std": "std", "low": "min", "high": "max"}
    named = {f"{value}_{name}": (value, of) for value in values for name, of in statistics.items()}
    return frame.groupby([*by], sort=False).agg(seeds=("seed", "nunique"), **named).reset_index()


def measured(
    wirings: Mapping[str, Wiring],
    setups: Sequence[Setup],
    depths: Sequence[int],
    depth: int,
    seeds: Sequence[int],
    width: int | None,
) -> dict[str, pd.DataFrame]:
    """The tables of connections, by the names of their files. What is not over `depths` is of networks `depth` deep.

    `identity` has the largest |h - x| of the stream h behind all blocks, of the first seed: a column for each set-up,
    and `zero_branch`, where branches end in zeros, with `zero_branch_norm`, the norm of h there. Exactly 0: h and x are
    equal to the last bit. The others are a `summary` each.
    """

    def every(setups: Sequence[Setup], wirings: Mapping[str, Wiring], depths: Sequence[int]) -> pd.DataFrame:
        return pd.concat([along_layers(setup, wirings, depths, seeds, width) for setup in setups])

    compared = {**wirings, **PLAIN}
    layers = every(setups, compared, sorted({*depths, depth}))
    scaled = every([RELU_MLP, *setups], scalings(depth), [depth])
    inputs, deep = layers[layers["layer"] == 0], layers[layers["depth"] == depth]
    by_loss = gradient_by_loss(sorted({1, *depths}), seeds, width)
    ends = pd.concat([deep, every([ZERO_BRANCH], compared, [depth])])
    ends = ends[(ends["layer"] == depth) & (ends["seed"] == seeds[0])].set_index(["connection", "setup"])
    names = [*(setup.name for setup in setups), ZERO_BRANCH.name]
    identity = ends["apart"].unstack().reindex(index=list(compared), columns=names)
    identity["zero_branch_norm"] = ends["activation_norm"].xs(ZERO_BRANCH.name, level="setup")
    of, by_layer = ["setup", "connection"], ["setup", "connection", "layer"]
    out = ["output_norm", "gradient_norm", "output_mean", "output_std"]
    return {
        "gradient-by-depth": summary(inputs[inputs["depth"].isin(depths)], [*of, "depth"], ["passed", "gradient_norm"]),
        "gradient-by-loss": summary(by_loss, ["connection", "precision", "loss", "depth"], ["gradient_norm"]),
        "activations-by-layer": summary(scaled, by_layer, ["growth", "activation_norm"]),
        "plain-against-residual": summary(deep, by_layer, ["growth", "passed"]),
        "outputs": summary(inputs[inputs["depth"] == depth], [*of, "depth"], out),
        "identity": identity.rename_axis(columns=None).reset_index(),
    }
