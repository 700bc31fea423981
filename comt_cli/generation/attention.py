"""Weights of a decoder's cross-attention over the source, for each token of a target.

Shapes: B pairs, T target tokens, S source tokens, H heads, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from comt_cli.layers.multi_head import attention_weights
from comt_cli.models.transformer import DecoderBlock, EncoderDecoder


@torch.no_grad()
def attention_of(model: EncoderDecoder, source: tuple[Tensor, ...], target_in: Sequence[int]) -> Tensor:
    """The weights of the last decoder block's cross-attention, the mean over its heads: over what the encoder reads of
    one source, some tensors whose first dimension is 1, in predicting what follows each token of `target_in`, the begin
    token first: [T, S] in fp32 on the CPU. Rows sum to 1."""
    block = model.decoder[-1]
    assert isinstance(block, DecoderBlock)
    queries: list[Tensor] = []

    def keep(_module: Any, _inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        queries.append(block.cross.split(outputs[0]))

    handle = block.cross.query.register_forward_hook(keep)
    try:
        model.body(*source, torch.tensor([list(target_in)], device=source[0].device))
    finally:
        handle.remove()
    memory = model.encode(*source)
    weights_BHTS = attention_weights(queries[0], memory.keys[-1], memory.mask_BS[:, None, None, :])
    return weights_BHTS.mean(1)[0].float().cpu()
