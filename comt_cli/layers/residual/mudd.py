"""Multiway dynamic dense connections (MUDDFormer, Xiao et al. 2025, arXiv 2502.12170): behind block i the next block's
queries, keys, values and stream are each a mixture of all blocks' outputs, with weights that depend on the token.

    Xbar_c = sum_j A_cj X_j, c in Q, K, V, R     A = GELU(N(X_i) W1) W2 + a

X_0 is the embedding and X_i what block i puts out, N has no gain, W1 is [D, K] and W2 [K, K], K = 4 (i + 1). The next
block then is h = Xbar_R + attention(N_Q(Xbar_Q), N_K(Xbar_K), N_V(Xbar_V)), X = h + mlp(N(h)). At the start W2 = 0 and
a has 1 at X_i alone: Pre-LN. Behind the last block only the stream is mixed: W1 is as wide as elsewhere, W2 [K, L + 1].

Shapes: B batch, T tokens, D width, C mixtures, J sources, K hidden width. Weights and sums are computed in fp32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.transponder import no_autocast
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import NO_DECAY, Constant, wide
from comt_cli.layers.residual.base import Branch, OutputAggregation, ResidualConnection, ResidualSite, State

MIXTURES = 4
"""Queries, keys, values and stream."""


class DenseWeights(Initialised):
    """A, less what the static part starts at: X [B, T, D] -> [B, T, C, J], in fp32."""

    def __init__(self, width: int, mixtures: int, sources: int) -> None:
        super().__init__()
        self.shape = mixtures, sources
        K = MIXTURES * sources
        self.W1, self.W2 = nn.Parameter(torch.empty(K, width)), nn.Parameter(torch.empty(mixtures * sources, K))
        self.a = Constant(0.0, mixtures * sources, update_rule=NO_DECAY)

    def forward(self, x_BTD: Tensor) -> Tensor:
        with no_autocast(x_BTD):
            hidden_BTK = F.gelu(F.linear(F.rms_norm(wide(x_BTD), x_BTD.shape[-1:]), wide(self.W1)))
            weights_BTCJ: Tensor = (F.linear(hidden_BTK, wide(self.W2)) + self.a()).unflatten(-1, self.shape)
        return weights_BTCJ

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.W1, "W1", self.W1.shape[1] ** -0.5)
        nn.init.zeros_(self.W2)


class MultiwayDense(ResidualConnection):
    """y = x + F(N(x)), attention behind the first block with q/k/v inputs, each with a norm of its own; behind the
    block's last add the mixtures."""

    name = "mudd"
    needs = ("states", "values")

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.norm = site.norm()
        if site.part == "attention" and site.layer > 0:  # `norm` is that of the queries
            self.key_norm, self.value_norm = site.norm(), site.norm()
        self.ends_block = site.part == "mlp"
        is_last = site.index == site.count - 1
        mixtures = 1 if is_last else MIXTURES
        self.dense = DenseWeights(site.width, mixtures, site.layer + 2) if self.ends_block else None

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Each source's weight in the inputs of a block behind the first."""
        if state.weights is None:
            return {}
        return dict(zip(("queries", "keys", "values", "stream"), _mixing_weights(state).unbind(-2), strict=True))

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation:
        return MultiwayAggregation(self.site)

    def step(self, state: State, branch: Branch) -> State:
        x_BTD, sources = state.stream, self.sources(state)
        if state.qkv is None:
            y_BTD = x_BTD + branch(self.norm(x_BTD))
        else:
            queries, keys, values = state.qkv
            y_BTD = x_BTD + branch(self.norm(queries), self.key_norm(keys), self.value_norm(values))
        if self.dense is None:
            return State(y_BTD, sources)
        sources = (*sources, y_BTD)
        mixed, weights_BTCJ = [], self.dense(y_BTD)
        for weights_BTJ in weights_BTCJ.unbind(-2):
            sum_BTD = wide(y_BTD)
            for weight_BT, source_BTD in zip(weights_BTJ.unbind(-1), sources, strict=True):
                sum_BTD = sum_BTD + weight_BT[..., None] * source_BTD
            mixed.append(sum_BTD.to(y_BTD.dtype))
        queries, keys, values, stream = mixed if len(mixed) > 1 else MIXTURES * mixed
        return State(stream, sources, qkv=(queries, keys, values), weights=weights_BTCJ.detach())


class MultiwayAggregation(OutputAggregation):
    """Stream that the last add mixed, with that connection's parameters: there are none here."""

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Each source's weight in that stream."""
        return {"stream": _mixing_weights(state).squeeze(-2)}

    def forward(self, state: State) -> Tensor:
        """State behind the last block -> [B, T, D]."""
        return state.stream


def _mixing_weights(state: State) -> Tensor:
    """A, [B, T, mixtures, sources], the static start with it."""
    assert state.weights is not None
    return state.weights + F.one_hot(torch.tensor(len(state.sources) - 1)).to(state.weights)
