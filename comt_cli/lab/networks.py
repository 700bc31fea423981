"""Stacks of one residual connection at the start: the norms of signals and gradients along them. Shapes: x [..., D], D
width.

A `Setup` defines the branches: those of the chapter (`claims`), or the block of our language models.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.positions import rotation_table
from comt_cli.layers.residual.base import Branch, ResidualConnection, ResidualSite, State
from comt_cli.layers.residual.scaled import ProgressiveResidual, Scale, ScaledBranch
from comt_cli.methods import methods
from comt_cli.methods.base import Method, Wiring, residual_connection, residual_connections
from comt_cli.models.build import empty_network, materialise
from comt_cli.tasks.base import DECODER_SITES
from comt_cli.tasks.settings.language import ModelSettings

_HEAD_WIDTH, _VOCABULARY = 16, 64


class Plain(ResidualConnection):
    """y = F(N(x)): no skip path, for comparison."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.norm = site.norm()

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return branch(self.norm(x_BTD))


PLAIN = {"plain": Wiring(Plain)}


_UNCHANGED = nn.Identity()


@dataclass(frozen=True)
class Network:
    """Residual blocks, each from a state to the next, with an entry and an output; `module` holds all parameters."""

    module: nn.Module
    blocks: Sequence[Callable[[State], State]]
    entry: Callable[[Tensor], Tensor] = _UNCHANGED
    output: Callable[[Tensor], Tensor] = _UNCHANGED

    def streams(self, x: Tensor) -> list[Tensor]:
        """The residual stream before the first block and after every block, `depth` + 1 tensors like x."""
        states = [State(self.entry(x))]
        for block in self.blocks:
            states.append(block(states[-1]))
        return [state.stream for state in states]


@dataclass(frozen=True)
class Setup:
    """A kind of network. `leading` are the dimensions of x before its width; `branch` makes one of a given width.
    Without `branch`, the blocks are those of our language models, with their own branches and norms."""

    name: str
    says: str
    leading: tuple[int, ...]
    width: int
    branch: Callable[[int], nn.Sequential] | None = None
    norm: Callable[[int], nn.Module] = nn.LayerNorm

    def build(self, wiring: Wiring, depth: int, seed: int) -> tuple[Network, Tensor, Tensor]:
        """A network at its start, its input x and a random tensor like x, N(0, 1). So is x, except in language models,
        where it is their own embedding of random tokens: their branches would vanish relative to a larger one. Drawn
        from PyTorch's global stream in the chapter's order (blocks, then x), so that a seed gives the chapter's
        numbers."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network, x = (self._stack if self.branch else self._llama)(wiring, depth, seed)
            return network, x, torch.randn_like(x)

    def fits(self, wiring: Wiring) -> bool:
        """Whether the set-up supports all of it: only `llama` has sites for gates and norms of a method, and attention,
        whose heads a connection may normalise."""
        kind = getattr(wiring.residual, "func", wiring.residual)
        norms_heads = getattr(kind, "norms_heads", False)
        return self.branch is None or (wiring == Wiring(wiring.residual) and not norms_heads)

    def _stack(self, wiring: Wiring, depth: int, seed: int) -> tuple[Network, Tensor]:
        """Blocks of one connection and one branch each. As in our models two connections count as one layer."""
        assert self.branch is not None
        layers, norm = (depth + 1) // 2, partial(self.norm, self.width)
        pairs: list[tuple[ResidualConnection, nn.Sequential]] = []
        for index in range(depth):
            kind, before = ("mlp", (pairs[-1][0],)) if index % 2 else ("attention", ())
            place = ResidualSite(self.width, "decoder", index, 2 * layers, index // 2, layers, kind, norm, before)
            with torch.random.fork_rng(devices=[]):  # random numbers that the chapter's blocks do not draw
                connection = wiring.residual(place)
            pairs.append((connection, self.branch(self.width)))
        connections, branches = (nn.ModuleList(parts) for parts in zip(*pairs, strict=True))
        module = nn.ModuleDict({"connections": connections, "branches": branches})
        for path, part in module.named_modules():  # norms and branches keep PyTorch's defaults, as in the chapter
            if isinstance(part, Initialised):
                part.initialise(Draw(seed, path))
        blocks = [partial(connection.step, branch=cast(Branch, branch)) for connection, branch in pairs]
        return Network(module, blocks), torch.randn(*self.leading, self.width)

    def _llama(self, wiring: Wiring, depth: int, seed: int) -> tuple[Network, Tensor]:
        shape = {"width": self.width, "ffn_width": self.width * 8 // 3, "layers": depth}
        shape["heads"] = self.width // _HEAD_WIDTH
        settings = ModelSettings.model_validate({"size": "tiny", "tied_embeddings": True, **shape})
        model = empty_network(settings, wiring, vocabulary=_VOCABULARY)
        materialise(model, torch.device("cpu"), seed)
        tokens = torch.randint(_VOCABULARY, self.leading)
        x = model.embedding(tokens).detach()
        rotation = rotation_table(self.leading[-1], _HEAD_WIDTH, settings.rope_theta, x)
        blocks = [partial(block, rotation=rotation, tokens=tokens) for block in model.blocks]
        return Network(model, blocks, model.entry, model.final_norm), x


def _zero_branch(width: int) -> nn.Sequential:
    branch = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    for parameter in branch[-1].parameters():
        nn.init.zeros_(parameter)
    return branch


# The chapter's PreNormBlock and PostNormBlock, its FlexibleResidualBlock, and its ScaledResidualBlock without a norm.
LINEAR_RELU = Setup(
    *("linear-relu", "F = ReLU(W h + b), LayerNorm, x of 4 samples", (4,), 64),
    branch=lambda width: nn.Sequential(nn.Linear(width, width), nn.ReLU()),
)
GELU_MLP = Setup(
    *("gelu-mlp", "F = W2 GELU(W1 h + b1) + b2, four times as wide inside, LayerNorm, x of 4 x 8 tokens", (4, 8), 128),
    branch=lambda width: nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
)
RELU_MLP = Setup(
    *("relu-mlp", "F = W2 ReLU(W1 x + b1) + b2, no norm, x of 1 sample", (1,), 64),
    branch=lambda width: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)),
    norm=lambda _: nn.Identity(),
)
ZERO_BRANCH = replace(RELU_MLP, name="zero_branch", branch=_zero_branch)
_LLAMA_SAYS = "attention and SwiGLU, two connections a block, RMSNorm, x the model's own embedding of 2 x 16 tokens"
LLAMA = Setup("llama", _LLAMA_SAYS, (2, 16), 64)
SETUPS = {setup.name: setup for setup in (LINEAR_RELU, GELU_MLP, LLAMA)}


def wirings() -> dict[str, Wiring]:
    """Every residual connection, and every other method `as_they_come`, with at most one stream."""
    connections = {name: residual_connection(name) for name in residual_connections()}
    found = {
        name: Wiring(each)
        for name, each in connections.items()
        if "states" not in each.needs or issubclass(each, ProgressiveResidual)  # it follows training, on one stream
    }
    one_stream = replace(DECODER_SITES, features=())
    others = {name: each for name, each in as_they_come().items() if name not in found and each.fits(one_stream)}
    return found | {name: method().wiring() for name, method in others.items()}


def as_they_come(command: str = "train-lm") -> dict[str, type[Method]]:
    """The methods of a training command that need no options."""
    every = methods(command).items()
    return {name: each for name, each in every if not any(field.is_required() for field in each.model_fields.values())}


# ---- norms along them

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "functional": lambda y, random: (y * random).sum(),
    "distance": lambda y, random: (y - random).square().sum() / 2,
    "sum": lambda y, _: y.sum(),
}
"""Of the output y and a random tensor like it: a linear functional, half the squared distance, and the chapter's."""


