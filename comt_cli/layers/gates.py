"""Gates on projections and branches: input-dependent factors that multiply the output of a site.

A gate is constructed from plain numbers and has initial values. `gate(x)` is gamma, so `gate(x) * projection(x)` gates
any projection of any model. A gate reads x only through a linear map, its bottleneck u = x A^T. A projection can thus
compute u in the same matrix product as its output z (Transponder, Eq. 8); `gate.scaled(z, u)` is gamma * z.

Shapes: T tokens (any leading dimensions), D input width, N output width, H heads, r bottleneck width.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.kernels.gates import Bottleneck, comt_gate, transponder_gate, transponder_gated
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import Affine
from comt_cli.layers.roles import Role
from comt_cli.recipe.settings import GateInit


@dataclass(frozen=True)
class Site:
    """A position in block `layer` (from 0, of `layers`) of a stack that can carry a gate.

    The gate reads `d_in` channels and multiplies `d_out` channels, which are `heads` equal parts where there are heads.
    A convolution has `window` and `stride`. Names: the projections `q_proj` ... `down_proj`; `sdpa`, the output of
    attention before `o_proj`; `attention` and `mlp`, whole branches; `conv1` ... and `norm1` ... in image models.
    `part` is the branch of a token block: `cross` has sites of the same names as self-attention.
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
    stride: int = 1


