"""LayerNorm Scaling (Sun et al. 2025): y = x + F(N(x) / sqrt(l)), l the block counted from 1."""

from __future__ import annotations

import math

from torch import Tensor

from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection


class LayerNormScaling(ResidualConnection):
    """y = x + F(N(x) / sqrt(layer + 1)) with `layer` counted from 0."""

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.scale = 1 / math.sqrt(junction.layer + 1)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + branch(self.norm(x_BTD) * self.scale)
