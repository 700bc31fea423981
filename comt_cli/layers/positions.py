"""Positions in a sequence: rotary, which rotate queries and keys, and sinusoidal, which are added to embeddings.

Shapes: B batch, H heads, T tokens, E head width, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each [T, E/2]."""


def rotation_table(length: int, head_width: int, theta: float, like: Tensor) -> Rotation:
    """Cosines and sines of rotary position embeddings (Su et al. 2021), [T, E/2] each, on the device of `like`. They
    are fp32 for any input type, so that a kernel can invert the rotation."""
    frequency_E = theta ** (-torch.arange(0, head_width, 2, device=like.device, dtype=torch.float32) / head_width)
    angle_TE = torch.arange(length, device=like.device, dtype=torch.float32)[:, None] * frequency_E
    return angle_TE.cos(), angle_TE.sin()


def rotate(x_BHTE: Tensor, rotation: Rotation) -> Tensor:
    """Rotate channels i and i + E/2 of every head by the position's angle (the layout of public LLaMA checkpoints)."""
    cos_TE, sin_TE = (table.unsqueeze(-3) for table in rotation)
    first, second = x_BHTE.chunk(2, dim=-1)
    turned = torch.cat([first * cos_TE - second * sin_TE, second * cos_TE + first * sin_TE], dim=-1)
    return turned.to(x_BHTE.dtype)


def sinusoids(length: int, width: int, like: Tensor) -> Tensor:
    """Sinusoidal positions from 0, [T, D], computed in fp32: sin(t / 10000^(2i/D)) in channel i of the first half, its
    cosine in channel i of the second (the paper's formula in tensor2tensor's channel order)."""
    frequency_d = 10000.0 ** (-torch.arange(0, width, 2, device=like.device, dtype=torch.float32) / width)
    angle_Td = torch.arange(length, device=like.device, dtype=torch.float32)[:, None] * frequency_d
    return torch.cat([angle_Td.sin(), angle_Td.cos()], dim=-1).to(like.dtype)
