"""SiameseNorm (2026, arXiv 2602.08064): two streams that share one branch, x normalised behind every addition as in
Post-LN, y never, as in Pre-LN.

At every junction x <- N_post(x); z = F(N_in(x + N_pre(y))); x <- x + z / c; y <- y + z, with c = sqrt(2 (l + 1)) in
block l from 0. Behind the last block N_x(x) + N_y(y) is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from comt_cli.layers.learned import wide
from comt_cli.layers.residual.base import Branch, Junction, ReadOut, ResidualConnection, Sources, State


class SiameseNorm(ResidualConnection):
    """The state has y as its stream, and x beside it."""

    has_states = True

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm, self.pre_norm, self.post_norm = junction.norm(), junction.norm(), junction.norm()
        self.divisor = math.sqrt(2 * (junction.layer + 1))

    def read_out(self, norm: Callable[[], nn.Module]) -> ReadOut:
        return SiameseReadOut(self.junction, norm)

    def pair(self, state: State) -> tuple[Tensor, Tensor]:
        """x and y: the one stream that there is, at the beginning of a stack."""
        if isinstance(state, Sources):
            return state.outputs[0], state.x
        x_BTD = self.entered(state)
        return x_BTD, x_BTD

    def read(self, state: State) -> Tensor:
        """x + N_pre(y), what the branch's norm reads."""
        x_BTD, y_BTD = self.pair(state)
        read_BTD: Tensor = self.post_norm(x_BTD) + self.pre_norm(y_BTD)
        return read_BTD

    def mixing(self, state: State) -> dict[str, Tensor]:
        """How much of what the branch's norm reads is N_post(x), and how much N_pre(y)."""
        x_BTD, y_BTD = self.pair(state)
        return {"x-y": shares_of_sum(self.post_norm(x_BTD), self.pre_norm(y_BTD))}

    def side_by_side(self, state: State) -> Tensor | None:
        """The two as they are read, behind their norms: before them one is much larger, whatever their directions."""
        if not isinstance(state, Sources):
            return None
        x_BTD, y_BTD = self.pair(state)
        return torch.stack([self.post_norm(x_BTD), self.pre_norm(y_BTD)], -2)

    def step(self, state: State, branch: Branch) -> State:
        x_BTD, y_BTD = self.pair(state)
        x_BTD = self.post_norm(x_BTD)
        z_BTD = branch(self.norm(x_BTD + self.pre_norm(y_BTD)))
        return Sources(y_BTD + z_BTD, (x_BTD + z_BTD / self.divisor,))


class SiameseReadOut(ReadOut):
    """N_x(x) + N_y(y)."""

    def __init__(self, junction: Junction, norm: Callable[[], nn.Module]) -> None:
        super().__init__(junction)
        self.x_norm, self.y_norm = norm(), norm()

    def mixing(self, state: State) -> dict[str, Tensor]:
        """How much of what the final norm reads is N_x(x), and how much N_y(y)."""
        assert isinstance(state, Sources)
        return {"x-y": shares_of_sum(self.x_norm(state.outputs[0]), self.y_norm(state.x))}

    def forward(self, state: State) -> Tensor:
        """[B, T, D] of the state behind the last block."""
        assert isinstance(state, Sources)
        read_BTD: Tensor = self.x_norm(state.outputs[0]) + self.y_norm(state.x)
        return read_BTD


def shares_of_sum(*parts_BTD: Tensor) -> Tensor:
    """<part, sum> / <sum, sum> of every part, [B, T, parts]: how much of the sum's length, along its direction, each of
    them makes. They add up to 1; one that points against the sum has a negative share."""
    parts_BTPD = wide(torch.stack(parts_BTD, -2))
    sum_BTD = parts_BTPD.sum(-2)
    return (parts_BTPD @ sum_BTD.unsqueeze(-1)).squeeze(-1) / sum_BTD.square().sum(-1, keepdim=True)
