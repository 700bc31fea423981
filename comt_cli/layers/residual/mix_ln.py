"""Mix-LN (Li et al. 2024): the first quarter of the blocks Post-LN, the rest Pre-LN, with the final norm."""

from __future__ import annotations

import math

from torch import Tensor

from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection


class MixLN(ResidualConnection):
    """Post-LN where `layer < fraction * layers`, layers counted from 0 as in the authors' code, else Pre-LN.

    `fraction * layers` is rounded to a whole number, a half up: of 10 blocks 3, not the 2 of Python's `round`. (The
    authors name the number itself, and theirs divide evenly: 3 of 12, 6 of 24.)
    """

    def __init__(self, junction: Junction, fraction: float = 0.25) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.is_post = junction.layer < math.floor(fraction * junction.layers + 0.5)
        self.ends_in_norm = self.is_post

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        if self.is_post:
            y_BTD: Tensor = self.norm(x_BTD + branch(x_BTD))
            return y_BTD
        return x_BTD + branch(self.norm(x_BTD))
