"""Interface of gates: input-dependent factors multiplied onto the output of a site.

A gate reads its input only through a linear map onto its bottleneck, u = x A^T. That lets the projection it belongs to
compute u in the same matrix product as its own output (Transponder, Eq. 8), whatever the gate then makes of it.

Shapes: T tokens (any leading dimensions), D input width, N output width, r bottleneck width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.gates import Bottleneck
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.recipe.settings import GateInit


@dataclass(frozen=True)
class Site:
    """A place in a model that can carry a gate: its name, the stack of blocks and the block in it (`layer`, from 0, of
    `layers`), what the gate reads (`d_in` wide) and what it multiplies (`d_out` wide, in `heads` equal parts where it
    has such). A convolution has a `window`.

    The seven projections (`q_proj` ... `down_proj`) go by their names; `sdpa` is what attention mixes, before `o_proj`;
    `attention` and `mlp` are the whole branches. A residual block of maps has `conv1` ... and `norm1` ...
    `part` is the branch of a token block that the site is in: cross-attention (`cross`) has sites of the same names as
    self-attention.
    """

    name: str
    stack: str
    layer: int
    layers: int
    d_in: int
    d_out: int
    heads: int = 1
    window: int = 1
    part: str = ""


class Gate(Initialised):
    """A factor gamma(x) on what a site produces. Gates on maps have [B, ., H, W] where these have [T, .]."""

    factor_range: tuple[float, float] | None = None
    """The open interval of each factor, against which its saturation is measured; None if it has no ends."""

    def down_projection(self) -> Tensor | None:
        """A, [r, D]: the gate's bottleneck is u = x A^T; at a convolution filters, [r, D, k, k], and u = A * x. None
        for a gate that does not look at its input."""
        raise NotImplementedError

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        """The gate's factors by kind, `scalar` [T, 1], `head` [T, heads] and `channel` [T, N]; gamma is their product.

        A gate that does not look at its input leaves T out.
        """
        raise NotImplementedError

    def forward(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        """gamma * z, [T, N] (Transponder, Eq. 10)."""
        for factor in self.values(u_Tr).values():
            z_TN = z_TN * factor
        return z_TN

    def bottleneck(self) -> Bottleneck | None:
        """The gate in the form that the fused kernels know; None for a gate of another form."""
        return None


GateFactory = Callable[[Site], Gate]


class CarriesGates(nn.Module):
    """A module with gates that all read its first argument."""

    gates: nn.ModuleDict
    sites: tuple[Site, ...]

    def gate(self, name: str) -> Gate:
        """The gate at a site. Raises `KeyError` if it has none."""
        gate = self.gates[name]
        assert isinstance(gate, Gate)
        return gate

    def gate_values(self, x_TD: Tensor) -> dict[str, dict[str, Tensor]]:
        """For each gated site its factors by kind (`Gate.values`) on the input `x`."""
        values = {}
        for name in self.gates:
            gate = self.gate(name)
            A = gate.down_projection()
            values[name] = gate.values(None if A is None else F.linear(x_TD, A))
        return values


def draw_gate_weight(draw: Draw, tensor: Tensor, name: str, init: GateInit) -> None:
    """Fill a gate's [fan_out, fan_in] matrix, or [fan_out, C, k, k] filters (fan_in = C k k), as the recipe names it.

    `kaiming-uniform`: U(+-sqrt(6 / fan_in)) (He et al. 2015; Transponder's stated choice).
    `torch-linear`: U(+-1 / sqrt(fan_in)), what `nn.Linear` does (CoMT's pseudo code).
    `normal`: N(0, 0.02^2), what the model-wide initialisation of the original scripts overwrote both with.
    """
    fan_in = tensor.shape[1:].numel()
    match init:
        case "kaiming-uniform":
            draw.uniform_(tensor, name, math.sqrt(6 / fan_in))
        case "torch-linear":
            draw.uniform_(tensor, name, 1 / math.sqrt(fan_in))
        case "normal":
            draw.normal_(tensor, name, 0.02)
