"""Connections of n residual streams H: Hyper-Connections (Zhu et al. 2024), and connections that mix the streams by
doubly stochastic matrices (mHC, DeepSeek-AI 2025; mHC-lite, 2026) or not at all (identity-HC).

All streams start as the embedding. After the last block their sum is read, or a learned mixture. At initialisation add
k reads only stream k mod n. All streams are then equal, which is Pre-LN, and the staggered reading lets them diverge.
While streams are equal, neither their reading weights nor their mixing weights have a gradient.

Compiled steps mix streams by sums of products, which the compiler fuses with neighbouring operations. Uncompiled steps
use products of small matrices, since each sum would be a separate call.

Shapes: B batch, T tokens, n streams, D width, K coefficients. Coefficients are computed in fp32. Static coefficients
and b are stored as their difference from the start.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.gates import no_autocast
from comt_cli.layers.gates import Site
from comt_cli.layers.initialise import Draw, Initialised, xavier_std
from comt_cli.layers.learned import NO_DECAY, Constant, Fixed, wide
from comt_cli.layers.residual.base import Branch, NormedResidual, OutputAggregation, ResidualSite, State
from comt_cli.layers.residual.norm_placement import WRITES_TO_STREAM
from comt_cli.layers.roles import Role

SCALE = 0.01
"""Initial scale of input-dependent coefficients."""


def read_streams(H_BTnD: Tensor, weights_n: Tensor) -> Tensor:
    """sum_i weights[i] H[i], [B, T, D], in the type of H; weights [n] or [B, T, n]."""
    with no_autocast(H_BTnD):
        if torch.compiler.is_compiling():
            h_BTD = (weights_n.unsqueeze(-1) * H_BTnD).sum(-2)
        else:
            h_BTD = torch.matmul(weights_n.unsqueeze(-2), H_BTnD.to(weights_n.dtype)).squeeze(-2)
    return h_BTD.to(H_BTnD.dtype)


def write_streams(H_BTnD: Tensor, mixing_nn: Tensor | None, weights_n: Tensor, o_BTD: Tensor) -> Tensor:
    """H'[m] = sum_i mixing[m, i] H[i] + weights[m] o, [B, T, n, D], in the type of H. Without `mixing`, streams are not
    mixed.

    mixing: [n, n] or [B, T, n, n], weights: [n] or [B, T, n].
    """
    with no_autocast(H_BTnD):
        if mixing_nn is not None and not torch.compiler.is_compiling():
            of_BTmD = torch.cat([H_BTnD, o_BTD.unsqueeze(-2)], -2)  # m: the streams, and the branch
            both_nm = torch.cat([mixing_nn, weights_n.unsqueeze(-1)], -1)
            return torch.matmul(both_nm, of_BTmD.to(both_nm.dtype)).to(H_BTnD.dtype)
        new_BTnD = weights_n.unsqueeze(-1) * o_BTD.unsqueeze(-2)
        if mixing_nn is None:
            return (H_BTnD + new_BTnD).to(H_BTnD.dtype)
        for i in range(H_BTnD.shape[-2]):
            new_BTnD = new_BTnD + mixing_nn[..., i].unsqueeze(-1) * H_BTnD[..., i, None, :]
        return new_BTnD.to(H_BTnD.dtype)


def normalised_products(x_BTD: Tensor, W_KD: Tensor) -> Tensor:
    """RMSNorm(x) W^T without a gain, [B, T, K], in fp32. The products are normalised, so that N(x) is never stored."""
    x_BTD, W_KD = wide(x_BTD), wide(W_KD)
    rstd_BT1 = torch.rsqrt(x_BTD.square().mean(-1, keepdim=True) + torch.finfo(x_BTD.dtype).eps)
    if torch.compiler.is_compiling():
        return rstd_BT1 * torch.stack([(x_BTD * W_D).sum(-1) for W_D in W_KD.unbind()], -1)
    return rstd_BT1 * F.linear(x_BTD, W_KD)


class Dynamic(Initialised):
    """Input-dependent parts of A_m, B and A_r: streams [B, T, n, D] -> [B, T, n], [B, T, n] and [B, T, n, n] (i, m).
    They are s_a tanh(Hbar W_m), s_b tanh(Hbar W_b), s_a tanh(Hbar W_r); Hbar: RMSNorm of each stream; W = 0 at the
    start."""

    role: Role = "gate"

    def __init__(self, n: int, width: int, *, tanh: bool) -> None:
        super().__init__()
        self.tanh, self.joined_rows = tanh, {"W": [1, 1, n]}
        self.W = nn.Parameter(torch.empty(n + 2, width))
        self.s_a, self.s_b = Constant(SCALE), Constant(SCALE)

    def forward(self, H_BTnD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with no_autocast(H_BTnD):
            found_BTnm = normalised_products(H_BTnD, self.W)
            found_BTnm = torch.tanh(found_BTnm) if self.tanh else found_BTnm
            s_a, s_b = self.s_a(), self.s_b()
            return s_a * found_BTnm[..., 0], s_b * found_BTnm[..., 1], s_a * found_BTnm[..., 2:]

    def initialise(self, draw: Draw) -> None:
        nn.init.zeros_(self.W)


class StreamsConnection(NormedResidual):
    """A connection of `n` streams."""

    def __init__(self, site: ResidualSite, n: int) -> None:
        super().__init__(site)
        self.n = n

    def streams(self, state: State) -> Tensor:
        """Streams, [B, T, n, D]; at the start of a stack n copies of the initial stream."""
        if state.has_streams:
            return state.x
        x_BTD = self.initial_stream(state)
        return x_BTD.unsqueeze(-2).expand(*x_BTD.shape[:-1], self.n, x_BTD.shape[-1])

    def matrices(self, H_BTnD: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weights of the streams in the branch's input, [n], of the branch in each new stream, [n], and of the old
        streams in each new one, [n, n] (None: the identity), in fp32; preceded by [B, T] if they depend on it."""
        raise NotImplementedError

    def read(self, state: State) -> Tensor:
        """Sum of the streams."""
        return self.streams(state).sum(-2)

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Weights of the branch's input (`read`), of every new stream (`mix`), and of the branch in them (`write`)."""
        reading, writing, mixing = self.matrices(self.streams(state))
        return {"read": reading} | ({} if mixing is None else {"mix": mixing}) | {"write": writing.unsqueeze(-1)}

    def step(self, state: State, branch: Branch) -> State:
        H_BTnD = self.streams(state)
        reading, writing, mixing = self.matrices(H_BTnD)
        o_BTD = branch(self.norm(read_streams(H_BTnD, reading)))
        return State(write_streams(H_BTnD, mixing, writing, o_BTD), has_streams=True)


