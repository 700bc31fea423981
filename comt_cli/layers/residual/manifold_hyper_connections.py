"""Manifold-constrained Hyper-Connections (mHC, DeepSeek-AI 2025, arXiv 2512.24880), mHC-lite (arXiv 2601.05732), and
those whose streams are not mixed (identity-HC).

With x' the RMSNorm of all n streams side by side, without a gain, and three learned scales alpha,

    Ht = alpha (x' phi) + b     H_pre = sigmoid(Ht_pre)     H_post = 2 sigmoid(Ht_post)     H_res = M(Ht_res)
    h = sum_i H_pre[i] x[i]     o = F(N(h))                 x[i] <- sum_j H_res[i, j] x[j] + H_post[i] o

M makes a doubly stochastic matrix, so that the sum of the streams passes through any depth unchanged:
- `sinkhorn` divides exp(Ht_res) 20 times by the sums of its columns and then of its rows: rows are exact, each new
  stream is a weighted mean;
- `permutations` (mHC-lite) takes the mean of all n! permutation matrices with the weights softmax(Ht_res): exact;
- `identity` has H_res = I, and no parameters for it.

The papers do not say where b and phi start, nor how streams are read behind the last block; here their sum is. `start`:
- `pre-ln`: phi = 0, b_pre is 1 for stream k mod n at add k and -1 for the others, b_post = 0, and b_res makes
  H_res all but the identity (0 on the diagonal or identity permutation, -8 elsewhere). Streams are then equal, and N
  takes the size of h away: Pre-LN. The staggered reading parts them; with equal b_pre they would never part.
- `mhc-lite`: as the code of mHC-lite, b_post = b_pre: branches write to one stream more than to the others.
- `random`: as Megatron-LM, phi by Glorot's draw and b = 0: H_pre = 1/2, H_res = 1/n, and the streams are equal but for
  what phi does.

At two adds a part of phi and b can do nothing. At the first the streams are equal: H_res makes the same of them, and
H_pre gives h a size alone, which N takes away. Behind the last they are summed, and H_res does not change the sum.

Shapes: B batch, T tokens, n streams, D width, K coefficients. Coefficients are computed in fp32, and b is stored as
what it differs from the start by.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from comt_cli.kernels.gates import no_autocast
from comt_cli.layers.initialise import Draw, Initialised, xavier_std
from comt_cli.layers.learned import NO_DECAY, Constant, Fixed
from comt_cli.layers.residual.base import Branch, ResidualSite, State
from comt_cli.layers.residual.hyper_connections import (
    SCALE,
    StreamsConnection,
    normalised_products,
    read_streams,
    write_streams,
)

Mixing = Literal["sinkhorn", "permutations", "identity"]
Start = Literal["pre-ln", "mhc-lite", "random"]

SHUT = -8.0
"""The logit of what H_res leaves out at the start: exp(-8) is 0.0003."""


def sinkhorn(logits_nn: Tensor, iterations: int = 20) -> Tensor:
    """exp(logits), [..., n, n], with the columns and then the rows divided by their sums, so many times.

    The first time in logarithms: where logits are hundreds apart, a whole column of exponentials would be 0. After it
    no column's sum is below 1 / n, nor any row's after that. Tokens lie innermost, where n is a few."""
    logits_nn = logits_nn.movedim((-2, -1), (0, 1)).contiguous()
    logits_nn = logits_nn - logits_nn.logsumexp(0, keepdim=True)
    found_nn = (logits_nn - logits_nn.logsumexp(1, keepdim=True)).exp()
    for _ in range(iterations - 1):
        found_nn = found_nn / found_nn.sum(0, keepdim=True)
        found_nn = found_nn / found_nn.sum(1, keepdim=True)
    return found_nn.movedim((0, 1), (-2, -1))


def permutation_matrices(n: int) -> Tensor:
    """All n! of them, [n!, n, n]; the identity is the first."""
    return torch.stack([torch.eye(n)[list(order)] for order in itertools.permutations(range(n))])


class Coefficients(Initialised):
    """alpha (x' phi) + b: streams [B, T, n, D] -> logits of H_pre and of H_post, [B, T, n], and of H_res, [B, T, K]."""

    def __init__(self, n: int, width: int, mixing: int, start: Start, reads_first: int, least_mixed: list[int]) -> None:
        """`mixing` is K, of which those in `least_mixed` begin at 0 and the others shut."""
        super().__init__()
        self.sizes, self.random = [n, n, mixing], start == "random"
        self.phi = nn.Parameter(torch.empty(2 * n + mixing, n * width))
        self.alpha = Constant(SCALE, 3 if mixing else 2, update_rule=NO_DECAY)
        self.b = Constant(0.0, 2 * n + mixing, update_rule=NO_DECAY)
        one_hot = [1.0 if i == reads_first else -1.0 for i in range(n)]
        shut = [0.0 if i in least_mixed else SHUT for i in range(mixing)]
        first_b = {
            "pre-ln": [*one_hot, *[0.0] * n, *shut],
            "mhc-lite": [*one_hot, *one_hot, *shut],
            "random": [0.0] * (2 * n + mixing),
        }[start]
        self.first_b = Fixed(partial(torch.tensor, first_b))

    def forward(self, H_BTnD: Tensor) -> tuple[Tensor, ...]:
        with no_autocast(H_BTnD):
            found = torch.split(normalised_products(H_BTnD.flatten(-2), self.phi), self.sizes, dim=-1)
            b = torch.split(self.b() + self.first_b(H_BTnD), self.sizes)
            alpha = [*self.alpha().unbind(), *([None] if not self.sizes[2] else [])]
            return tuple(
                part if scale is None else scale * part + bias
                for scale, part, bias in zip(alpha, found, b, strict=True)
            )

    def initialise(self, draw: Draw) -> None:
        if self.random:
            draw.normal_(self.phi, "phi", xavier_std(self.phi.shape[1], self.phi.shape[0]))
        else:
            nn.init.zeros_(self.phi)


class ManifoldHyperConnection(StreamsConnection):
    """`n` streams; `mixing` and `start` as above."""

    name = "manifold-hyper-connections"
    needs = ("states",)

    def __init__(self, site: ResidualSite, n: int = 4, mixing: Mixing = "sinkhorn", start: Start = "pre-ln") -> None:
        super().__init__(site, n)
        self.form = mixing
        K, least_mixed = {
            "sinkhorn": (n * n, [i * n + i for i in range(n)]),
            "permutations": (math.factorial(n), [0]),
            "identity": (0, []),
        }[mixing]
        if mixing == "permutations":
            self.permutations = Fixed(partial(permutation_matrices, n))
        self.coefficients = Coefficients(n, site.width, K, start, site.index % n, least_mixed)

    def matrices(self, H_BTnD: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """H_pre and H_post, [B, T, n], and H_res, [B, T, n, n] (None: the identity), in fp32."""
        pre, post, res = self.coefficients(H_BTnD)
        H_res: Tensor | None = None
        match self.form:
            case "sinkhorn":
                H_res = sinkhorn(res.unflatten(-1, (self.n, self.n)))
            case "permutations":
                H_res = torch.einsum("...k,kij->...ij", torch.softmax(res, -1), self.permutations(res).to(res))
        return torch.sigmoid(pre), 2 * torch.sigmoid(post), H_res

    def mixing(self, state: State) -> dict[str, Tensor]:
        """H_pre, of the branch; H_res, of every new stream; H_post, of the branch's output."""
        H_pre, H_post, H_res = self.matrices(self.streams(state))
        return {"read": H_pre, "write": H_post.unsqueeze(-1)} | ({} if H_res is None else {"mix": H_res})

    def step(self, state: State, branch: Branch) -> State:
        H_BTnD = self.streams(state)
        H_pre, H_post, H_res = self.matrices(H_BTnD)
        o_BTD = branch(self.norm(read_streams(H_BTnD, H_pre)))
        return State(write_streams(H_BTnD, H_res, H_post, o_BTD), has_streams=True)
