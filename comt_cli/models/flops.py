"""FLOPs of a model, counted by running it without storage."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from comt_cli.models.llama import Llama


def flops_of_row(model: Llama, length: int) -> int:
    """FLOPs of matrix products for one row of `length` tokens, forward and backward, of a model on the meta device.

    2 a multiply-add; attention counted in full. What activation checkpointing computes twice counts once.
    """
    tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), reduction="sum"))
    total: int = counter.get_total_flops()
    return total


def parameter_count(model: torch.nn.Module) -> int:
    """Trainable numbers."""
    return sum(parameter.numel() for parameter in model.parameters())
