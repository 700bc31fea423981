"""DeepCrossAttention (Heddes et al. 2025, arXiv 2502.06785): a block's queries, keys and values are each a mixture of
all earlier blocks' outputs, with a weight for every channel that depends on the token.

    g(G) = sum_s G_s * (b_s + relu(w . G_s))     G_0 = the embedding, G_s = what block s put out
    a = attention(N_Q(g_Q), N_K(g_K), N_V(g_V))     f = a + mlp(N(g_Q + a))

f is what the block puts out: its skips stay within it, and g adds up what was put out. With b = 1 and w = 0 that is
Pre-LN. Behind the last block one more mixture is what the final norm reads. With `last` k only the k newest outputs
and the embedding are told apart, and those between them count as one source, their sum.

Shapes: B batch, T tokens, D width, S sources. Weights and sums are computed in fp32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from comt_cli.kernels.gates import no_autocast
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import NO_DECAY, Constant, wide
from comt_cli.layers.residual.base import Branch, NormedResidual, OutputAggregation, ResidualSite, State

STD = 1e-3
"""Of w at the start: 0 would have no gradient, relu's at 0 being 0."""


class DepthMixture(Initialised):
    """g: sources [B, T, D] each -> [B, T, D], in the first source's type. `offset` is b, less the 1 it starts at.
    Sources are kept and promoted as in `attention_residuals.DepthAttention`."""

    def __init__(self, width: int, sources: int) -> None:
        super().__init__()
        self.offset = Constant(0.0, sources, width, update_rule=NO_DECAY)
        self.w = nn.Parameter(torch.empty(1, width))

    def weights(self, sources: Sequence[Tensor]) -> list[Tensor]:
        """relu(w . G_s) of every source, [B, T, 1] each: what is added to b_s."""
        with no_autocast(sources[0]):
            w_1D = wide(self.w)
            return [torch.relu((source_BTD * w_1D).sum(-1, keepdim=True)) for source_BTD in sources]

    def mean_weights(self, sources: Sequence[Tensor]) -> Tensor:
        """b_s + relu(w . G_s), the mean over the channels, [B, T, S]: for analyses."""
        return 1 + wide(self.offset()).mean(-1) + torch.cat(self.weights(sources), -1)

    def forward(self, sources: Sequence[Tensor]) -> Tensor:
        """Raises ValueError where there are not as many sources as it was made for."""
        each = zip(sources, 1 + wide(self.offset()), self.weights(sources), strict=True)
        parts = (source_BTD * b_D + source_BTD * weight_BT1 for source_BTD, b_D, weight_BT1 in each)
        return functools.reduce(torch.add, parts).to(sources[0].dtype)

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.w, "w", STD)


def told_apart(outputs: Sequence[Tensor], last: int | None) -> list[Tensor]:
    """The sources of a mixture: the embedding, the sum of those between, and the `last` outputs; all without it."""
    if last is None or len(outputs) <= last + 2:
        return [*outputs]
    total_BTD = functools.reduce(torch.add, outputs[2:-last], wide(outputs[1]))
    return [outputs[0], total_BTD.to(outputs[0].dtype), *outputs[-last:]]


def count_of(outputs: int, last: int | None) -> int:
    """Number of sources that `told_apart` makes of so many outputs."""
    return outputs if last is None else min(outputs, last + 2)


class DeepCrossAttention(NormedResidual):
    """The state's sources are the embedding and the outputs of all blocks, the newest the part of a present one; its
    stream is g_Q + a within a block, and behind one g_Q + f, which nothing reads."""

    name = "deep-cross-attention"
    needs = ("states", "values")

    def __init__(self, site: ResidualSite, last: int | None = None) -> None:
        super().__init__(site)
        self.last, self.begins_block = last, site.part == "attention"
        if not self.begins_block:
            return
        self.key_norm, self.value_norm = site.norm(), site.norm()
        sources = count_of(site.layer + 1, last)
        self.queries, self.keys, self.values = (DepthMixture(site.width, sources) for _ in range(3))

    def mixed(self, state: State) -> list[Tensor]:
        """Sources that the block which starts with this state mixes, [B, T, D] each, the oldest first."""
        return told_apart(self.sources(state), self.last)

    def read(self, state: State) -> Tensor:
        """Skip path of attention at the start of a block; within it the input of the other branch."""
        return self.queries(self.mixed(state)) if self.begins_block else state.stream

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Each source's weights in queries, keys and values, the mean over the channels."""
        if not self.begins_block:
            return {}
        sources = self.mixed(state)
        mixtures = {"queries": self.queries, "keys": self.keys, "values": self.values}
        return {name: mixture.mean_weights(sources) for name, mixture in mixtures.items()}

    def step(self, state: State, branch: Branch) -> State:
        if self.begins_block:
            sources = self.mixed(state)
            queries_BTD = self.queries(sources)
            qkv = (self.norm(queries_BTD), self.key_norm(self.keys(sources)), self.value_norm(self.values(sources)))
            a_BTD = branch(*qkv).to(queries_BTD.dtype)
            return State(queries_BTD + a_BTD, (*self.sources(state), a_BTD))
        *earlier, a_BTD = self.sources(state)
        m_BTD = branch(self.norm(state.x)).to(a_BTD.dtype)
        return State(state.x + m_BTD, (*earlier, a_BTD + m_BTD))

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation:
        return CrossAggregation(self.site, self.last)


class CrossAggregation(OutputAggregation):
    """Mixture of the embedding and all blocks' outputs."""

    def __init__(self, site: ResidualSite, last: int | None) -> None:
        super().__init__(site)
        self.last = last
        self.mixture = DepthMixture(site.width, count_of(site.layers + 1, last))

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Each source's weight in the final norm's input, the mean over the channels."""
        return {"stream": self.mixture.mean_weights(told_apart(state.sources, self.last))}

    def forward(self, state: State) -> Tensor:
        """State behind the last block -> [B, T, D]."""
        return self.mixture(told_apart(state.sources, self.last))
