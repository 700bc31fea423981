"""Progressive residuals (ProRes, 2026, arXiv 2603.05369): y = x + a F(N(x)), a = min(t / (T l), 1) at update t in
block l, counted from 1: the first block is there after T updates, and every later one T later. At update 0 y = x.

Nothing is learned, and a network that is not in training keeps the a of its last update, which a checkpoint has.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.residual.base import Branch, ResidualConnection, ResidualSite


class FollowsTraining(Initialised):
    """A number that depends on the update that training is at: a buffer, and so in a checkpoint."""

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.empty(()))

    def number(self, update: int) -> float:
        """Its value in update `update`, counted from 0."""
        raise NotImplementedError

    def at_update(self, update: int) -> None:
        """Set it."""
        self.value.fill_(self.number(update))

    def initialise(self, draw: Draw) -> None:
        self.at_update(0)


class Ramp(FollowsTraining):
    """min(t / length, 1), t the number of the update from 0."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def number(self, update: int) -> float:
        return min(update / self.length, 1.0)


class ProgressiveResidual(ResidualConnection):
    """y = x + a F(N(x)); `updates` is T."""

    name = "progressive"
    needs = ("states",)

    def __init__(self, site: ResidualSite, updates: int = 1000) -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.share = Ramp(updates * (site.layer + 1))

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + self.share.value.to(x_BTD.dtype) * branch(self.norm(x_BTD))
