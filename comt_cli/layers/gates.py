"""Gates on projections and branches: input-dependent factors multiplied onto the output of a site.

A gate reads its input only through a linear map onto its bottleneck, u = x A^T. That lets the projection it belongs to
compute u in the same matrix product as its own output (Transponder, Eq. 8), whatever the gate then makes of it.

Shapes: T tokens (any leading dimensions), D input width, N output width, H heads, r bottleneck width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.gates import Bottleneck, comt_gate, transponder_gate, transponder_gated
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import Affine
from comt_cli.recipe.settings import GateInit


@dataclass(frozen=True)
class Site:
    """A place in block `layer` (from 0, of `layers`) of a stack that can carry a gate, which reads what is `d_in` wide
    and multiplies what is `d_out` wide, in `heads` equal parts where it has such. A convolution has a `window`.

    Names are those of the projections, `q_proj` ... `down_proj`, `sdpa`, the output of attention before `o_proj`,
    `attention` and `mlp`, whole branches, and of maps `conv1` ... and `norm1` ... `part` is the branch of a token block
    that the site is in: `cross` has sites of the same names as self-attention.
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
    """A factor gamma(x) on the output of a site. Gates on maps have [B, ., H, W] where these have [T, .]."""

    factor_range: tuple[float, float] | None = None
    """The open interval of each factor, against which its saturation is measured; None if it has no ends."""

    def down_projection(self) -> Tensor | None:
        """A, [r, D]: the gate's bottleneck is u = x A^T; at a convolution filters, [r, D, k, k], and u = A * x. None
        for a gate that does not look at its input."""
        raise NotImplementedError

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        """The gate's factors by kind, `scalar` [T, 1], `head` [T, heads] and `channel` [T, N]; gamma is their product.
        A gate that does not look at its input leaves T out."""
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

    def gated_at(self, name: str, z_TN: Tensor, u_Tr: Tensor | None = None) -> Tensor:
        """z times the gate at a site, [T, N], which reads u; z where the site has none."""
        return self.gates[name](z_TN, u_Tr) if name in self.gates else z_TN

    def gate_values(self, x_TD: Tensor) -> dict[str, dict[str, Tensor]]:
        """For each gated site its factors by kind (`Gate.values`) on the input `x`."""
        return {name: self.gate(name).values(read_by(self.gate(name), x_TD)) for name in self.gates}


def read_by(gate: Gate, x_TD: Tensor) -> Tensor | None:
    """u = x A^T, [T, r]; None for a gate that does not look at its input."""
    A = gate.down_projection()
    return None if A is None else F.linear(x_TD, A)


def draw_gate_weight(draw: Draw, tensor: Tensor, name: str, init: GateInit) -> None:
    """Fill a gate's [fan_out, fan_in] matrix, or [fan_out, C, k, k] filters (fan_in = C k k), as the recipe names it.

    `kaiming-uniform`: U(+-sqrt(6 / fan_in)) (He et al. 2015; Transponder's stated choice).
    `torch-linear`: U(+-1 / sqrt(fan_in)), that of `nn.Linear` (CoMT's pseudo code).
    `normal`: N(0, 0.02^2), with which the model-wide initialisation of the original scripts overwrote both.
    """
    fan_in = tensor.shape[1:].numel()
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


Granularity = Literal["scalar", "channel", "channel-scalar"]
"""One number a token; one a channel of the output; both, multiplied."""


