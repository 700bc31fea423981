"""What the plain block pays for what residual connections, gates and shared values of others need of it: nothing.

A block of Pre-LN, as the model builds it, runs the very operations of a block that knows of none of these, forward and
backward, and keeps the same tensors. That says nothing of the time that Python takes between operations, which a
compiled step does not have.
Shapes: B batch, T tokens, D width, H heads, K key-value heads, E head width, F feed-forward width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from method_cases import SETTINGS, built, wiring_of
from same_bits import Reason, assert_same_bits
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from comt_cli.layers.attention import Rotation, rotation_table
from comt_cli.layers.residual.base import State


class PlainBlock(nn.Module):
    """h = x + attention(norm(x)), y = h + mlp(norm(h)), and nothing else."""

    def __init__(self, width: int, ffn_width: int, heads: int, kv_heads: int, epsilon: float) -> None:
        super().__init__()
        self.head_width = width // heads
        self.widths = [width, kv_heads * self.head_width, kv_heads * self.head_width]
        self.ffn_width = ffn_width
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, eps=epsilon), nn.RMSNorm(width, eps=epsilon)
        self.qkv = nn.Linear(width, sum(self.widths), bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * ffn_width, bias=False)
        self.down = nn.Linear(ffn_width, width, bias=False)

    def forward(self, x_BTD: Tensor, rotation: Rotation) -> Tensor:
        B, T, D = x_BTD.shape
        qkv = torch.split(self.qkv(self.attention_norm(x_BTD)), self.widths, dim=-1)
        q_BHTE, k_BKTE, v_BKTE = (part.view(B, T, -1, self.head_width).transpose(1, 2) for part in qkv)
        q_BHTE, k_BKTE = turned(q_BHTE, *rotation), turned(k_BKTE, *rotation)
        mixed_BHTE = F.scaled_dot_product_attention(q_BHTE, k_BKTE, v_BKTE, is_causal=True, enable_gqa=True)
        h_BTD = x_BTD + self.output(mixed_BHTE.transpose(1, 2).reshape(B, T, D))
        gate_BTF, up_BTF = torch.split(self.gate_up(self.mlp_norm(h_BTD)), [self.ffn_width, self.ffn_width], dim=-1)
        y_BTD: Tensor = h_BTD + self.down(F.silu(gate_BTF) * up_BTF)
        return y_BTD


def turned(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    cos, sin = cos_TE.unsqueeze(-3), sin_TE.unsqueeze(-3)
    first, second = x_BHTE.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Operations(TorchDispatchMode):
    """Counts the operations that run, views included, by name, by the shapes that they read and by the rest of what
    they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        told = tree_map_only(Tensor, lambda tensor: tensor.shape, (args, kwargs or {}))
        self.seen[str(func), str(told)] += 1
        return func(*args, **(kwargs or {}))


def one_step(
    block: Callable[[Tensor, Rotation], Tensor], weights: Sequence[Tensor], x_BTD: Tensor, rotation: Rotation
) -> tuple[list[Tensor], Counter[Any], Counter[Any]]:
    """The output and the gradients of the input and of these weights; the operations of both passes; the shapes of what
    the forward pass keeps."""
    x_BTD = x_BTD.clone().requires_grad_()
    kept: Counter[tuple[int, ...]] = Counter()

    def keep(tensor: Tensor) -> Tensor:
        kept[tuple(tensor.shape)] += 1
        return tensor

    operations = Operations()
    with operations:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            y_BTD = block(x_BTD, rotation)
        gradients = torch.autograd.grad(y_BTD, [x_BTD, *weights], torch.ones_like(y_BTD))
    return [y_BTD, *gradients], operations.seen, kept


def test_a_plain_block_runs_the_operations_of_one_that_knows_of_no_others():
    block, shape = built(wiring_of({"name": "pre-ln"})).blocks[1], SETTINGS.shape()
    plain = PlainBlock(shape.width, shape.ffn_width, shape.heads, shape.kv_heads, SETTINGS.norm_eps)
    pairs: list[tuple[Any, Any]] = [
        (plain.attention_norm, block.attention_connection.norm),
        (plain.qkv, block.attention.qkv),
        (plain.output, block.attention.output),
        (plain.mlp_norm, block.mlp_connection.norm),
        (plain.gate_up, block.mlp.gate_up),
        (plain.down, block.mlp.down),
    ]
    assert len(pairs) == len(list(plain.parameters())) == len(list(block.parameters()))
    with torch.no_grad():
        for own, ours in pairs:
            own.weight.copy_(ours.weight)
    x_BTD = torch.randn(3, 12, shape.width, generator=torch.Generator().manual_seed(0))
    rotation = rotation_table(12, shape.width // shape.heads, SETTINGS.rope_theta, x_BTD)
    expected, needed, keeps = one_step(plain, [own.weight for own, _ in pairs], x_BTD, rotation)
    as_tensor = lambda x_BTD, rotation: block(State(x_BTD), rotation).stream  # noqa: E731
    found, run, kept = one_step(as_tensor, [ours.weight for _, ours in pairs], x_BTD, rotation)
    assert (run - needed, needed - run) == ({}, {})
    assert kept == keeps
    assert_same_bits(found, expected, Reason.SAME_CALL)
