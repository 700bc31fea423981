"""DeepNorm (Wang et al. 2022): y = N(alpha x + F(x)); no norm after the last block.

| | alpha | beta |
| --- | --- | --- |
| L blocks alone (2L junctions) | (2L)^(1/4) | (8L)^(-1/4) |
| encoder of N beside a decoder of M | 0.81 (N^4 M)^(1/16) | 0.87 (N^4 M)^(-1/16) |
| decoder of M beside an encoder (3M junctions) | (3M)^(1/4) | (12M)^(-1/4) |

The initialisation is half of the method: Glorot's with gain beta for the value, output and feed-forward projections,
and gain 1 for query and key. Those of cross-attention have the decoder's beta.
"""

from __future__ import annotations

from torch import Tensor

from comt_cli.layers.gates import Site
from comt_cli.layers.initialise import xavier_std
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection

_UNSCALED = ("q_proj", "k_proj")


class DeepNorm(ResidualConnection):
    """y = N(alpha x + F(x)); the 2L or 3M of the paper are the junctions of a stack."""

    keeps_final_norm = False
    ends_in_norm = True

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.alpha = junction.count**0.25
        self.beta = (4 * junction.count) ** -0.25
        if junction.stack == "encoder" and "decoder" in junction.depths:
            both = junction.layers**4 * junction.depths["decoder"]
            self.alpha, self.beta = 0.81 * both ** (1 / 16), 0.87 * both ** (-1 / 16)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        y_BTD: Tensor = self.norm(self.alpha * x_BTD + branch(x_BTD))
        return y_BTD

    def initial_std(self, site: Site, own: float) -> float:
        return xavier_std(site.d_in, site.d_out, 1.0 if site.name in _UNSCALED else self.beta)
