"""Connections whose branches read mixtures of earlier outputs, with v_0 the embedding.

The mixture is a softmax over depth (Attention Residuals, Kimi Team 2026; Delta Attention Residuals, 2026) or a sum with
one weight per channel (DeepCrossAttention, Heddes et al. 2025). The files of the methods have the equations.

All queries start at zero, so every source has the same weight. The branch begins with a norm, so it reads the same
direction as in Pre-LN, whose stream is the sum. The norm N has a gain; values are not normalised.

Shapes: B batch, T tokens, D width, S sources. Weights and sums are computed in fp32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.kernels.gates import no_autocast
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import NO_DECAY, Constant, wide
from comt_cli.layers.residual.base import Branch, NormedResidual, OutputAggregation, ResidualSite, State
from comt_cli.layers.roles import Role

EPSILON = 1e-6
"""Of the keys' norm."""


class DepthAttention(nn.Module):
    """sum_i a_i v_i, a = softmax_i(w . N(v_i)), over sources [B, T, D] each. It is computed in fp32 even if the sources
    are narrower: operations promote what they read, so autograd saves the sources once and no fp32 copies."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = Constant(0.0, width, update_rule=NO_DECAY)
        self.gain_offset = Constant(0.0, width, update_rule=NO_DECAY)  # N's gain minus 1

    def weights(self, sources: Sequence[Tensor]) -> Tensor:
        """a, [B, T, number of sources], in fp32."""
        key_D = (1 + wide(self.gain_offset())) * wide(self.query())
        scores = []
        for v_BTD in sources:
            size_BT = torch.linalg.vector_norm(v_BTD, dim=-1, dtype=key_D.dtype)
            rms_BT = (size_BT.square() / v_BTD.shape[-1] + EPSILON).sqrt()
            scores.append((v_BTD * key_D).sum(-1) / rms_BT)
        return torch.softmax(torch.stack(scores, -1), -1)

    def forward(self, sources: Sequence[Tensor]) -> Tensor:
        """[B, T, D], in the type of the first source, the embedding."""
        weights = self.weights(sources).unbind(-1)
        parts = (weight_BT[..., None] * v_BTD for weight_BT, v_BTD in zip(weights, sources, strict=True))
        return functools.reduce(torch.add, parts).to(sources[0].dtype)


class DepthResidual(NormedResidual):
    """Connection with attention over sources. The first branch reads only the embedding and has no attention."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.attention = DepthAttention(site.width) if site.index > 0 else None

    def mixed(self, state: State) -> tuple[Tensor, ...]:
        """Sources mixed by this add, [B, T, D] each, oldest first."""
        return self.sources(state)

    def mixing(self, state: State) -> dict[str, Tensor]:
        """a, of the mixture that the branch reads, or of the one added to the stream for it."""
        return {} if self.attention is None else {"attention": self.attention.weights(self.mixed(state))}


class AttentionResiduals(DepthResidual):
    """h = sum_i a_i v_i, then F(N(h)). The sources of the state are those of finished groups; its stream is the sum of
    the present group, which becomes the newest source when the group ends. Without `blocks`, each add is a group."""

    name = "attention-residuals"
    needs = ("states",)

    def __init__(self, site: ResidualSite, blocks: int | None = None) -> None:
        super().__init__(site)
        blocks = site.count if blocks is None else blocks
        if blocks > site.count:
            said = f"blocks: {site.count} residual adds cannot form {blocks} groups"
            raise UserError(said, "Use a smaller number, or leave it out: then each add is a group.")
        number = site.index * blocks // site.count
        self.begins_block = site.index == 0 or (site.index - 1) * blocks // site.count != number
        self.ends_block = (site.index + 1) * blocks // site.count != number

    def mixed(self, state: State) -> tuple[Tensor, ...]:
        sources = self.sources(state)
        return sources if self.begins_block else (*sources, state.x)

    def read(self, state: State) -> Tensor:
        """Input of the branch's norm."""
        return state.stream if self.attention is None else self.attention(self.mixed(state))

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation:
        return AttentionAggregation(self.site)

    def step(self, state: State, branch: Branch) -> State:
        F_BTD = branch(self.norm(self.read(state)))
        sources = self.sources(state)
        # Sums have the embedding's type; under autocast the output of branches is narrower.
        partial_BTD = F_BTD if self.begins_block else state.x.to(sources[0].dtype) + F_BTD
        return State(partial_BTD, (*sources, partial_BTD) if self.ends_block else sources)


