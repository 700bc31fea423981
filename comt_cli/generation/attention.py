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
from comt_cli.models.transformer import DecoderBlock, EncoderDecoder


@runtime_checkable
class OffersAttention(Protocol):
    """A model that says itself what it looks at; no other has to."""

    def attention_weights(self, *inputs: Tensor) -> Tensor:
        """The weights with which each token of the target, [B, T] and the last of the inputs, is predicted from the
        source, [B, T, S]; rows sum to 1."""


def forced_attention(model: object, source: Sequence[int], target_in: Sequence[int], device: torch.device) -> Tensor:
    """The weights over the tokens of `source` in predicting what follows each token of `target_in`, as `attention_of`
    gives them. Both have their special tokens: a source ends with the end, `target_in` begins with the begin token."""
    return attention_of(model, (torch.tensor([list(source)], device=device),), target_in)


@torch.no_grad()
def attention_of(model: object, source: tuple[Tensor, ...], target_in: Sequence[int]) -> Tensor:
    """The weights over what the encoder reads of one source, some tensors whose first dimension is 1, in predicting
    what follows each token of `target_in`: [T, S] in fp32 on the CPU.

    Raises:
        UserError: the model does not say.
    """
    target_in_BT = torch.tensor([list(target_in)], device=source[0].device)
    if isinstance(model, OffersAttention):
        weights_BTS = model.attention_weights(*source, target_in_BT)
    elif isinstance(model, EncoderDecoder):
        weights_BTS = cross_attention(model, *source, target_in_BT)
    else:
        raise UserError(f"a {type(model).__name__} does not say what it looks at", "Leave --attention out.")
    return weights_BTS[0].float().cpu()


def cross_attention(model: EncoderDecoder, *inputs: Tensor) -> Tensor:
    """The weights of the last decoder block's cross-attention, the mean over its heads, for a source and the target
    behind it: [B, T, S]."""
    block = model.decoder[-1]
    assert isinstance(block, DecoderBlock)
    queries: list[Tensor] = []

    def keep(_module: Any, _inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        queries.append(block.cross.split(outputs[0]))

    handle = block.cross.query.register_forward_hook(keep)
    try:
        model.body(*inputs)
    finally:
        handle.remove()
    memory = model.encode(*inputs[:-1])
    weights_BHTS = attention_weights(queries[0], memory.keys[-1], memory.mask_BS[:, None, None, :])
    return weights_BHTS.mean(1)
