"""The branches of the blocks of an encoder-decoder (Vaswani et al. 2017, section 3) and of BERT: attention of a
sequence to itself and to another one, and the feed-forward network of two layers.

Shapes: B batch, T tokens that attend, S tokens that are attended to, D width, H heads, E head width, F feed-forward
width, R rows of tokens that attend, K = R / B of them for each sequence that is attended to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from comt_cli.kernels.attend import attend
from comt_cli.layers.attention import MakeProjections
from comt_cli.layers.dropout import Dropout
from comt_cli.layers.kv_cache import LayerColumns


class KeysValues(NamedTuple):
    """Keys and values that are attended to, [B, H, S, E] each, and the mask, [B, 1, 1, S], True where a token is."""

    k: Tensor
    v: Tensor
    mask: Tensor


class MultiHead(nn.Module):
    """softmax(Q K^T / sqrt(E)) V W_o, whose four projections may have a `bias`; dropout, if any, is on the softmax."""

    last = "output"

    def __init__(self, width: int, heads: int, dropout: float, make: MakeProjections, *, bias: bool = False) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.output = make({"o_proj": (width, width)}, bias=bias)
        self.dropout = Dropout(dropout)

    def attend(self, q_BHTE: Tensor, k_BHSE: Tensor, v_BHSE: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
        """Outputs of all heads side by side, [B, T, D]. A query sees what `mask`, [B, 1, 1, S], has as
        True, or with `causal` the keys up to its own."""
        if self.dropout.p > 0 and self.training:  # on the weights themselves, which fused attention never has
            weights_BHTS = self.dropout(attention_weights(q_BHTE, k_BHSE, mask, causal=causal))
            mixed_BHTE = weights_BHTS.to(v_BHSE.dtype) @ v_BHSE
        else:
            mixed_BHTE = attend(q_BHTE, k_BHSE, v_BHSE, mask, causal=causal)
        return mixed_BHTE.transpose(1, 2).flatten(2)

    def split(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, H, T, E]."""
        return x_BTD.view(*x_BTD.shape[:-1], self.heads, self.head_width).transpose(1, 2)


def attention_weights(q_BHTE: Tensor, k_BHSE: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    """softmax(Q K^T / sqrt(E)), [B, H, T, S]; `mask` and `causal` as in `MultiHead.attend`."""
    scores_BHTS = q_BHTE @ k_BHSE.transpose(-2, -1) / math.sqrt(q_BHTE.shape[-1])
    if causal:
        mask = torch.ones(scores_BHTS.shape[-2:], dtype=torch.bool, device=q_BHTE.device).tril()
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask, -math.inf)
    return torch.softmax(scores_BHTS, dim=-1)


class SelfAttention(MultiHead):
    """Attention of a sequence to itself."""

    def __init__(self, width: int, heads: int, dropout: float, make: MakeProjections, *, bias: bool = False) -> None:
        super().__init__(width, heads, dropout, make, bias=bias)
        self.qkv = make(dict.fromkeys(("q_proj", "k_proj", "v_proj"), (width, width)), heads=heads, bias=bias)

    def inner(self, x_BTD: Tensor, mask: Tensor | None = None, columns: LayerColumns | None = None) -> Tensor:
        """Input of the output projection, [B, T, D]: of all tokens that `mask` ([B, 1, 1, T]) has; without a mask, of
        those up to each. With `columns`, T is 1, and the token also sees what these hold, to which it is added."""
        q, k, v, *read = self.qkv(x_BTD)
        q_BHTE, k_BHTE, v_BHTE = self.split(q), self.split(k), self.split(v)
        if columns is not None:
            k_BHTE, v_BHTE = columns.append(k_BHTE, v_BHTE)
        causal = mask is None and columns is None
        return self.qkv.gated_at("sdpa", self.attend(q_BHTE, k_BHTE, v_BHTE, mask, causal=causal), *read)


class CrossAttention(MultiHead):
    """Attention of a sequence to another one: queries from the first, keys and values from the second."""

    def __init__(self, width: int, heads: int, dropout: float, make: MakeProjections) -> None:
        super().__init__(width, heads, dropout, make)
        self.query = make({"q_proj": (width, width)}, heads=heads)
        self.key_value = make({"k_proj": (width, width), "v_proj": (width, width)})

    def keys_values(self, encoded_BSD: Tensor, mask_BS: Tensor) -> KeysValues:
        """Keys and values for `inner`."""
        k, v = self.key_value(encoded_BSD)
        return KeysValues(self.split(k), self.split(v), mask_BS[:, None, None, :])

    def inner(self, x_RTD: Tensor, source: KeysValues) -> Tensor:
        """Input of the output projection, [R, T, D]. Rows b K to b K + K - 1 attend to sequence b: as more queries,
        so that no key is copied for them."""
        x_BTD = x_RTD.reshape(len(source.k), -1, x_RTD.shape[-1])
        q, *read = self.query(x_BTD)
        mixed_BTD = self.attend(self.split(q), source.k, source.v, source.mask, causal=False)
        return self.query.gated_at("sdpa", mixed_BTD, *read).view_as(x_RTD)


class TwoLayerFeedForward(nn.Module):
    """W_down f(W_up x + b_up) + b_down, f the `activation`; dropout, if any, behind f."""

    last = "down"

    def __init__(
        self, width: int, ffn_width: int, dropout: float, make: MakeProjections, activation: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.up = make({"up_proj": (width, ffn_width)}, bias=True)
        self.down = make({"down_proj": (ffn_width, width)}, bias=True)
        self.dropout, self.activation = Dropout(dropout), activation

    def inner(self, x_BTD: Tensor) -> Tensor:
        """Input of the down projection, [B, T, F]."""
        return self.dropout(self.activation(self.up(x_BTD)[0]))
