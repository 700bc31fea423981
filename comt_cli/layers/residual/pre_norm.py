"""Pre-LN: y = x + F(N(x)), with a norm after the last block (Xiong et al. 2020; LLaMA)."""

from __future__ import annotations

from torch import Tensor

from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection


class PreNorm(ResidualConnection):
    """y = x + F(N(x))."""

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + branch(self.norm(x_BTD))
