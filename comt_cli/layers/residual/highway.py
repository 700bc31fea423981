"""Highway (Srivastava et al. 2015): y = T(x) H(x) + (1 - T(x)) x, T(x) = sigmoid(W x + b), a gate per channel.

A negative b starts the network near the identity. H is the branch with its Pre-LN norm; the gate reads the stream.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comt_cli.layers.learned import Affine
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection


class Highway(ResidualConnection):
    """y = T(x) F(N(x)) + (1 - T(x)) x."""

    def __init__(self, junction: Junction, bias: float = -2.0) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.transform_gate = Affine(junction.width, junction.width, bias)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        T_BTD = torch.sigmoid(self.transform_gate(x_BTD))
        return x_BTD + T_BTD * (branch(self.norm(x_BTD)) - x_BTD)
