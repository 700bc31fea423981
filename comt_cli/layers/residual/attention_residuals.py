"""Attention Residuals (Kimi Team 2026, arXiv 2603.15031): what a branch reads is a mixture of all that branches before
it put out, weighted by a softmax over depth.

    h_l = sum_i a_i v_i     a = softmax_i(w_l . N_l(v_i))     v_0 = the embedding, v_i = F_i(N(h_i))

With `blocks` the junctions are divided into so many, of which some are one longer than others where they do not divide
the number of junctions, and a block's outputs count as one source, their sum; within a block its sum so far is the
newest source. Behind the last junction another query mixes all sources.
Delta Attention Residuals (arXiv 2605.18855) keep the plain stream, x + F, and add the mixture of the same sources to
what the branch reads alone: F(N(x + sum_i a_i v_i)); the first branch reads the embedding.

All queries are zero at the start: every source counts alike, and since the branch begins with a norm, it reads the same
direction as that of Pre-LN, whose stream is the sum. The norm N_l has a gain, and no norm is on the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.learned import NO_DECAY, Constant, wide
from comt_cli.layers.residual.base import Branch, Junction, ReadOut, ResidualConnection, Sources, State, stream_of

EPSILON = 1e-6
"""Of the keys' norm."""


class DepthAttention(nn.Module):
    """sum_i a_i v_i, a = softmax_i(w . N(v_i)), over sources [B, T, D] each.

    Sources may be narrower than fp32, and all is computed in fp32 all the same: operations promote what they read, so
    that autograd keeps the sources themselves, once for all junctions, and no copies in fp32."""

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
        mixed_BTD = weights[0][..., None] * sources[0]
        for weight_BT, v_BTD in zip(weights[1:], sources[1:], strict=True):
            mixed_BTD = mixed_BTD + weight_BT[..., None] * v_BTD
        return mixed_BTD.to(sources[0].dtype)


class AttentionResiduals(ResidualConnection):
    """The state's outputs are the finished sources, and its stream the sum of the block that is under way: at the end
    of one its newest source. Of all junctions each is a block of its own unless `blocks` says how many there are."""

    has_states = True

    def __init__(self, junction: Junction, blocks: int | None = None) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        blocks = junction.count if blocks is None else blocks
        if blocks > junction.count:
            raise UserError(
                f"blocks: {junction.count} junctions cannot be divided into {blocks}",
                "Give fewer, or leave it out: then each is one of its own.",
            )
        number = junction.index * blocks // junction.count
        self.begins_block = junction.index == 0 or (junction.index - 1) * blocks // junction.count != number
        self.ends_block = (junction.index + 1) * blocks // junction.count != number
        mixes = junction.index > 0  # the first branch has the embedding alone to read
        self.attention = DepthAttention(junction.width) if mixes else None

    def sources(self, state: Sources) -> tuple[Tensor, ...]:
        """What this junction mixes, [B, T, D] each, the oldest first."""
        return state.outputs if self.begins_block else (*state.outputs, state.x)

    def read(self, state: State) -> Tensor:
        """What the branch's norm reads."""
        if self.attention is None:
            return stream_of(state)
        assert isinstance(state, Sources)
        mixed_BTD: Tensor = self.attention(self.sources(state))
        return mixed_BTD

    def mixing(self, state: State) -> dict[str, Tensor]:
        """a, of what the branch reads."""
        if self.attention is None:
            return {}
        assert isinstance(state, Sources)
        return {"attention": self.attention.weights(self.sources(state))}

    def read_out(self, norm: Callable[[], nn.Module]) -> ReadOut:
        return AttentionReadOut(self.junction)

    def step(self, state: State, branch: Branch) -> State:
        F_BTD = branch(self.norm(self.read(state)))
        if not isinstance(state, Sources):
            state = Sources(F_BTD, (self.entered(state),))
        outputs = state.outputs
        # A sum is in the embedding's type: under autocast branches put out a narrower one.
        partial_BTD = F_BTD if self.begins_block else state.x.to(outputs[0].dtype) + F_BTD
        return Sources(partial_BTD, (*outputs, partial_BTD) if self.ends_block else outputs)


class AttentionReadOut(ReadOut):
    """What the final norm reads: a mixture of all sources."""

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.attention = DepthAttention(junction.width)

    def mixing(self, state: State) -> dict[str, Tensor]:
        """a, of what the final norm reads."""
        assert isinstance(state, Sources)
        return {"attention": self.attention.weights(state.outputs)}

    def forward(self, state: State) -> Tensor:
        """[B, T, D] of the state behind the last block, whose sum is among its sources."""
        assert isinstance(state, Sources)
        mixed_BTD: Tensor = self.attention(state.outputs)
        return mixed_BTD


class DeltaAttentionResiduals(ResidualConnection):
    """The state has the plain stream, and as outputs the embedding and those of all branches."""

    has_states = True

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        mixes = junction.index > 0
        self.attention = DepthAttention(junction.width) if mixes else None

    def read(self, state: State) -> Tensor:
        """What the branch's norm reads."""
        if self.attention is None:
            return stream_of(state)
        assert isinstance(state, Sources)
        read_BTD: Tensor = state.x + self.attention(state.outputs)
        return read_BTD

    def mixing(self, state: State) -> dict[str, Tensor]:
        """a, of what is added to the stream for the branch."""
        if self.attention is None:
            return {}
        assert isinstance(state, Sources)
        return {"attention": self.attention.weights(state.outputs)}

    def step(self, state: State, branch: Branch) -> State:
        F_BTD = branch(self.norm(self.read(state)))
        outputs = state.outputs if isinstance(state, Sources) else (self.entered(state),)
        return Sources(stream_of(state) + F_BTD, (*outputs, F_BTD))
