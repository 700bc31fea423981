"""ReZero (Bachlechner et al. 2021): y = x + a F(x), no norm anywhere, a = 0 at the start.

One a for all junctions of a block, as in the authors' code: every block starts as the identity.
"""

from __future__ import annotations

from torch import Tensor

from comt_cli.layers.learned import Constant
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection


class ReZero(ResidualConnection):
    """y = x + a F(x)."""

    keeps_final_norm = False

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        shared = [earlier.a for earlier in junction.before if isinstance(earlier, ReZero)]
        self.a: Constant = shared[0] if shared else Constant(0.0)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        y_BTD: Tensor = x_BTD + self.a() * branch(x_BTD)
        return y_BTD
