"""CoMT's gate. Shapes: T tokens, D input width, N output width, r hidden width (the paper's h)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from comt_cli.kernels.gates import Bottleneck, comt_gate
from comt_cli.layers.gates.base import Gate, Site, draw_gate_weight
from comt_cli.layers.initialise import Draw
from comt_cli.recipe.settings import GateInit


class ComtGate(Gate):
    """CoMT's modulator (Eq. 4): one scalar in (0, 1) per token, `sigmoid(B sigmoid(A x))`, without biases."""

    factor_range = (0.0, 1.0)

    def __init__(self, site: Site, hidden: int, init: GateInit) -> None:
        super().__init__()
        self.init = init
        self.A = nn.Parameter(torch.empty(hidden, site.d_in))
        self.B = nn.Parameter(torch.empty(1, hidden))

    def down_projection(self) -> Tensor:
        return self.A

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        assert u_Tr is not None
        return {"scalar": comt_gate(u_Tr, self.B)}

    def bottleneck(self) -> Bottleneck:
        return Bottleneck(None, self.B, 1.0)

    def initialise(self, draw: Draw) -> None:
        draw_gate_weight(draw, self.A, "A", self.init)
        draw_gate_weight(draw, self.B, "B", self.init)
