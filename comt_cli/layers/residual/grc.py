"""Gated Residual Connections (Dhayalkar 2024): y = r + g s, g = sigmoid(W_g . + b_g) per channel, r the skip path and
s the sublayer's output, here of a Pre-LN branch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from comt_cli.layers.learned import Affine
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection

Reads = Literal["skip", "sublayer", "both"]


class GatedResidual(ResidualConnection):
    """y = x + sigmoid(W_g . + b_g) F(N(x)), the gate reading x, F(N(x)), or both side by side."""

    def __init__(self, junction: Junction, reads: Reads = "skip") -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.reads = reads
        self.gate = Affine(junction.width * (2 if reads == "both" else 1), junction.width)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        s_BTD = branch(self.norm(x_BTD))
        match self.reads:
            case "skip":
                read = x_BTD
            case "sublayer":
                read = s_BTD
            case "both":
                read = torch.cat([x_BTD, s_BTD], dim=-1)
        y_BTD: Tensor = x_BTD + torch.sigmoid(self.gate(read)) * s_BTD
        return y_BTD
