"""Scaled residual connections: y = x + s F(x), s fixed or one learned number, 1 at the start.

With `depth`, 1 / sqrt(L) of L blocks, the sum of L independent branches has the variance of one.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from comt_cli.layers.learned import Constant
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection

Scale = float | Literal["depth", "learned"]


class ScaledBranch(ResidualConnection):
    """y = x + s F(N(x))."""

    def __init__(self, junction: Junction, scale: Scale = 0.1) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.learned = Constant(1.0) if scale == "learned" else None
        self.fixed = 1 / math.sqrt(junction.layers) if isinstance(scale, str) else scale

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        s = self.fixed if self.learned is None else self.learned()
        return x_BTD + s * branch(self.norm(x_BTD))
