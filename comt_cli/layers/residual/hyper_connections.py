"""Hyper-Connections (Zhu et al. 2024, arXiv 2409.19606): n residual streams, of which each branch reads a mixture, and
to each of which it adds its output, weighted.

    h = sum_i A_m[i] H[i]     o = F(N(h))     H'[m] = sum_i A_r[i, m] H[i] + B[m] o

All streams start as the embedding, and their sum is read behind the last block. At the start A_r is the identity, B is
1, and A_m reads stream k mod n at add k alone: n equal streams, which is Pre-LN; the staggered reading parts them.
At the first add the streams are equal, and A_m gives h a size alone, which N takes away: there it has no gradient.

Dynamic ones add, with Hbar[i] the RMSNorm of stream i without a gain,

    A_m += s_a tanh(Hbar W_m)     B += s_b tanh(Hbar W_b)     A_r += s_a tanh(Hbar W_r)

W_m and W_b in R^D and W_r in R^(D x n) serve all streams; they start at 0 and the scales s at 0.01.

Compiled, streams are mixed by sums of products, which the compiler fuses with the operations around them; uncompiled,
where each sum would be a call, by products of small matrices.

Shapes: B batch, T tokens, n streams, D width. Coefficients are computed in fp32; static ones are stored as what they
differ from the start by.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.gates import no_autocast
from comt_cli.layers.gates import Site
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import NO_DECAY, Constant, wide
from comt_cli.layers.residual.base import Branch, NormedResidual, ResidualSite, State
from comt_cli.layers.residual.norm_placement import WRITES_TO_STREAM

SCALE = 0.01
"""Start of the scales of input-dependent coefficients."""


def read_streams(H_BTnD: Tensor, weights_n: Tensor) -> Tensor:
    """sum_i weights[i] H[i], [B, T, D], in H's type; weights [n] or [B, T, n]."""
    with no_autocast(H_BTnD):
        if torch.compiler.is_compiling():
            h_BTD = (weights_n.unsqueeze(-1) * H_BTnD).sum(-2)
        else:
            h_BTD = torch.matmul(weights_n.unsqueeze(-2), H_BTnD.to(weights_n.dtype)).squeeze(-2)
    return h_BTD.to(H_BTnD.dtype)


def write_streams(H_BTnD: Tensor, mixing_nn: Tensor | None, weights_n: Tensor, o_BTD: Tensor) -> Tensor:
    """H'[m] = sum_i mixing[m, i] H[i] + weights[m] o, [B, T, n, D], in H's type; None mixes nothing.

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
    """RMSNorm(x) W^T without a gain, [B, T, K], in fp32: the norm is taken out of the products, so that it is no tensor
    of its own."""
    x_BTD, W_KD = wide(x_BTD), wide(W_KD)
    rstd_BT1 = torch.rsqrt(x_BTD.square().mean(-1, keepdim=True) + torch.finfo(x_BTD.dtype).eps)
    if torch.compiler.is_compiling():
        return rstd_BT1 * torch.stack([(x_BTD * W_D).sum(-1) for W_D in W_KD.unbind()], -1)
    return rstd_BT1 * F.linear(x_BTD, W_KD)


class Dynamic(Initialised):
    """Input-dependent parts of A_m, B and A_r: streams [B, T, n, D] -> [B, T, n], [B, T, n] and [B, T, n, n] (i, m)."""

    def __init__(self, n: int, width: int, *, tanh: bool) -> None:
        super().__init__()
        self.tanh = tanh
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
        """Streams, [B, T, n, D]: at the start of a stack, and only there, n times the initial stream."""
        if state.has_streams:
            return state.x
        x_BTD = self.initial_stream(state)
        return x_BTD.unsqueeze(-2).expand(*x_BTD.shape[:-1], self.n, x_BTD.shape[-1])

    def read(self, state: State) -> Tensor:
        """The sum of the streams, as behind the last block."""
        return self.streams(state).sum(-2)


class HyperConnection(StreamsConnection):
    """`n` streams; `dynamic` and `tanh` as above; `divide_output_std`: the branch's last projection starts with its
    standard deviation divided by sqrt(n), one reading of the paper, which is then no longer Pre-LN's start."""

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

    def coefficients(self, H_BTnD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A_m, [n], B, [n], and A_r, [n, n] (i, m); dynamic ones have [B, T] before that. In fp32."""
        one_hot = (torch.arange(self.n, device=H_BTnD.device) == self.reads_first).float()
        A_m, B = one_hot + self.A_m(), 1 + wide(self.B())
        A_r = torch.eye(self.n, device=H_BTnD.device) + self.A_r()
        if self.dynamic is None:
            return A_m, B, A_r
        more = self.dynamic(H_BTnD)
        return A_m + more[0], B + more[1], A_r + more[2]

    def mixing(self, state: State) -> dict[str, Tensor]:
        """A_m, of the branch; A_r, of every new stream; B, of the branch's output."""
        A_m, B, A_r = self.coefficients(self.streams(state))
        return {"read": A_m, "mix": A_r.transpose(-1, -2), "write": B.unsqueeze(-1)}

    def step(self, state: State, branch: Branch) -> State:
        H_BTnD = self.streams(state)
        A_m, B, A_r = self.coefficients(H_BTnD)
        o_BTD = branch(self.norm(read_streams(H_BTnD, A_m)))
        return State(write_streams(H_BTnD, A_r.transpose(-1, -2), B, o_BTD), has_streams=True)

    def initial_std(self, site: Site, own: float) -> float:
        divides = self.divide_output_std and site.name in WRITES_TO_STREAM
        return own / self.n**0.5 if divides else own
