"""Gated Residual Connections (Dhayalkar 2024): y = r + g s, g = sigmoid(W_g . + b_g) per channel, r the skip path and
s the sublayer's output.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from comt_cli.layers.learned import Affine
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection

Reads = Literal["skip", "sublayer", "both"]
At = Literal["all", "ffn"]
NormSide = Literal["pre", "post"]


class GatedResidual(ResidualConnection):
    """y = x + g F(N(x)), or with `norm: post` y = N(x + g F(x)); the gate g reads x, F, or both side by side.

    With `at: ffn` only the feed-forward network's connection has a gate; elsewhere g = 1.
    """

    def __init__(self, junction: Junction, reads: Reads = "skip", *, at: At = "all", norm: NormSide = "pre") -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.reads = reads
        self.ends_in_norm = norm == "post"
        is_gated = at == "all" or junction.part == "mlp"
        width_read = junction.width * (2 if reads == "both" else 1)
        self.gate = Affine(width_read, junction.width) if is_gated else None

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        s_BTD = branch(x_BTD if self.ends_in_norm else self.norm(x_BTD))
        if self.gate is not None:
            match self.reads:
                case "skip":
                    read = x_BTD
                case "sublayer":
                    read = s_BTD
                case "both":
                    read = torch.cat([x_BTD, s_BTD], dim=-1)
            s_BTD = torch.sigmoid(self.gate(read)) * s_BTD
        y_BTD: Tensor = x_BTD + s_BTD
        return self.norm(y_BTD) if self.ends_in_norm else y_BTD
