"""DeepNorm (Wang et al. 2022), decoder-only: y = N(alpha x + F(x)), alpha = (2L)^(1/4); no norm after the last block.

The initialisation is half of the method: Glorot normal with gain beta = (8L)^(-1/4) for the value, output and
feed-forward projections, and gain 1 for query and key.
"""

from __future__ import annotations

from torch import Tensor

from comt_cli.layers.gates import Site
from comt_cli.layers.initialise import xavier_std
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection

_UNSCALED = ("q_proj", "k_proj")


class DeepNorm(ResidualConnection):
    """y = N(alpha x + F(x)); the 2L of the paper are the junctions of L blocks."""

    keeps_final_norm = False

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.alpha = junction.count**0.25
        self.beta = (4 * junction.count) ** -0.25

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        y_BTD: Tensor = self.norm(self.alpha * x_BTD + branch(x_BTD))
        return y_BTD

    def initial_std(self, site: Site, own: float) -> float:
        return xavier_std(site.d_in, site.d_out, 1.0 if site.name in _UNSCALED else self.beta)
