"""Gates: input-dependent factors multiplied onto what a site produces.

A gate reads its input only through a linear map, its `summary` u = x A^T. That lets the projection it belongs to
compute u in the same matrix product as its own output (Transponder, Eq. 8), whatever the gate then makes of it.

Shapes: T tokens (any leading dimensions), D input width, N output width, r bottleneck width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from comt_cli.kernels.reference import comt_gate, transponder_gate
from comt_cli.kernels.transponder import modulate
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.recipe.settings import GateInit


@dataclass(frozen=True)
class Site:
    """A projection in a model: its name (`q_proj` ...), where it stands, and its widths."""

    name: str
    layer: int
    layers: int
    d_in: int
    d_out: int


class Gate(Initialised):
    """A factor gamma(x) on what a site produces."""

    factor_range: tuple[float, float] | None = None
    """The open interval of each factor, against which its saturation is measured; None if it has no ends."""

    def summary(self) -> Tensor | None:
        """A, [r, D]: what the gate reads of its input is x A^T. None for a gate that does not look at its input."""
        raise NotImplementedError

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        """The gate's factors by kind, `scalar` [T, 1] and `channel` [T, N]; gamma is their product."""
        raise NotImplementedError

    def forward(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        """gamma * z, [T, N] (Transponder, Eq. 10)."""
        for factor in self.values(u_Tr).values():
            z_TN = z_TN * factor
        return z_TN


GateFactory = Callable[[Site], Gate]


def draw_gate_weight(draw: Draw, tensor: Tensor, name: str, init: GateInit) -> None:
    """Fill a gate's [fan_out, fan_in] matrix as the recipe names it.

    `kaiming-uniform`: U(+-sqrt(6 / fan_in)) (He et al. 2015; Transponder's stated choice).
    `torch-linear`: U(+-1 / sqrt(fan_in)), what `nn.Linear` does (CoMT's pseudo code).
    `normal`: N(0, 0.02^2), what the model-wide initialisation of the original scripts overwrote both with.
    """
    fan_in = tensor.shape[1]
    match init:
        case "kaiming-uniform":
            draw.uniform_(tensor, name, math.sqrt(6 / fan_in))
        case "torch-linear":
            draw.uniform_(tensor, name, 1 / math.sqrt(fan_in))
        case "normal":
            draw.normal_(tensor, name, 0.02)


class ComtGate(Gate):
    """CoMT's modulator (Eq. 4): one scalar in (0, 1) per token, `sigmoid(B sigmoid(A x))`, without biases."""

    factor_range = (0.0, 1.0)

    def __init__(self, site: Site, hidden: int, init: GateInit) -> None:
        super().__init__()
        self.init = init
        self.A = nn.Parameter(torch.empty(hidden, site.d_in))
        self.B = nn.Parameter(torch.empty(1, hidden))

    def summary(self) -> Tensor:
        return self.A

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        assert u_Tr is not None
        return {"scalar": comt_gate(u_Tr, self.B)}

    def initialise(self, draw: Draw) -> None:
        draw_gate_weight(draw, self.A, "A", self.init)
        draw_gate_weight(draw, self.B, "B", self.init)


class TransponderGate(Gate):
    """Transponder's channel times scalar modulator (Eq. 4, 5; "layer-channel-scalar"), in (0, 4).

    `2 sigmoid(alpha_c B_c phi(A x)) * 2 sigmoid(alpha_s b_s phi(A x))` with one A for both: only that adds the printed
    1 % of parameters. alpha is kept positive as exp(log_alpha) and starts at 1; the paper does not say how it does.
    """

    factor_range = (0.0, 2.0)

    def __init__(self, site: Site, rank: int, init: GateInit) -> None:
        super().__init__()
        self.init = init
        self.A = nn.Parameter(torch.empty(rank, site.d_in))
        self.B_channel = nn.Parameter(torch.empty(site.d_out, rank))
        self.B_scalar = nn.Parameter(torch.empty(1, rank))
        self.log_alpha_channel = nn.Parameter(torch.empty(()))
        self.log_alpha_scalar = nn.Parameter(torch.empty(()))

    def summary(self) -> Tensor:
        return self.A

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        assert u_Tr is not None
        return {
            "channel": transponder_gate(u_Tr, self.B_channel, self.log_alpha_channel.exp()),
            "scalar": transponder_gate(u_Tr, self.B_scalar, self.log_alpha_scalar.exp()),
        }

    def forward(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        assert u_Tr is not None
        return modulate(
            z_TN, u_Tr, self.B_channel, self.log_alpha_channel.exp(), self.B_scalar, self.log_alpha_scalar.exp()
        )

    def initialise(self, draw: Draw) -> None:
        draw_gate_weight(draw, self.A, "A", self.init)
        draw_gate_weight(draw, self.B_channel, "B_channel", self.init)
        draw_gate_weight(draw, self.B_scalar, "B_scalar", self.init)
        nn.init.zeros_(self.log_alpha_channel)
        nn.init.zeros_(self.log_alpha_scalar)
