"""FLOPs of a model, counted by running it without storage."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from comt_cli.models.llama import Llama
from comt_cli.models.resnet import ResNet


def flops_of_row(model: Llama, length: int) -> int:
    """FLOPs of matrix products for one row of `length` tokens, forward and backward, of a model on the meta device.

    2 a multiply-add; attention counted in full. What activation checkpointing computes twice counts once.
    """
    tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), reduction="sum"))
    total: int = counter.get_total_flops()
    return total


def flops_of_image(model: ResNet, size: int) -> int:
    """FLOPs of convolutions and matrix products for one image of `size` x `size` pixels, forward and backward, of a
    model on the meta device: 2 a multiply-add. The gradient of the image itself, which nothing needs, is not counted.
    """
    images = torch.zeros(2, 3, size, size, device="meta")  # batch norm takes no lone pixel
    labels = torch.zeros(2, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(F.cross_entropy(model(images), labels, reduction="sum"))
    total: int = counter.get_total_flops()
    return total // 2


def parameter_count(model: torch.nn.Module) -> int:
    """Trainable numbers."""
    return sum(parameter.numel() for parameter in model.parameters())