@dataclass(frozen=True)
class Trace:
    """One forward and backward pass: the stream before the first block and after each, its L2 norm and that of the
    loss's gradient there; the output after a final norm, if any, and the gradient's norm there."""

    streams: list[Tensor]
    activations: list[float]
    gradients: list[float]
    output: Tensor
    output_gradient: float


def trace(network: Network, x: Tensor, random: Tensor, loss: str = "functional") -> Trace:
    """Run `network` on x, and the backward pass of the loss."""
    streams = network.streams(x.requires_grad_())
    y = network.output(streams[-1])
    places = streams if y is streams[-1] else [*streams, y]
    norms = [gradient.norm().item() for gradient in torch.autograd.grad(LOSSES[loss](y, random), places)]
    sizes = [h.norm().item() for h in streams]
    return Trace([h.detach() for h in streams], sizes, norms[: len(streams)], y.detach(), norms[-1])


def along_layers(
    setups: Sequence[Setup], wirings: Mapping[str, Wiring], depths: Sequence[int], seeds: Sequence[int]
) -> pd.DataFrame:
    """One row for each `setup, connection, depth, seed, layer`, from 0 (the input) to the depth, except for methods
    that the set-up does not support. The loss is `functional`.

    activation_norm  of the stream h there, `growth` that over the norm of the input x, `apart` the largest |h - x|
    gradient_norm    of the loss there, `passed` that over its norm at the output
    output_norm      of the network's output, and `output_mean`, `output_std` of all its numbers
    """
    frames = []
    for setup, (name, wiring), depth, seed in itertools.product(setups, wirings.items(), depths, seeds):
        if not setup.fits(wiring):
            continue
        seen = trace(*setup.build(wiring, depth, seed))
        x, y, norms = seen.streams[0], seen.output, seen.activations
        columns: dict[str, Any] = {"setup": setup.name, "connection": name, "depth": depth, "seed": seed}
        columns |= {"layer": range(depth + 1), "activation_norm": norms, "growth": [norm / norms[0] for norm in norms]}
        columns["apart"] = [(h - x).abs().max().item() for h in seen.streams]
        columns |= {"gradient_norm": seen.gradients, "passed": [norm / seen.output_gradient for norm in seen.gradients]}
        columns |= {"output_norm": y.norm().item(), "output_mean": y.mean().item(), "output_std": y.std().item()}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def gradient_by_loss(depths: Sequence[int], seeds: Sequence[int]) -> pd.DataFrame:
    """The gradient's norm at the input of pre- and post-norm with each loss, in both precisions. The connection
    `pre-norm, final norm` has a LayerNorm after its last block, as Transformers with pre-norm do."""
    rows = []
    for name, depth, seed, precision, loss in itertools.product(
        ("post-norm", "pre-norm", "pre-norm, final norm"), depths, seeds, (torch.float32, torch.float64), LOSSES
    ):
        connection, _, has_final_norm = name.partition(", ")
        network, *tensors = LINEAR_RELU.build(Wiring(residual_connection(connection)), depth, seed)
        network.module.to(precision)
        x, random = (tensor.to(precision) for tensor in tensors)  # the same numbers in both
        if has_final_norm:
            network = replace(network, output=partial(F.layer_norm, normalized_shape=x.shape[-1:]))
        gradient = trace(network, x, random, loss).gradients[0]
        rows.append((name, str(precision).removeprefix("torch."), loss, depth, seed, gradient))
    return pd.DataFrame(rows, columns=["connection", "precision", "loss", "depth", "seed", "gradient_norm"])


