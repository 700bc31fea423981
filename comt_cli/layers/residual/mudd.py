"""Multiway dynamic dense connections (MUDDFormer, Xiao et al. 2025, arXiv 2502.12170): behind block i the next block's
queries, keys, values and stream are each a mixture of all blocks' outputs, of shares that depend on the token.

    Xbar_c = sum_j A_cj X_j, c in Q, K, V, R     A = GELU(N(X_i) W1) W2 + a

X_0 is the embedding and X_i what block i puts out, N has no gain, W1 is [D, K] and W2 [K, K], K = 4 (i + 1). The next
block then is h = Xbar_R + attention(N_Q(Xbar_Q), N_K(Xbar_K), N_V(Xbar_V)), X = h + mlp(N(h)). At the start W2 = 0 and
a has 1 at X_i alone: Pre-LN. Behind the last block only the stream is mixed: W1 is as wide as elsewhere, W2 [K, L + 1].

Shapes: B batch, T tokens, D width, C ways, J sources, K hidden width. Shares and sums are computed in fp32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.transponder import no_autocast
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import NO_DECAY, Constant, wide
from comt_cli.layers.residual.base import Branch, Junction, ReadOut, ResidualConnection, Sources, State, Ways, stream_of

WAYS = 4


class DenseShares(Initialised):
    """A, less what the static part starts at: X [B, T, D] -> [B, T, C, J], in fp32."""

    def __init__(self, width: int, ways: int, sources: int) -> None:
        super().__init__()
        self.shape = ways, sources
        K = WAYS * sources
        self.W1, self.W2 = nn.Parameter(torch.empty(K, width)), nn.Parameter(torch.empty(ways * sources, K))
        self.a = Constant(0.0, ways * sources, update_rule=NO_DECAY)

    def forward(self, x_BTD: Tensor) -> Tensor:
        with no_autocast(x_BTD):
            hidden_BTK = F.gelu(F.linear(F.rms_norm(wide(x_BTD), x_BTD.shape[-1:]), wide(self.W1)))
            shares_BTCJ: Tensor = (F.linear(hidden_BTK, wide(self.W2)) + self.a()).unflatten(-1, self.shape)
        return shares_BTCJ

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.W1, "W1", self.W1.shape[1] ** -0.5)
        nn.init.zeros_(self.W2)


class MultiwayDense(ResidualConnection):
    """y = x + F(N(x)), attention behind the first block reading three ways, each with a norm of its own; behind the
    block's last junction the mixtures."""

    has_states = has_ways = True

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        if junction.part == "attention" and junction.layer > 0:  # `norm` is that of the queries
            self.key_norm, self.value_norm = junction.norm(), junction.norm()
        self.ends_block = junction.part == "mlp"
        is_last = junction.index == junction.count - 1
        ways = 1 if is_last else WAYS
        self.dense = DenseShares(junction.width, ways, junction.layer + 2) if self.ends_block else None

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Each output's share in what a block behind the first begins with."""
        if not isinstance(state, Ways):
            return {}
        return dict(zip(("queries", "keys", "values", "stream"), _shares(state).unbind(-2), strict=True))

    def read_out(self, norm: Callable[[], nn.Module]) -> ReadOut:
        return MultiwayReadOut(self.junction)

    def step(self, state: State, branch: Branch) -> State:
        x_BTD = stream_of(state)
        if isinstance(state, Ways):
            y_BTD = x_BTD + branch(self.norm(state.queries), self.key_norm(state.keys), self.value_norm(state.values))
        else:
            y_BTD = x_BTD + branch(self.norm(x_BTD))
        outputs = state.outputs if isinstance(state, Ways | Sources) else (self.entered(state),)
        if self.dense is None:
            return Sources(y_BTD, outputs)
        outputs = (*outputs, y_BTD)
        mixed, shares_BTCJ = [], self.dense(y_BTD)
        for shares_BTJ in shares_BTCJ.unbind(-2):
            way_BTD = wide(y_BTD)
            for share_BT, source_BTD in zip(shares_BTJ.unbind(-1), outputs, strict=True):
                way_BTD = way_BTD + share_BT[..., None] * source_BTD
            mixed.append(way_BTD.to(y_BTD.dtype))
        queries, keys, values, stream = mixed if len(mixed) > 1 else WAYS * mixed
        return Ways(stream, queries, keys, values, outputs, shares_BTCJ.detach())


class MultiwayReadOut(ReadOut):
    """The stream that the last junction mixed, with parameters of its own: there are none here."""

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Each output's share in that stream."""
        assert isinstance(state, Ways)
        return {"stream": _shares(state).squeeze(-2)}

    def forward(self, state: State) -> Tensor:
        """[B, T, D] of the state behind the last block."""
        return stream_of(state)


def _shares(state: Ways) -> Tensor:
    """A, [B, T, ways, outputs], the static start with it."""
    return state.shares + F.one_hot(torch.tensor(len(state.outputs) - 1)).to(state.shares)
