"""What a decoder looks at: the weights of cross-attention over the source, for each token of a target.

Shapes: B pairs, T target tokens, S source tokens, H heads, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.layers.multi_head import attention_weights
from comt_cli.models.transformer import DecoderBlock, Transformer


@runtime_checkable
class OffersAttention(Protocol):
    """A model that says itself what it looks at; no other has to."""

    def attention_weights(self, source_BS: Tensor, target_in_BT: Tensor) -> Tensor:
        """The weights with which each token of the target is predicted from the source, [B, T, S]; rows sum to 1."""


@torch.no_grad()
def forced_attention(model: object, source: Sequence[int], target_in: Sequence[int], device: torch.device) -> Tensor:
    """The weights over the tokens of `source` in predicting what follows each token of `target_in`: [T, S] in fp32 on
    the CPU. Both have their special tokens: a source ends with the end, `target_in` begins with the begin token.

    Raises:
        UserError: the model does not say.
    """
    source_BS, target_in_BT = (torch.tensor([list(ids)], device=device) for ids in (source, target_in))
    if isinstance(model, OffersAttention):
        weights_BTS = model.attention_weights(source_BS, target_in_BT)
    elif isinstance(model, Transformer):
        weights_BTS = cross_attention(model, source_BS, target_in_BT)
    else:
        raise UserError(f"a {type(model).__name__} does not say what it looks at", "Leave --attention out.")
    return weights_BTS[0].float().cpu()


def cross_attention(model: Transformer, source_BS: Tensor, target_in_BT: Tensor) -> Tensor:
    """The weights of the last decoder block's cross-attention, the mean over its heads: [B, T, S]."""
    block = model.decoder[-1]
    assert isinstance(block, DecoderBlock)
    queries: list[Tensor] = []

    def keep(_module: Any, _inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        queries.append(block.cross.split(outputs[0]))

    handle = block.cross.query.register_forward_hook(keep)
    try:
        model.body(source_BS, target_in_BT)
    finally:
        handle.remove()
    memory = model.encode(source_BS)
    weights_BHTS = attention_weights(queries[0], memory.keys[-1], memory.mask_BS[:, None, None, :])
    return weights_BHTS.mean(1)
