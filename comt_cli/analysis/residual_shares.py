"""How residual connections share out skip path and branch, block by block (SAS, 2019, Figure 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from comt_cli.analysis.block_gradients import stages_of
from comt_cli.analysis.images import EXAMPLES, watched_images
from comt_cli.analysis.watch import hooked
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedImageModel
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.layers.residual.grc import GatedResidual
from comt_cli.layers.residual.highway import Highway
from comt_cli.layers.residual.laurel import LaurelRW, LaurelRWLR
from comt_cli.layers.residual.rezero import ReZero
from comt_cli.layers.residual.sas import SelfAdaptiveScaling
from comt_cli.layers.residual.scaled import ScaledBranch
from comt_cli.layers.residual.scaling_gate import GatedShare
from comt_cli.models.resnet_blocks import ResidualBlock

_PRODUCT = "(1-alpha)(1-beta)"


class Share(NamedTuple):
    """A number that a connection multiplies something with: the gates that it comes of, and how."""

    gates: tuple[nn.Module, ...]
    of: Callable[..., Tensor]


def shares_of(connection: ResidualConnection) -> Mapping[str, Share]:
    """The shares of a connection by name; none where it has learned none.

    SAS: `alpha` of x, `beta` of F, and `(1-alpha)(1-beta)` of N(x + F), or `gamma` where that has a gate of its own.
    Highway, and one scaling gate: `gate` of F, what is left of x. GRC: `g` of F; ReZero: `a` of F; a learned scale:
    `scale` of F; x keeps 1. LAuReL's weights: `a` of F and `b` of x.
    """
    shares: dict[str, Share] = {}
    match connection:
        case SelfAdaptiveScaling(alpha_gate=alpha, beta_gate=beta, gamma_gate=gamma):
            shares = {"alpha": Share((alpha,), _itself), "beta": Share((beta,), _itself)}
            if gamma is None:
                shares[_PRODUCT] = Share((alpha, beta), _product)
            else:
                shares["gamma"] = Share((gamma,), _itself)
        case Highway(transform_gate=gate):
            shares = {"gate": Share((gate,), torch.sigmoid)}
        case GatedShare(gate=gate, reads_x_alone=is_raw):
            shares = {"gate": Share((gate,), torch.sigmoid if is_raw else _itself)}
        case GatedResidual(gate=nn.Module() as gate):
            shares = {"g": Share((gate,), torch.sigmoid)}
        case LaurelRW(weights=numbers) | LaurelRWLR(weights=numbers):
            shares = {"a": Share((numbers,), itemgetter(0)), "b": Share((numbers,), itemgetter(1))}
        case ReZero(a=number):
            shares = {"a": Share((number,), _itself)}
        case ScaledBranch(learned=nn.Module() as number):
            shares = {"scale": Share((number,), _itself)}
    return shares


SPAN = ("low", "high")
"""The 10th and the 90th percentile: a band of standard deviations may leave what a share can be."""
_MOST = 1 << 16
"""Numbers of a share that its percentiles are taken of."""


def has_shares(loaded: LoadedImageModel) -> bool:
    """Whether the residual connections of a model have learned shares."""
    return any(shares_of(connection) for connection in _connections(loaded))


def _connections(loaded: LoadedImageModel) -> list[ResidualConnection]:
    return [cast(ResidualBlock, block).connection for block in loaded.model.blocks]


def residual_shares(loaded: LoadedImageModel, examples: int = EXAMPLES) -> pd.DataFrame:
    """The shares of every residual block on the first `examples` validation images, or on all there are.

    Rows `block` (from 1), `stage` (from 1), `share` (see `shares_of`), `mean`, `std` and `SPAN` over the images, and
    where there is a number for every pixel or channel over these too; `examples` (how many images there were).

    Raises:
        UserError: the residual connections have no learned shares (says what the model is); see also `watched_images`.
    """
    if not has_shares(loaded):
        raise UserError(
            f"the residual connections of {loaded.name} have no learned shares: it holds {loaded.description}"
        )
    images = watched_images(loaded, "validation")
    seen = 0

    def passes() -> Iterator[None]:
        nonlocal seen
        for x_BCHW, labels_B in images.first(examples):
            images.logits(x_BCHW)
            seen += len(labels_B)
            yield

    sums = summed_shares(_connections(loaded), passes())
    stages = stages_of(loaded.model.settings.shape().blocks)
    rows = [
        (block, stage, name, *each.moments(), seen)
        for block, (stage, own) in enumerate(zip(stages, sums, strict=True), start=1)
        for name, each in own.items()
    ]
    return pd.DataFrame(rows, columns=["block", "stage", "share", "mean", "std", *SPAN, "examples"])


def summed_shares(connections: Sequence[ResidualConnection], passes: Iterable[object]) -> list[dict[str, Sums]]:
    """The shares of each connection, by name, over the forward passes that going through `passes` makes one by one."""
    said: dict[nn.Module, Tensor] = {}

    def keep(gate: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        said[gate] = output

    known = [shares_of(connection) for connection in connections]
    gates = {gate for shares in known for share in shares.values() for gate in share.gates}
    sums = [{name: Sums() for name in shares} for shares in known]
    with hooked((gate, keep) for gate in gates), torch.no_grad():
        for _ in passes:
            for shares, own in zip(known, sums, strict=True):
                for name, share in shares.items():
                    own[name].add(share.of(*(said[gate] for gate in share.gates)))
    return sums


class Sums:
    """Mean and standard deviation of numbers that come in parts, summed in fp64 about the first part's mean, and the
    percentiles of `SPAN`: of all numbers, or of `_MOST` that are drawn from all of them, the same ones every time."""

    def __init__(self) -> None:
        self.count, self.shift, self.total, self.squares = 0, 0.0, 0.0, 0.0
        self.drawn, self.ranks = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        self._chance = torch.Generator().manual_seed(0)

    def add(self, values: Tensor) -> None:
        """Count in numbers of any shape."""
        numbers = values.cpu().double().flatten()
        # Each number has a random rank, and the lowest stay: every one of all parts is as likely to be among them.
        ranks = torch.rand(len(numbers), generator=self._chance, dtype=torch.float64)
        self.drawn, self.ranks = torch.cat([self.drawn, numbers]), torch.cat([self.ranks, ranks])
        if len(self.ranks) > _MOST:
            self.ranks, kept = self.ranks.topk(_MOST, largest=False)
            self.drawn = self.drawn[kept]
        if not self.count:
            self.shift = float(numbers.mean())
        self.count += numbers.numel()
        self.total += float((numbers - self.shift).sum())
        self.squares += float((numbers - self.shift).square().sum())

    def moments(self) -> tuple[float, float, float, float]:
        """Mean and standard deviation (of the population) of all so far, and their 10th and 90th percentile."""
        mean = self.total / self.count
        low, high = np.percentile(self.drawn.numpy(), [10, 90])
        return self.shift + mean, max(self.squares / self.count - mean**2, 0.0) ** 0.5, float(low), float(high)


def _itself(gate: Tensor) -> Tensor:
    return gate


def _product(alpha: Tensor, beta: Tensor) -> Tensor:
    return (1 - alpha) * (1 - beta)
