"""Attention Residuals (Kimi Team 2026, arXiv 2603.15031): what a branch reads is a mixture of all that branches before
it put out, weighted by a softmax over depth.

    h_l = sum_i a_i v_i     a = softmax_i(w_l . N_l(v_i))     v_0 = the embedding, v_i = F_i(N(h_i))

With `blocks` the residual adds are divided into so many groups, some one longer than others where their number does not
divide, and a group's outputs count as one source, their sum; within a group its sum so far is the newest source. Behind
the last add another query mixes all sources.
Delta Attention Residuals (arXiv 2605.18855) keep the plain stream, x + F, and add the mixture of the same sources to
what the branch reads alone: F(N(x + sum_i a_i v_i)); the first branch reads the embedding.

All queries are zero at the start: every source counts alike, and since the branch begins with a norm, it reads the same
direction as that of Pre-LN, whose stream is the sum. The norm N_l has a gain, and no norm is on the values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.learned import NO_DECAY, Constant, wide
from comt_cli.layers.residual.base import Branch, NormedResidual, OutputAggregation, ResidualSite, State

EPSILON = 1e-6
"""Of the keys' norm."""


class DepthAttention(nn.Module):
    """sum_i a_i v_i, a = softmax_i(w . N(v_i)), over sources [B, T, D] each.

    Sources may be narrower than fp32, and all is computed in fp32 all the same: operations promote what they read, so
    that autograd keeps the sources themselves, once for all adds, and no copies in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = Constant(0.0, width, update_rule=NO_DECAY)
        self.gain_offset = Constant(0.0, width, update_rule=NO_DECAY)  # N's gain, less the 1 it starts at

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
        """[B, T, D], in the first source's type: the embedding's."""
        weights = self.weights(sources).unbind(-1)
        parts = (weight_BT[..., None] * v_BTD for weight_BT, v_BTD in zip(weights, sources, strict=True))
        return functools.reduce(torch.add, parts).to(sources[0].dtype)


class AttentionResiduals(NormedResidual):
    """The state's sources are those of finished groups, and its stream the sum of the present group: at its end the
    newest source. Each add is a group of its own unless `blocks` says how many there are."""

    name = "attention-residuals"
    needs = ("states",)

    def __init__(self, site: ResidualSite, blocks: int | None = None) -> None:
        super().__init__(site)
        blocks = site.count if blocks is None else blocks
        if blocks > site.count:
            raise UserError(
                f"blocks: {site.count} residual adds cannot be divided into {blocks}",
                "Give fewer, or leave it out: then each is one of its own.",
            )
        number = site.index * blocks // site.count
        self.begins_block = site.index == 0 or (site.index - 1) * blocks // site.count != number
        self.ends_block = (site.index + 1) * blocks // site.count != number
        # The first branch has the embedding alone to read.
        self.attention = DepthAttention(site.width) if site.index > 0 else None

    def mixed(self, state: State) -> tuple[Tensor, ...]:
        """Sources that this add mixes, [B, T, D] each, the oldest first."""
        sources = self.sources(state)
        return sources if self.begins_block else (*sources, state.x)

    def read(self, state: State) -> Tensor:
        """Input of the branch's norm."""
        return state.stream if self.attention is None else self.attention(self.mixed(state))

    def mixing(self, state: State) -> dict[str, Tensor]:
        """a, of the branch's input."""
        return {} if self.attention is None else {"attention": self.attention.weights(self.mixed(state))}

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation:
        return AttentionAggregation(self.site)

    def step(self, state: State, branch: Branch) -> State:
        F_BTD = branch(self.norm(self.read(state)))
        sources = self.sources(state)
        # A sum is in the embedding's type: under autocast branches put out a narrower one.
        partial_BTD = F_BTD if self.begins_block else state.x.to(sources[0].dtype) + F_BTD
        return State(partial_BTD, (*sources, partial_BTD) if self.ends_block else sources)


class AttentionAggregation(OutputAggregation):
    """Mixture of all sources."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.attention = DepthAttention(site.width)

    def mixing(self, state: State) -> dict[str, Tensor]:
        """a, of the final norm's input."""
        return {"attention": self.attention.weights(state.sources)}

    def forward(self, state: State) -> Tensor:
        """State behind the last block, whose sum is among its sources -> [B, T, D]."""
        return self.attention(state.sources)


class DeltaAttentionResiduals(NormedResidual):
    """The state has the plain stream, and as sources the embedding and the outputs of all branches."""

    name = "delta-attention-residuals"
    needs = ("states",)

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.attention = DepthAttention(site.width) if site.index > 0 else None

    def read(self, state: State) -> Tensor:
        """Input of the branch's norm."""
        return state.stream if self.attention is None else state.x + self.attention(self.sources(state))

    def mixing(self, state: State) -> dict[str, Tensor]:
        """a, of the mixture that is added to the stream for the branch."""
        return {} if self.attention is None else {"attention": self.attention.weights(self.sources(state))}

    def step(self, state: State, branch: Branch) -> State:
        F_BTD = branch(self.norm(self.read(state)))
        return State(state.stream + F_BTD, (*self.sources(state), F_BTD))
