"""Residual adds whose branch has one factor: a fixed number, or a learned one a block or an add."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from comt_cli.layers.learned import Constant
from comt_cli.layers.residual.base import Branch, ResidualConnection, ResidualSite

Scale = float | Literal["depth", "learned"]


class ScaledBranch(ResidualConnection):
    """y = x + s F(N(x)), s fixed or one learned number, 1 at the start.

    With `depth`, 1 / sqrt(L) of L blocks, the sum of L independent branches has the variance of one.
    """

    name = "scaled"

    def __init__(self, site: ResidualSite, scale: Scale = 0.1) -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.learned = Constant(1.0) if scale == "learned" else None
        self.fixed = 1 / math.sqrt(site.layers) if isinstance(scale, str) else scale

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        s = self.fixed if self.learned is None else self.learned()
        return x_BTD + s * branch(self.norm(x_BTD))


class ReZero(ResidualConnection):
    """y = x + a F(x) (Bachlechner et al. 2021), no norm anywhere, a = 0 at the start.

    One a for all adds of a block, as in the authors' code: every block starts as the identity.
    """

    name = "rezero"
    keeps_final_norm = False

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        shared = [earlier.a for earlier in site.before if isinstance(earlier, ReZero)]
        self.a: Constant = shared[0] if shared else Constant(0.0)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        y_BTD: Tensor = x_BTD + self.a() * branch(x_BTD)
        return y_BTD
