"""KEEL (2026, arXiv 2601.19895): Post-LN with a strong skip path, y = N(alpha x + F(N(x))), alpha = the number of
junctions.

The first junction is plain Pre-LN, and the second has alpha = 1, so that the embedding is not drowned.
"""

from __future__ import annotations

from torch import Tensor

from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection


class Keel(ResidualConnection):
    """y = N_out(alpha x + F(N_in(x)))."""

    ends_in_norm = True

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.output_norm = junction.norm() if junction.index else None
        self.alpha = 1.0 if junction.index == 1 else float(junction.count)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        F_BTD = branch(self.norm(x_BTD))
        if self.output_norm is None:
            return x_BTD + F_BTD
        y_BTD: Tensor = self.output_norm(self.alpha * x_BTD + F_BTD)
        return y_BTD
