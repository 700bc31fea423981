"""Residual adds with a gate a channel: Highway (Srivastava et al. 2015) and Gated Residual Connections (Dhayalkar
2024)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from comt_cli.layers.learned import Affine
from comt_cli.layers.residual.base import Branch, ResidualConnection, ResidualSite

Reads = Literal["skip", "sublayer", "both"]
At = Literal["all", "ffn"]
NormSide = Literal["pre", "post"]


class Highway(ResidualConnection):
    """y = T(x) F(N(x)) + (1 - T(x)) x, T(x) = sigmoid(W x + b).

    A negative b starts the network near the identity. The gate reads the stream, before the norm.
    """

    name = "highway"

    def __init__(self, site: ResidualSite, bias: float = -2.0) -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.transform_gate = Affine(site.width, site.width, bias)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        T_BTD = torch.sigmoid(self.transform_gate(x_BTD))
        return x_BTD + T_BTD * (branch(self.norm(x_BTD)) - x_BTD)


class GatedResidual(ResidualConnection):
    """y = x + g F(N(x)), or with `norm: post` y = N(x + g F(x)); g = sigmoid(W . + b) reads x, F, or both side by side.

    With `at: ffn` only the feed-forward network's add has a gate; elsewhere g = 1.
    """

    name = "grc"

    def __init__(self, site: ResidualSite, reads: Reads = "skip", *, at: At = "all", norm: NormSide = "pre") -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.reads = reads
        self.ends_in_norm = norm == "post"
        is_gated = at == "all" or site.part == "mlp"
        width_read = site.width * (2 if reads == "both" else 1)
        self.gate = Affine(width_read, site.width) if is_gated else None

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
