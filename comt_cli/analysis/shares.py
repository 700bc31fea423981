"""Learned shares of residual connections: the factors of skip path and branch, and their moments over many inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from comt_cli.analysis.watch import hooked
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.layers.residual.channel_gates import GatedResidual, Highway
from comt_cli.layers.residual.laurel import LaurelRW, LaurelRWLR
from comt_cli.layers.residual.sas import GatedShare, SelfAdaptiveScaling
from comt_cli.layers.residual.scaled import ReZero, ScaledBranch

_MOST = 1 << 16
"""Numbers of a share that its percentiles are taken of."""


class Share(NamedTuple):
    """A factor of a connection: the gates it is computed from, and how."""

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
                shares["(1-alpha)(1-beta)"] = Share((alpha, beta), _product)
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


def summed_shares(connections: Sequence[ResidualConnection], passes: Iterable[object]) -> list[dict[str, Sums]]:
    """The shares of each connection, by name, over the forward passes that going through `passes` makes one by one."""
    outputs: dict[nn.Module, Tensor] = {}

    def keep(gate: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        outputs[gate] = output

    known = [shares_of(connection) for connection in connections]
    gates = {gate for shares in known for share in shares.values() for gate in share.gates}
    sums = [{name: Sums() for name in shares} for shares in known]
    with hooked((gate, keep) for gate in gates), torch.no_grad():
        for _ in passes:
            for shares, own in zip(known, sums, strict=True):
                for name, share in shares.items():
                    own[name].add(share.of(*(outputs[gate] for gate in share.gates)))
    return sums


class Sums:
    """Mean and standard deviation of numbers that come in parts, summed in fp64 about the first part's mean, and the
    10th and 90th percentile: of all numbers, or of `_MOST` that are drawn from all of them, the same ones every
    time."""

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

    def moments(self) -> dict[str, float]:
        """`mean` and `std` (of the population) of all so far, and `low` and `high`, their 10th and 90th percentile: a
        band of standard deviations may leave the range of a share."""
        mean = self.total / self.count
        std = max(self.squares / self.count - mean**2, 0.0) ** 0.5
        low, high = np.percentile(self.drawn.numpy(), [10, 90])
        return {"mean": self.shift + mean, "std": std, "low": float(low), "high": float(high)}


def _itself(gate: Tensor) -> Tensor:
    return gate


def _product(alpha: Tensor, beta: Tensor) -> Tensor:
    return (1 - alpha) * (1 - beta)