class Gate(Initialised):
    """Factor gamma(x) on the output of a site: x, [T, D], to a factor that broadcasts to the output, [T, N]. Gates of
    image models use [B, ., H, W] instead of [T, .].

    Subclasses define `down_projection`, `values` and `initialise`. A gate with a second matrix also defines
    `bottleneck`, so that fused kernels can compute it.
    """

    factor_range: tuple[float, float] | None = None
    """Open interval of each factor, used to measure saturation; None if unbounded."""

    role: Role = "gate"
    zero_at_one: Sequence[str] = ()
    """Parameters at whose zeros every factor is 1; empty if there are none."""

    @classmethod
    def at(cls, site: Site, **options: Any) -> Self:
        """Gate for a site, whose attributes (`d_in`, `d_out` ...) are passed to arguments of the same names."""
        taken = inspect.signature(cls.__init__).parameters.keys() & vars(site).keys()
        return cls(**{name: getattr(site, name) for name in taken} | options)

    def down_projection(self) -> Tensor | None:
        """A, [r, D], of the bottleneck u = x A^T; for a convolution filters, [r, D, k, k]. None: x is not read."""
        raise NotImplementedError

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        """Factors by kind: `scalar` [T, 1], `head` [T, heads], `channel` [T, N]. Their product is gamma. A gate that
        does not read its input leaves out T."""
        raise NotImplementedError

    def forward(self, x_TD: Tensor) -> Tensor:
        """gamma, [T, N] or [T, 1]; without T if the gate does not read x."""
        return functools.reduce(torch.mul, self.values(read_by(self, x_TD)).values())

    def scaled(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        """gamma * z, [T, N] (Transponder, Eq. 10)."""
        for factor in self.values(u_Tr).values():
            z_TN = z_TN * factor
        return z_TN

    def start_at_one(self) -> bool:
        """Make every factor exactly 1, in any type, while some parameter gets gradients. False if impossible."""
        for name in self.zero_at_one:
            nn.init.zeros_(self.get_parameter(name))
        return bool(self.zero_at_one)

    def bottleneck(self) -> Bottleneck | None:
        """The gate as the fused kernels compute it; None if it has another form."""
        return None


GateFactory = Callable[[Site], Gate]


class CarriesGates(nn.Module):
    """Module with gates that all read its first argument."""

    gates: nn.ModuleDict
    sites: tuple[Site, ...]

    def gate(self, name: str) -> Gate:
        """Gate at a site. Raises `KeyError` if there is none."""
        gate = self.gates[name]
        assert isinstance(gate, Gate)
        return gate

    def gated_at(self, name: str, z_TN: Tensor, u_Tr: Tensor | None = None) -> Tensor:
        """z times the gate at a site, which reads u: [T, N]. Returns z if the site has no gate."""
        return self.gate(name).scaled(z_TN, u_Tr) if name in self.gates else z_TN


def gates_of(model: nn.Module) -> list[tuple[nn.Module, Site, Gate]]:
    """Every gate on a projection or branch of a model, with its module and its site."""
    found: list[tuple[nn.Module, Site, Gate]] = []
    for module in model.modules():
        if isinstance(module, CarriesGates):
            sites = {site.name: site for site in module.sites}
            for name in module.gates:  # a later site reads the same input
                found.append((module, sites.get(name, replace(module.sites[0], name=name)), module.gate(name)))
        elif (gating := getattr(module, "gating", None)) is not None:  # `library.gated.Gated`
            wrapped: Any = module
            found += [(module, site, wrapped.gate_at(name)) for name, (site, *_) in gating.sites.items()]
    return found


def read_by(gate: Gate, x_TD: Tensor) -> Tensor | None:
    """u = x A^T, [T, r], of the first channels of x if A has fewer columns; None if the gate does not read x."""
    A = gate.down_projection()
    return None if A is None else F.linear(first(x_TD, A.shape[1]), A)


def first(x_TC: Tensor, width: int) -> Tensor:
    """The first columns, or x itself if these are all: even a view of everything is an operation."""
    return x_TC if x_TC.shape[-1] == width else x_TC[..., :width]


def draw_gate_weight(draw: Draw, tensor: Tensor, name: str, init: GateInit) -> None:
    """Fill a gate's [fan_out, fan_in] matrix, or its [fan_out, C, k, k] filters (fan_in = C k k).

    `kaiming-uniform`: U(+-sqrt(6 / fan_in)) (He et al. 2015; stated by Transponder).
    `torch-linear`: U(+-1 / sqrt(fan_in)), as `nn.Linear` (CoMT's pseudo code).
    `normal`: N(0, 0.02^2), the model-wide initialisation that overwrote both in the original scripts.
    """
    fan_in = tensor.shape[1:].numel()
    match init:
        case "kaiming-uniform":
            draw.uniform_(tensor, name, math.sqrt(6 / fan_in))
        case "torch-linear":
            draw.uniform_(tensor, name, 1 / math.sqrt(fan_in))
        case "normal":
            draw.normal_(tensor, name, 0.02)
        case _:
            raise ValueError(f"init: {init!r} is not one of {', '.join(get_args(GateInit))}")


class ComtGate(Gate):
    """CoMT's modulator (Eq. 4): one scalar per token, `scale * sigmoid(B sigmoid(A x))`, without biases. [T, D] -> [T,
    1].

    gamma is in (0, 1) with the paper's `scale` of 1. With a scale of 2 it can start at 1.

    Examples:
        >>> ComtGate(64, hidden=2)(torch.randn(5, 64)).shape
        torch.Size([5, 1])
    """

    def __init__(self, d_in: int, hidden: int = 2, init: GateInit = "torch-linear", scale: Literal[1, 2] = 1) -> None:
        super().__init__()
        self.init, self.scale, self.factor_range = init, scale, (0.0, float(scale))
        self.zero_at_one = ("B",) if scale == 2 else ()
        self.A = nn.Parameter(torch.empty(hidden, d_in))
        self.B = nn.Parameter(torch.empty(1, hidden))

    def down_projection(self) -> Tensor:
        return self.A

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        assert u_Tr is not None
        gamma_T1 = comt_gate(u_Tr, self.B)
        return {"scalar": gamma_T1 if self.scale == 1 else self.scale * gamma_T1}

    def bottleneck(self) -> Bottleneck:
        return Bottleneck(None, self.B, float(self.scale))

    def initialise(self, draw: Draw) -> None:
        draw_gate_weight(draw, self.A, "A", self.init)
        draw_gate_weight(draw, self.B, "B", self.init)


Granularity = Literal["scalar", "channel", "channel-scalar"]
"""One number per token; one per channel of the output; both, multiplied."""


class TransponderGate(Gate):
    """Transponder's modulator (Eq. 4, 5): `2 sigmoid(alpha B sigmoid(A x))`. [T, D] -> [T, N], or [T, 1] for `scalar`.

    `channel-scalar` multiplies one factor per channel by one per token; one A serves both unless `separate_summaries`.
    alpha is exp(log_alpha), starts at 1, and is constant unless `learnable_sigmoid`.

    Examples:
        >>> TransponderGate(64, 48, rank=8)(torch.randn(5, 64)).shape
        torch.Size([5, 48])
    """

    factor_range = (0.0, 2.0)

    def __init__(
        self, d_in: int, d_out: int, rank: int = 8, init: GateInit = "kaiming-uniform",
        granularity: Granularity = "channel-scalar", *,
        learnable_sigmoid: bool = True, separate_summaries: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.init, self.rank = init, rank
        self.learnable, self.separate = learnable_sigmoid, separate_summaries
        if granularity not in get_args(Granularity):
            raise ValueError(f"granularity: {granularity!r} is not one of {', '.join(get_args(Granularity))}")
        self.kinds = granularity.split("-")
        self.zero_at_one = [f"B_{kind}" for kind in self.kinds]
        self.A = nn.Parameter(torch.empty(rank * (len(self.kinds) if self.separate else 1), d_in))
        self.joined_rows = {"A": [rank] * (len(self.A) // rank)}
        for kind in self.kinds:
            width = d_out if kind == "channel" else 1
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

    def scaled(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        if len(self.kinds) == 1 or self.separate:
            return super().scaled(z_TN, u_Tr)
        assert u_Tr is not None
        channel, scalar = ((self._matrix(kind), self._alpha(kind)) for kind in ("channel", "scalar"))
        return transponder_gated(z_TN, u_Tr, *channel, *scalar)

    def bottleneck(self) -> Bottleneck:
        matrices = {kind: self._matrix(kind) for kind in self.kinds}
        if self.separate:  # each kind reads its own half of u
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
    """Transponder without context (section 4.6): `2 sigmoid(alpha beta1 beta2)`, the same for every token. Any x ->
    [N].

    beta1 is a number that starts at 1; beta2 has one number per channel, 0 at the start. Both at 0 would have no
    gradient.

    Examples:
        >>> StaticGate(3)(torch.randn(5, 64)).tolist()
        [1.0, 1.0, 1.0]
    """

    factor_range = (0.0, 2.0)
    zero_at_one = ("beta2",)

    def __init__(self, d_out: int, *, learnable_sigmoid: bool = True) -> None:
        super().__init__()
        self.learnable = learnable_sigmoid
        self.beta1 = nn.Parameter(torch.empty(()))
        self.beta2 = nn.Parameter(torch.empty(d_out))
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
    """One factor per channel, `scale * sigmoid(x W^T)`, W: N x D (Qiu et al. 2025, with `scale` 1). [T, D] -> [T, N].

    W starts as N(0, 0.02^2), so factors start near half of `scale`. With `reads` the gate reads only the first channels
    of x: a number of them, or a share of D below 1, rounded. Raises `UserError` if x has fewer.

    Examples:
        >>> FullRankGate(64, 48)(torch.randn(5, 64)).shape
        torch.Size([5, 48])
        >>> FullRankGate(64, 48, reads=12).W.shape, FullRankGate(64, 48, reads=1 / 16).W.shape
        (torch.Size([48, 12]), torch.Size([48, 4]))
    """

    kind: Literal["channel", "head"] = "channel"

    def __init__(self, d_in: int, d_out: int, scale: Literal[1, 2] = 1, reads: float | None = None) -> None:
        super().__init__()
        self.scale, self.factor_range, self.zero_at_one = scale, (0.0, float(scale)), ("W",) if scale == 2 else ()
        read = d_in if reads is None else reads if isinstance(reads, int) else max(1, round(reads * d_in))
        if read > d_in:
            raise UserError(
                f"reads: {read} is more than the {d_in} channels of the gate's input", f"Name at most {d_in}."
            )
        self.W = nn.Parameter(torch.empty(d_out, read))

    def down_projection(self) -> Tensor:
        return self.W

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        assert u_Tr is not None
        gamma_TN = torch.sigmoid(u_Tr)
        return {self.kind: gamma_TN if self.scale == 1 else self.scale * gamma_TN}

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.W, "W", 0.02)


class HeadGate(FullRankGate):
    """One factor per head, `scale * sigmoid(x W^T)`, W: H x D (Qiu et al. 2025, head-wise). [T, D] -> [T, H].

    The channels of a head are adjacent in the output.

    Examples:
        >>> HeadGate(64, heads=4)(torch.randn(5, 64)).repeat_interleave(12, -1).shape
        torch.Size([5, 48])
    """

    kind = "head"

    def __init__(self, d_in: int, heads: int, scale: Literal[1, 2] = 1, reads: float | None = None) -> None:
        super().__init__(d_in, heads, scale, reads)

    def scaled(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        gamma_TH = self.values(u_Tr)["head"]
        z_THE = z_TN.view(*gamma_TH.shape, -1)
        return (z_THE * gamma_TH.unsqueeze(-1)).view_as(z_TN)


class EvaluatorAdjuster(Gate):
    """z + a * e of a site's output z, with a = tanh(W3 z + b3) and e = sigmoid(W2 relu(W1 z + b1) + b2) (Dhayalkar
    2024, second-hand). [T, N] -> [T, N].

    W1 is r x N, with r the `share` of N. The unit adds where other gates multiply, so it has no factors (`values`), and
    it reads the output z rather than the input of the site.

    Examples:
        >>> EvaluatorAdjuster(48)(torch.randn(5, 48)).shape
        torch.Size([5, 48])
    """

    zero_at_one = ("W3.weight", "W3.bias")

    def __init__(self, d_out: int, share: float = 0.25) -> None:
        super().__init__()
        rank = max(1, round(share * d_out))
        self.W1, self.W2, self.W3 = Affine(d_out, rank), Affine(rank, d_out), Affine(d_out, d_out)

    def down_projection(self) -> None:
        """None: the site's input is not read."""

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        """Empty: the unit does not multiply."""
        return {}

    def evaluation(self, z_TN: Tensor) -> Tensor:
        """e, [T, N], in (0, 1)."""
        return torch.sigmoid(self.W2(F.relu(self.W1(z_TN))))

    def forward(self, z_TN: Tensor) -> Tensor:
        e_TN = self.evaluation(z_TN)  # first: the order of gradient sums depends on it
        return z_TN + torch.tanh(self.W3(z_TN)) * e_TN

    def scaled(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        return self(z_TN)

    def initialise(self, draw: Draw) -> None:
        """Its three maps start like any `Affine`: N(0, 0.02^2), biases 0."""
