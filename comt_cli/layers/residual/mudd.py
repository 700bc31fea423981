"""Multiway dynamic dense connections (MUDDFormer, Xiao et al. 2025, arXiv 2502.12170): behind block i the next block's
queries, keys, values and stream are each a mixture of all blocks' outputs, of shares that depend on the token.

    Xbar_c = sum_j A_cj X_j, c in Q, K, V, R     A = GELU(N(X_i) W1) W2 + a

X_0 is the embedding and X_i what block i puts out, N has no gain, W1 is [D, K] and W2 [K, K], K = 4 (i + 1). The next
block then is h = Xbar_R + attention(N(Xbar_Q), N(Xbar_K), N(Xbar_V)), X = h + mlp(N(h)). At the start W2 = 0 and a has
1 at X_i alone: Pre-LN. Behind the last block the stream alone is mixed (K = L + 1).

Shapes: B batch, T tokens, D width, C ways, J sources.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import NO_DECAY, Constant
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection, Sources, State, Ways, stream_of

WAYS = 4


class DenseShares(Initialised):
    """A, less what the static part starts at: X [B, T, D] -> [B, T, C, J]."""

    def __init__(self, width: int, ways: int, sources: int) -> None:
        super().__init__()
        self.shape = ways, sources
        K = ways * sources
        self.W1, self.W2 = nn.Parameter(torch.empty(K, width)), nn.Parameter(torch.empty(K, K))
        self.a = Constant(0.0, K, update_rule=NO_DECAY)

    def forward(self, x_BTD: Tensor) -> Tensor:
        hidden_BTK = F.gelu(F.linear(F.rms_norm(x_BTD, x_BTD.shape[-1:]), self.W1))
        shares_BTK = F.linear(hidden_BTK, self.W2) + self.a()
        shares_BTCJ: Tensor = shares_BTK.unflatten(-1, self.shape)
        return shares_BTCJ

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.W1, "W1", self.W1.shape[1] ** -0.5)
        nn.init.zeros_(self.W2)


class MultiwayDense(ResidualConnection):
    """y = x + F(N(x)), attention reading three ways; behind the block's last junction the mixtures."""

    has_states = has_ways = True

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.ends_block = junction.part == "mlp"
        is_last = junction.index == junction.count - 1
        ways = 1 if is_last else WAYS
        self.dense = DenseShares(junction.width, ways, junction.layer + 2) if self.ends_block else None

    def step(self, state: State, branch: Branch) -> State:
        x_BTD = stream_of(state)
        if isinstance(state, Ways):
            y_BTD = x_BTD + branch(*(self.norm(way) for way in (state.queries, state.keys, state.values)))
        else:
            y_BTD = x_BTD + branch(self.norm(x_BTD))
        outputs = state.outputs if isinstance(state, Ways | Sources) else (x_BTD,)
        if self.dense is None:
            return Sources(y_BTD, outputs)
        outputs = (*outputs, y_BTD)
        mixed = []
        for shares_BTJ in self.dense(y_BTD).to(y_BTD.dtype).unbind(-2):
            way_BTD = y_BTD
            for share_BT, source_BTD in zip(shares_BTJ.unbind(-1), outputs, strict=True):
                way_BTD = way_BTD + share_BT[..., None] * source_BTD
            mixed.append(way_BTD)
        if len(mixed) == 1:
            return mixed[0]
        queries, keys, values, stream = mixed
        return Ways(stream, queries, keys, values, outputs)
