"""Residual adds with a gate a channel: Highway (Srivastava et al. 2015) and Gated Residual Connections (Dhayalkar
2024)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from comt_cli.layers.learned import Affine
from comt_cli.layers.residual.base import Branch, NormedResidual, ResidualSite


class Highway(NormedResidual):
    """y = T(x) F(N(x)) + (1 - T(x)) x, T(x) = sigmoid(W x + b).

    A negative b starts the network near the identity. The gate reads the stream, before the norm.
    """

    name = "highway"

    def __init__(self, site: ResidualSite, bias: float = -2.0) -> None:
        super().__init__(site)
        self.transform_gate = Affine(site.width, site.width, bias)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        T_BTD = torch.sigmoid(self.transform_gate(x_BTD))
        return x_BTD + T_BTD * (branch(self.norm(x_BTD)) - x_BTD)


class GatedResidual(NormedResidual):
    """y = x + g F(N(x)), or with `norm: post` y = N(x + g F(x)); g = sigmoid(W . + b) reads x, F, or both side by side.

    With `at: ffn` only the feed-forward network's add has a gate; elsewhere g = 1.
    """

    name = "grc"

    def __init__(
        self, site: ResidualSite, reads: Literal["skip", "sublayer", "both"] = "skip", *,
        at: Literal["all", "ffn"] = "all", norm: Literal["pre", "post"] = "pre",
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.reads = reads
        self.ends_in_norm = norm == "post"
        is_gated = at == "all" or site.part == "mlp"
        self.gate = Affine(site.width * (2 if reads == "both" else 1), site.width) if is_gated else None

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        s_BTD = branch(x_BTD if self.ends_in_norm else self.norm(x_BTD))
        if self.gate is not None:
            read = {"skip": (x_BTD,), "sublayer": (s_BTD,), "both": (x_BTD, s_BTD)}[self.reads]
            s_BTD = torch.sigmoid(self.gate(torch.cat(read, dim=-1) if len(read) > 1 else read[0])) * s_BTD
        y_BTD = x_BTD + s_BTD
        return self.norm(y_BTD) if self.ends_in_norm else y_BTD