class TransponderGate(Gate):
    """Transponder's modulator (Eq. 4, 5): `2 sigmoid(alpha B sigmoid(A x))` for each kind of factor. Of two kinds, one
    A serves both unless `separate_summaries`. alpha is exp(log_alpha) and starts at 1; not `learnable_sigmoid`, it
    stays."""

    factor_range = (0.0, 2.0)

    def __init__(
        self, site: Site, rank: int, init: GateInit, granularity: Granularity = "channel-scalar", *,
        learnable_sigmoid: bool = True, separate_summaries: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.init, self.rank = init, rank
        self.learnable, self.separate = learnable_sigmoid, separate_summaries
        self.kinds = granularity.split("-")
        self.A = nn.Parameter(torch.empty(rank * (len(self.kinds) if self.separate else 1), site.d_in))
        for kind in self.kinds:
            width = site.d_out if kind == "channel" else 1
            self.register_parameter(f"B_{kind}", nn.Parameter(torch.empty(width, rank)))
            if self.learnable:
                self.register_parameter(f"log_alpha_{kind}", nn.Parameter(torch.empty(())))

    def down_projection(self) -> Tensor:
        return self.A

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        assert u_Tr is not None
        parts = torch.split(u_Tr, self.rank, dim=-1) if self.separate else [u_Tr] * len(self.kinds)
        return {
            kind: transponder_gate(part_Tr, self._matrix(kind), self._alpha(kind))
            for kind, part_Tr in zip(self.kinds, parts, strict=True)
        }

    def forward(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        if len(self.kinds) == 1 or self.separate:
            return super().forward(z_TN, u_Tr)
        assert u_Tr is not None
        channel, scalar = ((self._matrix(kind), self._alpha(kind)) for kind in ("channel", "scalar"))
        return transponder_gated(z_TN, u_Tr, *channel, *scalar)

    def bottleneck(self) -> Bottleneck:
        matrices = {kind: self._matrix(kind) for kind in self.kinds}
        if self.separate:  # each kind has its own half of u
            halves = {"channel": (0, self.rank), "scalar": (self.rank, 0)}
            matrices = {kind: F.pad(matrix, halves[kind]) for kind, matrix in matrices.items()}
        log_alphas = {kind: self.get_parameter(f"log_alpha_{kind}") for kind in self.kinds if self.learnable}
        B, log_alpha = ((each.get("channel"), each.get("scalar")) for each in (matrices, log_alphas))
        return Bottleneck(*B, 2.0, *log_alpha)

    def _matrix(self, kind: str) -> Tensor:
        return self.get_parameter(f"B_{kind}")

    def _alpha(self, kind: str) -> Tensor:
        if not self.learnable:
            return torch.ones((), dtype=self.A.dtype, device=self.A.device)
        return self.get_parameter(f"log_alpha_{kind}").exp()

    def initialise(self, draw: Draw) -> None:
        draw_gate_weight(draw, self.A, "A", self.init)
        for kind in self.kinds:
            draw_gate_weight(draw, self._matrix(kind), f"B_{kind}", self.init)
            if self.learnable:
                nn.init.zeros_(self.get_parameter(f"log_alpha_{kind}"))


class StaticGate(Gate):
    """Transponder without context (section 4.6): `2 sigmoid(alpha beta1 beta2)`, the same for every token; beta1 is a
    number, 1 at the start, beta2 one a channel, 0 at the start, where both at 0 would have no gradient."""

    factor_range = (0.0, 2.0)

    def __init__(self, site: Site, *, learnable_sigmoid: bool = True) -> None:
        super().__init__()
        self.learnable = learnable_sigmoid
        self.beta1 = nn.Parameter(torch.empty(()))
        self.beta2 = nn.Parameter(torch.empty(site.d_out))
        if learnable_sigmoid:
            self.log_alpha = nn.Parameter(torch.empty(()))

    def down_projection(self) -> None:
        return None

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        alpha = self.log_alpha.exp() if self.learnable else torch.ones_like(self.beta1)
        return {"channel": 2 * torch.sigmoid(alpha * (self.beta1 * self.beta2))}

    def initialise(self, draw: Draw) -> None:
        nn.init.ones_(self.beta1)
        nn.init.zeros_(self.beta2)
        if self.learnable:
            nn.init.zeros_(self.log_alpha)


class FullRankGate(Gate):
    """One factor in (0, 1) a channel, `sigmoid(x W^T)` with W of N x D (Qiu et al. 2025); near 1/2 at the start: W is
    N(0, 0.02^2)."""

    factor_range = (0.0, 1.0)
    kind: Literal["channel", "head"] = "channel"

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(site.d_out if self.kind == "channel" else site.heads, site.d_in))

    def down_projection(self) -> Tensor:
        return self.W

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        assert u_Tr is not None
        return {self.kind: torch.sigmoid(u_Tr)}

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.W, "W", 0.02)


class HeadGate(FullRankGate):
    """One factor in (0, 1) a head, `sigmoid(x W^T)` with W of H x D (Qiu et al. 2025, head-wise)."""

    kind = "head"

    def forward(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        gamma_TH = self.values(u_Tr)["head"]
        z_THE = z_TN.view(*gamma_TH.shape, -1)
        return (z_THE * gamma_TH.unsqueeze(-1)).view_as(z_TN)


class EvaluatorAdjuster(Gate):
    """z + a * e of a site's output z: a = tanh(W3 z + b3) adjusts, e = sigmoid(W2 relu(W1 z + b1) + b2) evaluates
    (Dhayalkar 2024, second-hand). W1 is r x N, r the `share` of N. It adds where other gates multiply, so it has no
    factors (`values`), and it reads what it acts on, so it asks nothing of the site's input."""

    def __init__(self, site: Site, share: float) -> None:
        super().__init__()
        width, rank = site.d_out, max(1, round(share * site.d_out))
        self.W1, self.W2, self.W3 = Affine(width, rank), Affine(rank, width), Affine(width, width)

    def down_projection(self) -> None:
        """None: it does not read the site's input."""

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        """None: it multiplies nothing."""
        return {}

    def evaluation(self, z_TN: Tensor) -> Tensor:
        """e, [T, N], each between 0 and 1."""
        return torch.sigmoid(self.W2(F.relu(self.W1(z_TN))))

    def forward(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        e_TN = self.evaluation(z_TN)  # first: the order decides in which gradients are added up
        return z_TN + torch.tanh(self.W3(z_TN)) * e_TN

    def initialise(self, draw: Draw) -> None:
        """Its three maps start as any `Affine`: N(0, 0.02^2), biases 0."""
