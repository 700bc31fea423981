"""Residual adds whose terms have factors: fixed, learned, scheduled (ProRes), the weights of LAuReL (Menghani et al.
2024), or gates: Highway (Srivastava et al. 2015), Gated Residual Connections (Dhayalkar 2024), Self-Adaptive Scaling
(SAS, 2019). N is the norm of the branch F.

A layer of LAuReL is a residual add here, two per block. The paper does not state the start. Here both weights start at
1/2 and the k numbers g, one set per add, at 1/k. B is zero, so LR and PA start as the ordinary connection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import Affine, Constant, GateMap, LowRank, factors, wide
from comt_cli.layers.residual.base import Branch, NormedResidual, ResidualConnection, ResidualSite, State
from comt_cli.layers.roles import Role

Scale = float | Literal["depth", "learned"]


class ScaledBranch(NormedResidual):
    """y = x + s F(N(x)). s is fixed, learned (1 at the start), or with `depth` 1 / sqrt(L) of L blocks: the sum of L
    independent branches then has the variance of one."""

    name = "scaled"

    def __init__(self, site: ResidualSite, scale: Scale = 0.1) -> None:
        super().__init__(site)
        self.learned = Constant(1.0) if scale == "learned" else None
        self.fixed = 1 / math.sqrt(site.layers) if isinstance(scale, str) else scale

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        s = self.fixed if self.learned is None else self.learned()
        return x_BTD + s * branch(self.norm(x_BTD))


class ReZero(ResidualConnection):
    """y = x + a F(x) (Bachlechner et al. 2021), without norms, a = 0 at the start, one a for all adds of a block."""

    name = "rezero"
    keeps_final_norm = False

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        shared = [earlier.a for earlier in site.before if isinstance(earlier, ReZero)]
        self.a: Constant = shared[0] if shared else Constant(0.0)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + self.a() * branch(x_BTD)


class FollowsTraining(Initialised):
    """A number that depends on the `number` of the training update, from 0. It is a buffer, so it is stored in
    checkpoints. Outside training it keeps the value of the last update."""

    value: Tensor

    def __init__(self, number: Callable[[int], float]) -> None:
        super().__init__()
        self.number = number
        self.register_buffer("value", torch.empty(()))

    def at_update(self, update: int) -> None:
        self.value.fill_(self.number(update))

    def initialise(self, draw: Draw) -> None:
        self.at_update(0)


class ProgressiveResidual(NormedResidual):
    """Progressive residuals (ProRes, 2026, arXiv 2603.05369): y = x + a F(N(x)), a = min(t / (T l), 1) at update t in
    block l, from 1; T is `updates`. At update 0, y = x. Nothing is learned."""

    name = "progressive"
    needs = ("states",)

    def __init__(self, site: ResidualSite, updates: int = 1000) -> None:
        super().__init__(site)
        length = updates * (site.layer + 1)
        self.share = FollowsTraining(lambda update: min(update / length, 1.0))

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + self.share.value.to(x_BTD.dtype) * branch(self.norm(x_BTD))


class Highway(NormedResidual):
    """y = T(x) F(N(x)) + (1 - T(x)) x, T(x) = sigmoid(W x + b), where T reads the stream before the norm. A negative b
    starts the network near the identity."""

    name = "highway"

    def __init__(self, site: ResidualSite, bias: float = -2.0) -> None:
        super().__init__(site)
        self.transform_gate = GateMap(site.width, site.width, bias)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        T_BTD = torch.sigmoid(self.transform_gate(x_BTD))
        return x_BTD + T_BTD * (branch(self.norm(x_BTD)) - x_BTD)


class GatedResidual(NormedResidual):
    """y = x + g F(N(x)), or with `norm: post` y = N(x + g F(x)). g = sigmoid(W . + b) reads x, F, or both concatenated.
    With `at: ffn` only the add of the feed-forward network is gated."""

    name = "grc"

    def __init__(
        self, site: ResidualSite, reads: Literal["skip", "sublayer", "both"] = "skip", *,
        at: Literal["all", "ffn"] = "all", norm: Literal["pre", "post"] = "pre",
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.reads = reads
        self.ends_in_norm = norm == "post"
        is_gated = at == "all" or site.part == "mlp"
        self.gate = GateMap(site.width * (2 if reads == "both" else 1), site.width) if is_gated else None

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        s_BTD = branch(x_BTD if self.ends_in_norm else self.norm(x_BTD))
        if self.gate is not None:
            read = {"skip": (x_BTD,), "sublayer": (s_BTD,), "both": (x_BTD, s_BTD)}[self.reads]
            s_BTD = torch.sigmoid(self.gate(torch.cat(read, dim=-1) if len(read) > 1 else read[0])) * s_BTD
        y_BTD = x_BTD + s_BTD
        return self.norm(y_BTD) if self.ends_in_norm else y_BTD


Bound = Literal["softmax", "sigmoid"]
"""Bound of a and b to (0, 1): `softmax` makes their sum 1, `sigmoid` bounds each separately."""


class _Weights(Constant):
    """(a, b), both 1/2 at the start."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(0.0, 2)
        self.bound = bound

    def forward(self) -> Tensor:
        value_2 = wide(self.value)
        return torch.softmax(value_2, 0) if self.bound == "softmax" else torch.sigmoid(value_2)


