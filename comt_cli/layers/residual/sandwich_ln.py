"""Sandwich-LN (Ding et al. 2021, CogView): y = x + N2(F(N1(x))), a norm on either side of the branch."""

from __future__ import annotations

from torch import Tensor

from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection


class SandwichLN(ResidualConnection):
    """y = x + N2(F(N1(x)))."""

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.branch_norm = junction.norm()

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        y_BTD: Tensor = x_BTD + self.branch_norm(branch(self.norm(x_BTD)))
        return y_BTD