class AttentionAggregation(OutputAggregation):
    """Mixture of all sources."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.attention = DepthAttention(site.width)

    def mixing(self, state: State) -> dict[str, Tensor]:
        return {"attention": self.attention.weights(state.sources)}

    def forward(self, state: State) -> Tensor:
        """State after the last block, whose sum is one of its sources -> [B, T, D]."""
        return self.attention(state.sources)


class DeltaAttentionResiduals(DepthResidual):
    """y = x + F(N(x + sum_i a_i v_i)). The state has the plain stream, and as sources the embedding and outputs."""

    name = "delta-attention-residuals"
    needs = ("states",)

    def read(self, state: State) -> Tensor:
        """Input of the branch's norm."""
        return state.stream if self.attention is None else state.x + self.attention(self.sources(state))

    def step(self, state: State, branch: Branch) -> State:
        F_BTD = branch(self.norm(self.read(state)))
        return State(state.stream + F_BTD, (*self.sources(state), F_BTD))


STD = 1e-3
"""Of w at the start. At 0, relu has no gradient."""


class DepthMixture(Initialised):
    """g(G) = sum_s G_s * (b_s + relu(w . G_s)): sources [B, T, D] each -> [B, T, D], in the first source's type.
    `offset` is b minus its start, 1. Sources are saved and promoted as in `DepthAttention`."""

    role: Role = "gate"

    def __init__(self, width: int, sources: int) -> None:
        super().__init__()
        self.offset = Constant(0.0, sources, width, update_rule=NO_DECAY)
        self.w = nn.Parameter(torch.empty(1, width))

    def weights(self, sources: Sequence[Tensor]) -> list[Tensor]:
        """relu(w . G_s) of every source, [B, T, 1] each, which is added to b_s."""
        with no_autocast(sources[0]):
            w_1D = wide(self.w)
            return [torch.relu((source_BTD * w_1D).sum(-1, keepdim=True)) for source_BTD in sources]

    def mean_weights(self, sources: Sequence[Tensor]) -> Tensor:
        """b_s + relu(w . G_s), averaged over channels, [B, T, S]: for analyses."""
        return 1 + wide(self.offset()).mean(-1) + torch.cat(self.weights(sources), -1)

    def forward(self, sources: Sequence[Tensor]) -> Tensor:
        each = zip(sources, 1 + wide(self.offset()), self.weights(sources), strict=True)
        parts = (source_BTD * b_D + source_BTD * weight_BT1 for source_BTD, b_D, weight_BT1 in each)
        return functools.reduce(torch.add, parts).to(sources[0].dtype)

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.w, "w", STD)


def mixture_sources(outputs: Sequence[Tensor], last: int | None) -> list[Tensor]:
    """Sources of a mixture: the embedding, the sum of middle outputs, and the `last` outputs (None: all)."""
    if last is None or len(outputs) <= last + 2:
        return [*outputs]
    total_BTD = functools.reduce(torch.add, outputs[2:-last], wide(outputs[1]))
    return [outputs[0], total_BTD.to(outputs[0].dtype), *outputs[-last:]]


def source_count(outputs: int, last: int | None) -> int:
    """Number of sources that `mixture_sources` makes of `outputs` outputs."""
    return outputs if last is None else min(outputs, last + 2)


class DeepCrossAttention(NormedResidual):
    """a = attention(N_Q(g_Q), N_K(g_K), N_V(g_V)), f = a + mlp(N(g_Q + a)), where f is the output of the block. The
    sources of the state are the embedding and the outputs of all blocks, the newest being a part of the present one.
    Its stream is g_Q + a within a block; after a block it is g_Q + f, which is not read."""

    name = "deep-cross-attention"
    needs = ("states", "values")

    def __init__(self, site: ResidualSite, last: int | None = None) -> None:
        super().__init__(site)
        self.last, self.begins_block = last, site.part == "attention"
        if not self.begins_block:
            return
        self.key_norm, self.value_norm = site.norm(), site.norm()
        sources = source_count(site.layer + 1, last)
        self.queries, self.keys, self.values = (DepthMixture(site.width, sources) for _ in range(3))

    def mixed(self, state: State) -> list[Tensor]:
        return mixture_sources(self.sources(state), self.last)

    def read(self, state: State) -> Tensor:
        """Skip path of attention at the start of a block; within it the input of the second branch."""
        return self.queries(self.mixed(state)) if self.begins_block else state.stream

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Weight of each source in queries, keys and values, averaged over channels."""
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
    """Mixture of the embedding and the outputs of all blocks."""

    def __init__(self, site: ResidualSite, last: int | None) -> None:
        super().__init__(site)
        self.last = last
        self.mixture = DepthMixture(site.width, source_count(site.layers + 1, last))

    def mixing(self, state: State) -> dict[str, Tensor]:
        return {"stream": self.mixture.mean_weights(mixture_sources(state.sources, self.last))}

    def forward(self, state: State) -> Tensor:
        return self.mixture(mixture_sources(state.sources, self.last))
