"""One gate between skip path and branch: y = g F + (1 - g) x (SAS, 2019, Table 6; `methods/scaling_gate.py`)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from comt_cli.layers.learned import Affine
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection
from comt_cli.layers.residual.sas import SCALING_GATES, GateKind, Reads, as_read


class GatedShare(ResidualConnection):
    """y = g F(N(x)) + (1 - g) x."""

    def __init__(
        self,
        junction: Junction,
        gate: Literal["transform"] | GateKind = "two-layer",
        bias: float = -3.0,
        reads: Reads = "pixel",
    ) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.reads = reads
        self.reads_x_alone = gate == "transform"
        width = junction.width
        self.gate = Affine(width, width, bias) if gate == "transform" else SCALING_GATES[gate](width, bias)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        F_BTD = branch(self.norm(x_BTD))
        read = as_read(x_BTD, self.reads)
        if self.reads_x_alone:
            g = torch.sigmoid(self.gate(read))
        else:
            g = self.gate(torch.cat([read, as_read(F_BTD, self.reads)], dim=-1))
        return x_BTD + g * (F_BTD - x_BTD)