def scalings(depth: int) -> dict[str, Wiring]:
    """The chapter's y = x + s F(x), by s at the start; L is `depth`, as the chapter counts blocks."""
    kinds: dict[str, Scale] = {"1": 1.0, "0.5": 0.5, "0.1": 0.1, "1/sqrt(L)": depth**-0.5, "learned": "learned"}
    return {name: Wiring(partial(ScaledBranch, scale=scale)) for name, scale in kinds.items()}


def _summary(frame: pd.DataFrame, by: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """Over the seeds, for each combination of `by`: the number of `seeds`, and for every value `<value>_mean`, `_std`
    (NaN for one seed), `_low` and `_high`."""
    statistics = {"mean": "mean", "std": "std", "low": "min", "high": "max"}
    named = {f"{value}_{name}": (value, of) for value in values for name, of in statistics.items()}
    return frame.groupby([*by], sort=False).agg(seeds=("seed", "nunique"), **named).reset_index()


def measured(
    wirings: Mapping[str, Wiring], setups: Sequence[Setup], depths: Sequence[int], depth: int, seeds: Sequence[int]
) -> dict[str, pd.DataFrame]:
    """The tables of connections by file name. Tables without `depths` are of networks of depth `depth`.

    `identity` has the largest |h - x| of the stream h after all blocks, for the first seed: a column for each set-up,
    and `zero_branch`, where branches end in zeros, with `zero_branch_norm`, the norm of h there. 0 means that h and x
    are equal to the last bit. The others are a `_summary` each.
    """
    compared = {**wirings, **PLAIN}
    layers = along_layers(setups, compared, sorted({*depths, depth}), seeds)
    scaled = along_layers([RELU_MLP, *setups], scalings(depth), [depth], seeds)
    inputs, deep = layers[layers["layer"] == 0], layers[layers["depth"] == depth]
    by_loss = gradient_by_loss(sorted({1, *depths}), seeds)
    ends = pd.concat([deep, along_layers([ZERO_BRANCH], compared, [depth], seeds)])
    ends = ends[(ends["layer"] == depth) & (ends["seed"] == seeds[0])].set_index(["connection", "setup"])
    names = [*(setup.name for setup in setups), ZERO_BRANCH.name]
    identity = ends["apart"].unstack().reindex(index=list(compared), columns=names)
    identity["zero_branch_norm"] = ends["activation_norm"].xs(ZERO_BRANCH.name, level="setup")
    of, by_layer = ["setup", "connection"], ["setup", "connection", "layer"]
    out = ["output_norm", "gradient_norm", "output_mean", "output_std"]
    at_depths = inputs[inputs["depth"].isin(depths)]
    return {
        "gradient-by-depth": _summary(at_depths, [*of, "depth"], ["passed", "gradient_norm"]),
        "gradient-by-loss": _summary(by_loss, ["connection", "precision", "loss", "depth"], ["gradient_norm"]),
        "activations-by-layer": _summary(scaled, by_layer, ["growth", "activation_norm"]),
        "plain-against-residual": _summary(deep, by_layer, ["growth", "passed"]),
        "outputs": _summary(inputs[inputs["depth"] == depth], [*of, "depth"], out),
        "identity": identity.rename_axis(columns=None).reset_index(),
    }
