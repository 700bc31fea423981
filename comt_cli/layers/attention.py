"""Causal self-attention with rotary positions, and the gated feed-forward network: the two branches of a block.

Shapes: B batch, T tokens, D width, H heads, K key-value heads, E head width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.attend import attend
from comt_cli.kernels.heads import heads
from comt_cli.kernels.swiglu import swiglu
from comt_cli.layers.kv_cache import LayerCache
from comt_cli.layers.positions import Rotation, rotate
from comt_cli.layers.projection import Projections, aligned
from comt_cli.layers.shared_values import SharedValues

MakeProjections = Callable[..., Projections]
"""Site names with their (input, output) widths -> the projections, gates included. With `heads`, gates that attention
applies to what it mixed read the projections' input too."""


class Attention(nn.Module):
    """softmax(RoPE(Q) RoPE(K)^T / sqrt(E)) V W_o with grouped key-value heads (CoMT, Eq. 5, 6)."""

    fused = False
    """Whether one kernel applies the gates of q, k and v and turns q and k."""

    last = "output"

    def __init__(
        self, width: int, heads: int, kv_heads: int, make: MakeProjections, shared: SharedValues | None = None
    ) -> None:
        """`shared` makes keys and values where they are not the block's own alone."""
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.shared = shared
        kv_width = kv_heads * self.head_width
        widths = {"q_proj": (width, width), "k_proj": (width, kv_width), "v_proj": (width, kv_width)}
        if shared is not None and not shared.has_values:
            del widths["v_proj"]
        self.qkv = make(widths, heads=heads)
        self.output = make({"o_proj": (width, width)})

    def inner(
        self, x_BTD: Tensor, *kv_BTD: Tensor, rotation: Rotation, cache: LayerCache | None = None,
        shared_kv: list[Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Input of the output projection, [B, T, D]; position t sees positions up to t, and those in the cache. With
        two more inputs keys are computed from the second and values from the third. `shared_kv` holds keys and values
        of earlier blocks."""
        B, T, D = x_BTD.shape
        qkv, read_by_gate = self._rotated_heads(x_BTD, kv_BTD, rotation, [] if shared_kv is None else shared_kv)
        mixed_BHTE = attend(*qkv, causal=True) if cache is None else cache.attend(*qkv)
        mixed_BTD = mixed_BHTE.transpose(1, 2).reshape(B, T, D)
        return self.qkv.gated_at("sdpa", mixed_BTD, *read_by_gate)  # Qiu et al. 2025, their position G1

    def _rotated_heads(
        self, x_BTD: Tensor, kv_BTD: tuple[Tensor, ...], rotation: Rotation, shared_kv: list[Tensor]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
        """Queries [B, H, T, E] and keys [B, K, T, E], turned, values [B, K, T, E], and the input of a later gate."""
        shared = self.shared
        is_usual = len(kv_BTD) == 0 and (shared is None or (shared.has_values and not shared.mixes_keys))
        gates = self.qkv.modulation() if self.fused and is_usual else None
        if gates is None:
            q, k, *rest = self.qkv(x_BTD, *kv_BTD)
            q, k = self._split(q), self._split(k)
            v = self._split(rest.pop(0)) if shared is None or shared.has_values else None
            if shared is not None and shared.mixes_keys:
                k, v = shared(k, v, shared_kv)
            q, k = rotate(q, rotation), rotate(k, rotation)
        else:
            product_BTC = self.qkv.product(x_BTD)
            cos, sin = (table.flatten(0, -2) for table in rotation)
            parts = heads(product_BTC.flatten(0, -2), gates, cos, sin, self.heads, self.kv_heads)
            q, k, v = (self._split(part.view(*x_BTD.shape[:2], -1)) for part in parts)
            rest = [*self.qkv.read_later(product_BTC)]
        if shared is not None and not shared.mixes_keys:
            k, v = shared(k, v, shared_kv)
        assert v is not None
        return (q, k, v), (*rest,)

    def _split(self, x_BTN: Tensor) -> Tensor:
        """[B, T, heads * E] -> [B, heads, T, E]."""
        return x_BTN.view(*x_BTN.shape[:-1], -1, self.head_width).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU: W_down (silu(W_gate x) * W_up x) (CoMT, Eq. 7, 8)."""

    fused = False
    """Whether one kernel applies the gates of gate and up and joins the two."""

    last = "down"

    def __init__(self, width: int, ffn_width: int, make: MakeProjections) -> None:
        super().__init__()
        self.ffn_width = ffn_width
        self.gate_up = make({"gate_proj": (width, ffn_width), "up_proj": (width, ffn_width)})
        self.gate_up.packing.aligns_sites = True
        self.down = make({"down_proj": (ffn_width, width)})

    def inner(self, x_BTD: Tensor) -> Tensor:
        """Input of the down projection, [B, T, F], with zeros behind where a row is filled up (`aligned`)."""
        padded = aligned(self.ffn_width, x_BTD)
        gates = self.gate_up.modulation() if self.fused else None
        if gates is None:
            gate_BTF, up_BTF = self.gate_up(x_BTD)
            inner_BTF = F.silu(gate_BTF) * up_BTF
            return F.pad(inner_BTF, (0, padded - self.ffn_width)) if padded > self.ffn_width else inner_BTF
        inner_TF = swiglu(self.gate_up.product(x_BTD).flatten(0, -2), gates, padded, padded)
        return inner_TF.view(*x_BTD.shape[:2], padded)
