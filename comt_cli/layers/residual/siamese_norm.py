"""SiameseNorm (2026, arXiv 2602.08064): two streams that share one branch, x normalised behind every addition as in
Post-LN, y never, as in Pre-LN.

At every residual add x <- N_post(x); z = F(N_in(x + N_pre(y))); x <- x + z / c; y <- y + z, with c = sqrt(2 (l + 1)) in
block l from 0. Behind the last block N_x(x) + N_y(y) is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from comt_cli.layers.learned import wide
from comt_cli.layers.residual.base import Branch, NormedResidual, OutputAggregation, ResidualSite, State


class SiameseNorm(NormedResidual):
    """The state has y as its stream, and x as its source."""

    name = "siamese-norm"
    needs = ("states",)

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.pre_norm, self.post_norm = site.norm(), site.norm()
        self.divisor = math.sqrt(2 * (site.layer + 1))

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation:
        return SiameseAggregation(self.site, norm)

    def pair(self, state: State) -> tuple[Tensor, Tensor]:
        """x and y: both the initial stream, at the start of a stack."""
        return self.sources(state)[0], state.stream

    def read(self, state: State) -> Tensor:
        """x + N_pre(y), the input of the branch's norm."""
        x_BTD, y_BTD = self.pair(state)
        return self.post_norm(x_BTD) + self.pre_norm(y_BTD)

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Shares of N_post(x) and of N_pre(y) in the input of the branch's norm."""
        x_BTD, y_BTD = self.pair(state)
        return {"x-y": shares_of_sum(self.post_norm(x_BTD), self.pre_norm(y_BTD))}

    def side_by_side(self, state: State) -> Tensor | None:
        """The two behind their norms: before them one is much larger, whatever their directions."""
        if not state.sources:
            return None
        x_BTD, y_BTD = self.pair(state)
        return torch.stack([self.post_norm(x_BTD), self.pre_norm(y_BTD)], -2)

    def step(self, state: State, branch: Branch) -> State:
        x_BTD, y_BTD = self.pair(state)
        x_BTD = self.post_norm(x_BTD)
        z_BTD = branch(self.norm(x_BTD + self.pre_norm(y_BTD)))
        return State(y_BTD + z_BTD, (x_BTD + z_BTD / self.divisor,))


class SiameseAggregation(OutputAggregation):
    """N_x(x) + N_y(y)."""

    def __init__(self, site: ResidualSite, norm: Callable[[], nn.Module]) -> None:
        super().__init__(site)
        self.x_norm, self.y_norm = norm(), norm()

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Shares of N_x(x) and of N_y(y) in the input of the final norm."""
        return {"x-y": shares_of_sum(self.x_norm(state.sources[0]), self.y_norm(state.x))}

    def forward(self, state: State) -> Tensor:
        """State behind the last block -> [B, T, D]."""
        return self.x_norm(state.sources[0]) + self.y_norm(state.x)


def shares_of_sum(*parts_BTD: Tensor) -> Tensor:
    """<part, sum> / <sum, sum> of every part, [B, T, parts]: how much of the sum's length, along its direction, each of
    them makes. They add up to 1; one that points against the sum has a negative share."""
    parts_BTPD = wide(torch.stack(parts_BTD, -2))
    sum_BTD = parts_BTPD.sum(-2)
    return (parts_BTPD @ sum_BTD.unsqueeze(-1)).squeeze(-1) / sum_BTD.square().sum(-1, keepdim=True)