class LaurelRW(NormedResidual):
    """y = a F(N(x)) + b x."""

    name = "laurel-rw"

    def __init__(self, site: ResidualSite, bound: Bound = "softmax") -> None:
        super().__init__(site)
        self.weights = _Weights(bound)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        a_1, b_1 = factors(self.weights())
        return (a_1 * branch(self.norm(x_BTD)) + b_1 * x_BTD).to(x_BTD.dtype)


class LaurelLR(NormedResidual):
    """y = F(N(x)) + x + B A x."""

    name = "laurel-lr"

    def __init__(self, site: ResidualSite, rank: int = 32) -> None:
        super().__init__(site)
        self.low_rank = LowRank(site.width, rank)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return branch(self.norm(x_BTD)) + x_BTD + self.low_rank(x_BTD)


class LaurelRWLR(NormedResidual):
    """y = a F(N(x)) + b (x + B A x)."""

    name = "laurel-rw-lr"

    def __init__(self, site: ResidualSite, rank: int = 32, bound: Bound = "softmax") -> None:
        super().__init__(site)
        self.low_rank = LowRank(site.width, rank)
        self.weights = _Weights(bound)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        a_1, b_1 = factors(self.weights())
        return (a_1 * branch(self.norm(x_BTD)) + b_1 * (x_BTD + self.low_rank(x_BTD))).to(x_BTD.dtype)


class LaurelPA(NormedResidual):
    """y = F(N(x)) + x + B A (sum over j of g_j x_(i-j)). The map is linear, so the sum is computed first. The sources
    of the state are the inputs of earlier adds, newest first; there are fewer at the start of a stack."""

    name = "laurel-pa"

    def __init__(self, site: ResidualSite, rank: int = 32, history: int = 3) -> None:
        super().__init__(site)
        self.low_rank = LowRank(site.width, rank)
        self.history = history
        # The first adds have fewer earlier activations; further weights would never be trained.
        self.g = Constant(1 / history, min(history, site.index + 1))

    def forward(self, x_BTD: Tensor, branch: Branch, past: Sequence[Tensor] = ()) -> Tensor:
        g_k = self.g()
        mixed_BTD = g_k[0] * x_BTD
        for weight, earlier_BTD in zip(g_k[1:], past, strict=True):
            mixed_BTD = mixed_BTD + weight * earlier_BTD
        return branch(self.norm(x_BTD)) + x_BTD + self.low_rank(mixed_BTD)

    def step(self, state: State, branch: Branch) -> State:
        x_BTD = state.stream
        return State(self(x_BTD, branch, state.sources), (x_BTD, *state.sources)[: self.history - 1])


GateKind = Literal["two-layer", "single-layer"]
Reads = Literal["pooled", "pixel"]


