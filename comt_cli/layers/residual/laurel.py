"""LAuReL, learned augmented residual layers (Menghani et al. 2024), on Pre-LN: N is the norm of the branch F.

A layer of theirs is a residual add here: there are two in a block. The paper leaves the start open. Here the two
weights start equal, at 1/2, and the k numbers g, one set an add, at 1/k. B is zero, so LR and PA start as the ordinary
connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from comt_cli.layers.learned import Constant, LowRank, factors, wide
from comt_cli.layers.residual.base import Branch, NormedResidual, ResidualSite, State

Bound = Literal["softmax", "sigmoid"]
"""Bound that keeps a and b in (0, 1): `softmax` makes their sum 1, `sigmoid` bounds each by itself."""


class _Weights(Constant):
    """(a, b), both 1/2 at the start."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(0.0, 2)
        self.bound = bound

    def forward(self) -> Tensor:
        value_2 = wide(self.value)
        return torch.softmax(value_2, 0) if self.bound == "softmax" else torch.sigmoid(value_2)


class LaurelRW(NormedResidual):
    """y = a F(N(x)) + b x."""

    name = "laurel-rw"

    def __init__(self, site: ResidualSite, bound: Bound = "softmax") -> None:
        super().__init__(site)
        self.weights = _Weights(bound)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        a_1, b_1 = factors(self.weights())
        return (a_1 * branch(self.norm(x_BTD)) + b_1 * x_BTD).to(x_BTD.dtype)


class LaurelLR(NormedResidual):
    """y = F(N(x)) + x + B A x."""

    name = "laurel-lr"

    def __init__(self, site: ResidualSite, rank: int = 32) -> None:
        super().__init__(site)
        self.low_rank = LowRank(site.width, rank)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return branch(self.norm(x_BTD)) + x_BTD + self.low_rank(x_BTD)


class LaurelRWLR(NormedResidual):
    """y = a F(N(x)) + b (x + B A x)."""

    name = "laurel-rw-lr"

    def __init__(self, site: ResidualSite, rank: int = 32, bound: Bound = "softmax") -> None:
        super().__init__(site)
        self.low_rank = LowRank(site.width, rank)
        self.weights = _Weights(bound)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        a_1, b_1 = factors(self.weights())
        return (a_1 * branch(self.norm(x_BTD)) + b_1 * (x_BTD + self.low_rank(x_BTD))).to(x_BTD.dtype)


class LaurelPA(NormedResidual):
    """y = F(N(x)) + x + B A (sum over j of g_j x_(i-j)): the map is linear, so the sum is taken before it. The state's
    sources are the inputs of earlier adds, newest first: fewer near the start of a stack."""

    name = "laurel-pa"

    def __init__(self, site: ResidualSite, rank: int = 32, history: int = 3) -> None:
        super().__init__(site)
        self.low_rank = LowRank(site.width, rank)
        self.history = history
        # The first adds have fewer activations behind them; weights for what is never seen would never learn.
        self.g = Constant(1 / history, min(history, site.index + 1))

    def forward(self, x_BTD: Tensor, branch: Branch, past: Sequence[Tensor] = ()) -> Tensor:
        g_k = self.g()
        mixed_BTD = g_k[0] * x_BTD
        for weight, earlier_BTD in zip(g_k[1:], past, strict=True):
            mixed_BTD = mixed_BTD + weight * earlier_BTD
        return branch(self.norm(x_BTD)) + x_BTD + self.low_rank(mixed_BTD)

    def step(self, state: State, branch: Branch) -> State:
        x_BTD = state.stream
        return State(self(x_BTD, branch, state.sources), (x_BTD, *state.sources)[: self.history - 1])
