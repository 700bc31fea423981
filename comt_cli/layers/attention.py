"""Branches of a block: attention and feed-forward networks.

LLaMA has causal attention with rotary positions and a gated feed-forward network. The branches of an encoder-decoder
(Vaswani et al. 2017, section 3) and of BERT follow.

Shapes: B batch, T tokens that attend, S tokens that are attended to, D width, H heads, K key-value heads, E head width,
F feed-forward width, R rows of tokens that attend, G = R / B rows per attended sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.attend import attend
from comt_cli.kernels.heads import heads
from comt_cli.kernels.swiglu import swiglu
from comt_cli.layers.dropout import Dropout
from comt_cli.layers.kv_cache import LayerCache, LayerColumns
from comt_cli.layers.learned import wide
from comt_cli.layers.positions import Rotation, rotate
from comt_cli.layers.projection import Projections, aligned
from comt_cli.layers.shared_values import SharedValues
from comt_cli.layers.value_embedding import ValueEmbedding

MakeProjections = Callable[..., Projections]
"""Site names with (input, output) widths -> projections with gates. With `heads`, gates on the attention output read
their input too."""


def split(x_BTN: Tensor, head_width: int) -> Tensor:
    """[B, T, heads * E] -> [B, heads, T, E]."""
    return x_BTN.view(*x_BTN.shape[:-1], -1, head_width).transpose(1, 2)


class WithoutOwnValue(nn.Module):
    """z = y - (y . v / v . v) v: outputs of attention without their components along the value of the same token (Zhai
    2026). Computed in fp32: the output for a first token is v itself, of which nothing is left."""

    def forward(self, y_BHTE: Tensor, v_BKTE: Tensor) -> Tensor:
        """z, [B, H, T, E]. Heads share the values as in attention."""
        v_BK1TE = F.normalize(wide(v_BKTE), dim=-1).unsqueeze(2)
        y_BKGTE = wide(y_BHTE).view(*v_BKTE.shape[:2], -1, *v_BKTE.shape[2:])
        along_BKGT1 = (y_BKGTE * v_BK1TE).sum(-1, keepdim=True)
        return (y_BKGTE - along_BKGT1 * v_BK1TE).flatten(1, 2).to(y_BHTE.dtype)


class Attention(nn.Module):
    """softmax(RoPE(Q) RoPE(K)^T / sqrt(E)) V W_o with grouped key-value heads (CoMT, Eq. 5, 6). `norms` are those of
    the queries, keys and values of each head, named `q`, `k` and `v`. `exclude` changes the output, given the values
    of the same tokens."""

    fused = False
    """Whether one kernel applies the gates of q, k and v and rotates q and k."""

    last = "output"

    def __init__(
        self, width: int, heads: int, kv_heads: int, make: MakeProjections, shared: SharedValues | None = None,
        value_embedding: ValueEmbedding | None = None, norms: nn.ModuleDict | None = None,
        exclude: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.shared, self.value_embedding, self.norms, self.exclude = shared, value_embedding, norms, exclude
        kv_width = kv_heads * self.head_width
        widths = {"q_proj": (width, width), "k_proj": (width, kv_width), "v_proj": (width, kv_width)}
        if shared is not None and not shared.has_values:
            del widths["v_proj"]
            if norms is not None:
                del norms["v"]
        self.qkv = make(widths, heads=heads)
        self.output = make({"o_proj": (width, width)})

    def inner(
        self, x_BTD: Tensor, *kv_BTD: Tensor, rotation: Rotation, cache: LayerCache | None = None,
        shared_kv: list[Tensor] | None = None, tokens: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Input of the output projection, [B, T, D]. Position t attends to positions up to t and to the cache. With two
        more inputs, keys are computed from the second, values from the third. `shared_kv`: those of earlier blocks.
        `tokens`: their ids, [B, T], for a value embedding."""
        B, T, D = x_BTD.shape
        (q, k, v), read_by_gate = self.rotated_heads(x_BTD, kv_BTD, rotation, [] if shared_kv is None else shared_kv)
        if self.value_embedding is not None:
            v = self.value_embedding(v, (x_BTD, *kv_BTD)[-1], tokens)
        mixed_BHTE = attend(q, k, v, causal=True) if cache is None else cache.attend(q, k, v)
        if self.exclude is not None:
            mixed_BHTE = self.exclude(mixed_BHTE, v)
        mixed_BTD = mixed_BHTE.transpose(1, 2).reshape(B, T, D)
        return self.qkv.gated_at("sdpa", mixed_BTD, *read_by_gate)  # Qiu et al. 2025, their position G1

    def rotated_heads(
        self, x_BTD: Tensor, kv_BTD: tuple[Tensor, ...], rotation: Rotation, shared_kv: list[Tensor]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
        """Queries [B, H, T, E] and keys [B, K, T, E], rotated, values [B, K, T, E], and the input of a later gate."""
        shared = self.shared
        is_usual = len(kv_BTD) == 0 and (shared is None or (shared.has_values and not shared.mixes_keys))
        is_usual = is_usual and self.norms is None
        gates = self.qkv.modulation() if self.fused and is_usual else None
        if gates is None:
            q, k, *rest = self.qkv(x_BTD, *kv_BTD)
            q, k = split(q, self.head_width), split(k, self.head_width)
            v = split(rest.pop(0), self.head_width) if shared is None or shared.has_values else None
            if self.norms is not None:
                q, k, v = self.norms["q"](q), self.norms["k"](k), v if v is None else self.norms["v"](v)
            if shared is not None and shared.mixes_keys:
                k, v = shared(k, v, shared_kv)
            q, k = rotate(q, rotation), rotate(k, rotation)
        else:
            product_BTC = self.qkv.product(x_BTD)
            cos, sin = (table.flatten(0, -2) for table in rotation)
            parts = heads(product_BTC.flatten(0, -2), gates, cos, sin, self.heads, self.kv_heads)
            q, k, v = (split(part.view(*x_BTD.shape[:2], -1), self.head_width) for part in parts)
            rest = [*self.qkv.read_later(product_BTC, x_BTD)]
        if shared is not None and not shared.mixes_keys:
            k, v = shared(k, v, shared_kv)
        assert v is not None
        return (q, k, v), (*rest,)


class FeedForward(nn.Module):
    """SwiGLU: W_down (silu(W_gate x) * W_up x) (CoMT, Eq. 7, 8)."""

    fused = False
    """Whether one kernel applies the gates of gate and up and multiplies them."""

    last = "down"

    def __init__(self, width: int, ffn_width: int, make: MakeProjections) -> None:
        super().__init__()
        self.ffn_width = ffn_width
        self.gate_up = make({"gate_proj": (width, ffn_width), "up_proj": (width, ffn_width)})
        self.gate_up.packing.aligns_sites = True
        self.down = make({"down_proj": (ffn_width, width)})

    def inner(self, x_BTD: Tensor) -> Tensor:
        """Input of the down projection, [B, T, F], padded with zeros to aligned rows (`aligned`)."""
        padded = aligned(self.ffn_width, x_BTD)
        gates = self.gate_up.modulation() if self.fused else None
        if gates is None:
            gate_BTF, up_BTF = self.gate_up(x_BTD)
            inner_BTF = F.silu(gate_BTF) * up_BTF
            return F.pad(inner_BTF, (0, padded - self.ffn_width)) if padded > self.ffn_width else inner_BTF
        inner_TF = swiglu(self.gate_up.product(x_BTD).flatten(0, -2), gates, padded, padded)
        return inner_TF.view(*x_BTD.shape[:2], padded)


class KeysValues(NamedTuple):
    """Keys and values, [B, H, S, E] each, and the mask, [B, 1, 1, S], True at tokens."""

    k: Tensor
    v: Tensor
    mask: Tensor


class MultiHead(nn.Module):
    """softmax(Q K^T / sqrt(E)) V W_o. The four projections may have a `bias`; dropout is applied to the softmax."""

    last = "output"

    def __init__(self, width: int, heads: int, dropout: float, make: MakeProjections, *, bias: bool = False) -> None:
        super().__init__()
        self.head_width = width // heads
        self.output = make({"o_proj": (width, width)}, bias=bias)
        self.dropout = Dropout(dropout)

    def attend(self, q_BHTE: Tensor, k_BHSE: Tensor, v_BHSE: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
        """Outputs of all heads concatenated, [B, T, D]. A query attends to keys where `mask`, [B, 1, 1, S], is True, or
        with `causal` to keys up to its own position."""
        if self.dropout.p > 0 and self.training:  # on the weights, which fused attention does not store
            weights_BHTS = self.dropout(attention_weights(q_BHTE, k_BHSE, mask, causal=causal))
            mixed_BHTE = weights_BHTS.to(v_BHSE.dtype) @ v_BHSE
        else:
            mixed_BHTE = attend(q_BHTE, k_BHSE, v_BHSE, mask, causal=causal)
        return mixed_BHTE.transpose(1, 2).flatten(2)


def attention_weights(q_BHTE: Tensor, k_BHSE: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    """softmax(Q K^T / sqrt(E)), [B, H, T, S]; `mask` and `causal` as in `MultiHead.attend`."""
    scores_BHTS = q_BHTE @ k_BHSE.transpose(-2, -1) / math.sqrt(q_BHTE.shape[-1])
    if causal:
        mask = torch.ones(scores_BHTS.shape[-2:], dtype=torch.bool, device=q_BHTE.device).tril()
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask, -math.inf)
    return torch.softmax(scores_BHTS, dim=-1)


class SelfAttention(MultiHead):
    """Attention within a sequence."""

    def __init__(self, width: int, heads: int, dropout: float, make: MakeProjections, *, bias: bool = False) -> None:
        super().__init__(width, heads, dropout, make, bias=bias)
        self.qkv = make(dict.fromkeys(("q_proj", "k_proj", "v_proj"), (width, width)), heads=heads, bias=bias)

    def inner(self, x_BTD: Tensor, mask: Tensor | None = None, columns: LayerColumns | None = None) -> Tensor:
        """Input of the output projection, [B, T, D]. Tokens attend where `mask`, [B, 1, 1, T], is True; without a mask,
        up to their own position. With `columns`, T is 1; the token is appended to these and attends to all."""
        q, k, v, *read = self.qkv(x_BTD)
        q_BHTE, k_BHTE, v_BHTE = (split(x_BTD, self.head_width) for x_BTD in (q, k, v))
        if columns is not None:
            k_BHTE, v_BHTE = columns.append(k_BHTE, v_BHTE)
        causal = mask is None and columns is None
        return self.qkv.gated_at("sdpa", self.attend(q_BHTE, k_BHTE, v_BHTE, mask, causal=causal), *read)


class CrossAttention(MultiHead):
    """Attention to another sequence: queries from the first, keys and values from the second."""

    def __init__(self, width: int, heads: int, dropout: float, make: MakeProjections) -> None:
        super().__init__(width, heads, dropout, make)
        self.query = make({"q_proj": (width, width)}, heads=heads)
        self.key_value = make({"k_proj": (width, width), "v_proj": (width, width)})

    def keys_values(self, encoded_BSD: Tensor, mask_BS: Tensor) -> KeysValues:
        k, v = self.key_value(encoded_BSD)
        return KeysValues(split(k, self.head_width), split(v, self.head_width), mask_BS[:, None, None, :])

    def inner(self, x_RTD: Tensor, source: KeysValues) -> Tensor:
        """Input of the output projection, [R, T, D]. Rows b G to b G + G - 1 attend to sequence b. They are processed
        as additional queries, so keys are not copied."""
        x_BTD = x_RTD.reshape(len(source.k), -1, x_RTD.shape[-1])
        q, *read = self.query(x_BTD)
        mixed_BTD = self.attend(split(q, self.head_width), source.k, source.v, source.mask, causal=False)
        return self.query.gated_at("sdpa", mixed_BTD, *read).view_as(x_RTD)


class TwoLayerFeedForward(nn.Module):
    """W_down f(W_up x + b_up) + b_down, with `activation` f, followed by dropout."""

    last = "down"

    def __init__(
        self, width: int, ffn_width: int, dropout: float, make: MakeProjections, activation: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.up = make({"up_proj": (width, ffn_width)}, bias=True)
        self.down = make({"down_proj": (ffn_width, width)}, bias=True)
        self.dropout, self.activation = Dropout(dropout), activation

    def inner(self, x_BTD: Tensor) -> Tensor:
        return self.dropout(self.activation(self.up(x_BTD)[0]))