class HyperConnection(StreamsConnection):
    """h = sum_i A_m[i] H[i], o = F(N(h)), H'[m] = sum_i A_r[i, m] H[i] + B[m] o; A_r starts as the identity and B as 1.

    `dynamic` adds input-dependent parts, bounded by `tanh`. `divide_output_std` divides the initial standard deviation
    of the branch's last projection by sqrt(n), one reading of the paper; the start is then no longer Pre-LN.
    """

    name = "hyper-connections"
    needs = ("states",)

    def __init__(
        self, site: ResidualSite, n: int = 4, *, dynamic: bool = True, tanh: bool = True,
        divide_output_std: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(site, n)
        self.reads_first, self.divide_output_std = site.index % n, divide_output_std
        self.A_m, self.B = Constant(0.0, n, update_rule=NO_DECAY), Constant(0.0, n, update_rule=NO_DECAY)
        self.A_r = Constant(0.0, n, n, update_rule=NO_DECAY)
        self.dynamic = Dynamic(n, site.width, tanh=tanh) if dynamic else None

    def matrices(self, H_BTnD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A_m, B, and A_r transposed."""
        one_hot = (torch.arange(self.n, device=H_BTnD.device) == self.reads_first).float()
        A_m, B = one_hot + self.A_m(), 1 + wide(self.B())
        A_r = torch.eye(self.n, device=H_BTnD.device) + self.A_r()
        if self.dynamic is not None:
            more_m, more_B, more_r = self.dynamic(H_BTnD)
            A_m, B, A_r = A_m + more_m, B + more_B, A_r + more_r
        return A_m, B, A_r.transpose(-1, -2)

    def initial_std(self, site: Site, own: float) -> float:
        divides = self.divide_output_std and site.name in WRITES_TO_STREAM
        return own / self.n**0.5 if divides else own


Mixing = Literal["sinkhorn", "permutations", "identity"]
Start = Literal["pre-ln", "mhc-lite", "random"]

SHUT = -8.0
"""Initial logit of entries that H_res leaves out: exp(-8) is 0.0003."""


def sinkhorn(logits_nn: Tensor, iterations: int = 20) -> Tensor:
    """exp(logits), [..., n, n], with columns and then rows divided by their sums, `iterations` times. The first
    iteration uses logarithms: with logits hundreds apart, a whole column of exponentials would be 0. After it no column
    sum, and then no row sum, is below 1 / n. Tokens are the innermost dimension, because n is small."""
    logits_nn = logits_nn.movedim((-2, -1), (0, 1)).contiguous()
    logits_nn = logits_nn - logits_nn.logsumexp(0, keepdim=True)
    found_nn = (logits_nn - logits_nn.logsumexp(1, keepdim=True)).exp()
    for _ in range(iterations - 1):
        found_nn = found_nn / found_nn.sum(0, keepdim=True)
        found_nn = found_nn / found_nn.sum(1, keepdim=True)
    return found_nn.movedim((0, 1), (-2, -1))


class Coefficients(Initialised):
    """alpha (x' phi) + b: streams [B, T, n, D] -> logits [B, T, K] for each of the lists in `first_b`, where b starts.
    `width` is n D. phi starts at 0, or is drawn by Glorot's rule if `random`."""

    role: Role = "gate"

    def __init__(self, width: int, *first_b: list[float], random: bool) -> None:
        super().__init__()
        self.sizes, self.random = [len(part) for part in first_b], random
        self.phi = nn.Parameter(torch.empty(sum(self.sizes), width))
        self.joined_rows = {"phi": self.sizes}
        self.alpha = Constant(SCALE, len(self.sizes), update_rule=NO_DECAY)
        self.b = Constant(0.0, sum(self.sizes), update_rule=NO_DECAY)
        self.first_b = Fixed(partial(torch.tensor, [*itertools.chain(*first_b)]))

    def forward(self, H_BTnD: Tensor) -> tuple[Tensor, ...]:
        with no_autocast(H_BTnD):
            found = torch.split(normalised_products(H_BTnD.flatten(-2), self.phi), self.sizes, dim=-1)
            b = torch.split(self.b() + self.first_b(H_BTnD), self.sizes)
            each = zip(self.alpha().unbind(), found, b, strict=True)
            return tuple(scale * part + bias for scale, part, bias in each)

    def initialise(self, draw: Draw) -> None:
        if self.random:
            draw.normal_(self.phi, "phi", xavier_std(self.phi.shape[1], self.phi.shape[0]))
        else:
            nn.init.zeros_(self.phi)


class ManifoldHyperConnection(StreamsConnection):
    """h = sum_i H_pre[i] x[i], o = F(N(h)), x[i] <- sum_j H_res[i, j] x[j] + H_post[i] o, with Ht = alpha (x' phi) + b,
    where x' is the RMSNorm of all streams concatenated, H_pre = sigmoid(Ht), H_post = 2 sigmoid(Ht), and H_res = M(Ht).

    `mixing` is M: `sinkhorn`, 20 iterations with exact rows; `permutations`, the exact mean of all n! permutations with
    weights softmax(Ht); or `identity`, without parameters. `start`: `pre-ln` has phi = 0, b_pre = 1 for the stream that
    is read and -1 for the others, b_post = 0, and H_res close to the identity; `mhc-lite`, as in its code, has b_post =
    b_pre; `random`, as in Megatron-LM, draws phi by Glorot's rule and has b = 0. `read_out`: the sum of the streams, or
    `LearnedReadOut`.
    """

    name = "manifold-hyper-connections"
    needs = ("states",)

    def __init__(
        self, site: ResidualSite, n: int = 4, mixing: Mixing = "sinkhorn", start: Start = "pre-ln",
        read_out: Literal["sum", "learned"] = "sum",
    ) -> None:  # fmt: skip
        super().__init__(site, n)
        self.form, self.learns_read_out = mixing, read_out == "learned"
        K, least_mixed = {
            "sinkhorn": (n * n, [i * n + i for i in range(n)]),
            "permutations": (math.factorial(n), [0]),
            "identity": (0, []),
        }[mixing]
        if mixing == "permutations":
            orders = itertools.permutations(range(n))  # the identity is the first
            self.permutations = Fixed(lambda: torch.stack([torch.eye(n)[list(order)] for order in orders]))
        one_hot = [1.0 if i == site.index % n else -1.0 for i in range(n)]
        shut = [0.0 if i in least_mixed else SHUT for i in range(K)]
        first_b = {
            "pre-ln": [one_hot, [0.0] * n, shut],
            "mhc-lite": [one_hot, one_hot, shut],
            "random": [[0.0] * n, [0.0] * n, [0.0] * K],
        }[start]
        self.coefficients = Coefficients(n * site.width, *filter(None, first_b), random=start == "random")

    def matrices(self, H_BTnD: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """H_pre, H_post and H_res."""
        pre, post, *res = self.coefficients(H_BTnD)
        H_res: Tensor | None = None
        match self.form:
            case "sinkhorn":
                H_res = sinkhorn(res[0].unflatten(-1, (self.n, self.n)))
            case "permutations":
                H_res = torch.einsum("...k,kij->...ij", torch.softmax(res[0], -1), self.permutations(H_BTnD).to(res[0]))
        return torch.sigmoid(pre), 2 * torch.sigmoid(post), H_res

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation | None:
        if not self.learns_read_out:
            return None
        return LearnedReadOut(self.site, self.n, random=self.coefficients.random)


class LearnedReadOut(OutputAggregation):
    """sum_i sigmoid(alpha (x' phi) + b)[i] x[i] after the last block. b starts at 0 and phi as in the connections, so
    every stream has the weight 1/2: half the sum, of which the final norm removes the factor."""

    def __init__(self, site: ResidualSite, n: int, *, random: bool) -> None:
        super().__init__(site)
        self.coefficients = Coefficients(n * site.width, [0.0] * n, random=random)

    def weights(self, H_BTnD: Tensor) -> Tensor:
        """Weights of the streams, [B, T, n], in fp32."""
        return torch.sigmoid(self.coefficients(H_BTnD)[0])

    def mixing(self, state: State) -> dict[str, Tensor]:
        return {"read": self.weights(state.x)}

    def forward(self, state: State) -> Tensor:
        return read_streams(state.x, self.weights(state.x))