class ScalingGate(nn.Module):
    """[x; F], [B, T, 2 D] -> [B, T, 1]: sigmoid(tanh([x; F] W_f + b_f) W_ff + b_ff), or for `single-layer` sigmoid([x;
    F] W + b) (SAS, Table 6). The last bias starts at `bias`."""

    role: Role = "gate"

    def __init__(self, kind: GateKind, width: int, bias: float) -> None:
        super().__init__()
        self.hidden = Affine(2 * width, width) if kind == "two-layer" else None
        self.output = Affine(2 * width if self.hidden is None else width, 1, bias)

    def forward(self, both_BTd: Tensor) -> Tensor:
        """`both` is [x; F]."""
        return torch.sigmoid(self.output(both_BTd if self.hidden is None else torch.tanh(self.hidden(both_BTd))))


def both_read(x_BTD: Tensor, F_BTD: Tensor, reads: Reads) -> Tensor:
    """[x; F], the input of a gate, [B, T, 2 D]; with `pooled` its mean over the pixels, [B, 1, 1, 2 D]."""
    return torch.cat([as_read(x_BTD, reads), as_read(F_BTD, reads)], dim=-1)


def as_read(x_BTD: Tensor, reads: Reads) -> Tensor:
    """Input of a gate, a map or tokens: unchanged, or with `pooled` its mean over the pixels, [B, 1, 1, D]."""
    return x_BTD.mean(dim=tuple(range(1, x_BTD.ndim - 1)), keepdim=True) if reads == "pooled" else x_BTD


class SelfAdaptiveScaling(ResidualConnection):
    """y = a x + b F(x) + c N(x + F(x)) (SAS, Eq. 2 to 4), with one a, b and c per token; c = (1 - a)(1 - b), or a third
    gate if `gamma` is `free`.

    As published, F reads the stream without a norm before it: a = b = 0 is Post-LN. The paper leaves two points open
    for feature maps, [B, H, W, D], which are arguments: whether gates read every pixel or the mean over pixels
    (`reads`), and the norm N, made by `norm` from the width.
    """

    name = "sas"
    ends_in_norm = True  # the third term does; the gates weight the other two

    def __init__(
        self, site: ResidualSite, alpha_bias: float = 0.0, beta_bias: float = 0.0, *, gate: GateKind = "two-layer",
        reads: Reads = "pixel", norm: Callable[[int], nn.Module] | None = None,
        gamma: Literal["product", "free"] = "product", gamma_bias: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.reads = reads
        self.norm = site.norm() if norm is None else norm(site.width)
        self.alpha_gate, self.beta_gate = (ScalingGate(gate, site.width, bias) for bias in (alpha_bias, beta_bias))
        self.gamma_gate = ScalingGate(gate, site.width, gamma_bias) if gamma == "free" else None

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        F_BTD = branch(x_BTD)
        both_BTd = both_read(x_BTD, F_BTD, self.reads)
        a_BT1, b_BT1 = self.alpha_gate(both_BTd), self.beta_gate(both_BTd)
        c_BT1 = (1 - a_BT1) * (1 - b_BT1) if self.gamma_gate is None else self.gamma_gate(both_BTd)
        return a_BT1 * x_BTD + b_BT1 * F_BTD + c_BT1 * self.norm(x_BTD + F_BTD)


class GatedShare(NormedResidual):
    """y = g F(N(x)) + (1 - g) x, with g one of SAS's gates, or for `transform` Highway's gate, which reads x alone."""

    def __init__(
        self, site: ResidualSite, gate: Literal["transform"] | GateKind = "two-layer", bias: float = -3.0,
        reads: Reads = "pixel",
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.reads, self.reads_x_alone = reads, gate == "transform"
        width = site.width
        self.gate = GateMap(width, width, bias) if gate == "transform" else ScalingGate(gate, width, bias)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        F_BTD = branch(self.norm(x_BTD))
        if self.reads_x_alone:
            g = torch.sigmoid(self.gate(as_read(x_BTD, self.reads)))
        else:
            g = self.gate(both_read(x_BTD, F_BTD, self.reads))
        return x_BTD + g * (F_BTD - x_BTD)
