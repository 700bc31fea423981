"""Causal self-attention with rotary positions, and the gated feed-forward network: the two branches of a block.

Shapes: B batch, T tokens, D width, H heads, K key-value heads, E head width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.projection import Projections

Rotation = tuple[Tensor, Tensor]
MakeProjections = Callable[..., Projections]
"""Site names with their (input, output) widths -> the projections, gates included. With `heads`, gates that attention
applies to what it mixed read the projections' input too."""


def rotation_table(length: int, head_width: int, theta: float, like: Tensor) -> Rotation:
    """Cosines and sines of rotary position embeddings (Su et al. 2021), each [T, E/2], computed in fp32."""
    frequency_E = theta ** (-torch.arange(0, head_width, 2, device=like.device, dtype=torch.float32) / head_width)
    angle_TE = torch.arange(length, device=like.device, dtype=torch.float32)[:, None] * frequency_E
    return angle_TE.cos().to(like.dtype), angle_TE.sin().to(like.dtype)


def rotate(x_BHTE: Tensor, rotation: Rotation) -> Tensor:
    """Turn channel i and i + E/2 of every head by the position's angle (the layout of public LLaMA checkpoints)."""
    cos_TE, sin_TE = rotation
    first, second = x_BHTE.chunk(2, dim=-1)
    return torch.cat([first * cos_TE - second * sin_TE, second * cos_TE + first * sin_TE], dim=-1)


class Attention(nn.Module):
    """softmax(RoPE(Q) RoPE(K)^T / sqrt(E)) V W_o with grouped key-value heads (CoMT, Eq. 5, 6)."""

    def __init__(self, width: int, heads: int, kv_heads: int, make: MakeProjections) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        kv_width = kv_heads * self.head_width
        widths = {"q_proj": (width, width), "k_proj": (width, kv_width), "v_proj": (width, kv_width)}
        self.qkv = make(widths, heads=heads)
        self.output = make({"o_proj": (width, width)})

    def forward(self, x_BTD: Tensor, rotation: Rotation) -> Tensor:
        """[B, T, D] -> [B, T, D]; position t sees positions up to t."""
        B, T, D = x_BTD.shape
        q, k, v, *read_by_gate = self.qkv(x_BTD)
        q_BHTE = rotate(q.view(B, T, self.heads, self.head_width).transpose(1, 2), rotation)
        k_BKTE = rotate(k.view(B, T, self.kv_heads, self.head_width).transpose(1, 2), rotation)
        v_BKTE = v.view(B, T, self.kv_heads, self.head_width).transpose(1, 2)
        mixed_BHTE = F.scaled_dot_product_attention(
            q_BHTE, k_BKTE, v_BKTE, is_causal=True, enable_gqa=self.kv_heads != self.heads
        )
        mixed_BTD = mixed_BHTE.transpose(1, 2).reshape(B, T, D)
        if "sdpa" in self.qkv.gates:  # Qiu et al. 2025, their position G1
            mixed_BTD = self.qkv.gate("sdpa")(mixed_BTD, *(read_by_gate or [None]))
        output_BTD: Tensor = self.output(mixed_BTD)[0]
        return output_BTD


class FeedForward(nn.Module):
    """SwiGLU: W_down (silu(W_gate x) * W_up x) (CoMT, Eq. 7, 8)."""

    def __init__(self, width: int, ffn_width: int, make: MakeProjections) -> None:
        super().__init__()
        self.gate_up = make({"gate_proj": (width, ffn_width), "up_proj": (width, ffn_width)})
        self.down = make({"down_proj": (ffn_width, width)})

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        gate_BTF, up_BTF = self.gate_up(x_BTD)
        output_BTD: Tensor = self.down(F.silu(gate_BTF) * up_BTF)[0]
        return output_BTD
