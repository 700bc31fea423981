"""Post-LN: y = N(x + F(x)) (Vaswani et al. 2017). The final norm of language models
stays, as in the scripts behind the papers."""

from __future__ import annotations

from torch import Tensor

from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection


class PostNorm(ResidualConnection):
    """y = N(x + F(x))."""

    ends_in_norm = True

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        y_BTD: Tensor = self.norm(x_BTD + branch(x_BTD))
        return y_BTD
