"""FLOPs of a model, counted by running it without storage."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from comt_cli.models.llama import Llama
from comt_cli.models.resnet import ResNet
from comt_cli.models.trace import Trace, rows_to_trace


def flops_of_row(model: Llama, length: int) -> int:
    """FLOPs of matrix products for one row of `length` tokens, forward and backward, of a model on the meta device.

    2 a multiply-add; attention counted in full. What activation checkpointing computes twice counts once.
    """

    def run(rows: int) -> Tensor:
        logits: Tensor = model(torch.zeros(rows, length, dtype=torch.long, device="meta"))
        return logits

    with Trace(rows_to_trace(model, length, model.shape.heads * length**2)) as trace:
        output = run(trace.rows)
    return flops_of_one(trace, output, run)


def flops_of_image(model: ResNet, size: int) -> int:
    """FLOPs of convolutions and matrix products for one image of `size` x `size` pixels, forward and backward, of a
    model on the meta device: 2 a multiply-add. The gradient of the image itself, which nothing needs, is not counted.
    """

    def run(images: int) -> Tensor:
        logits: Tensor = model(blank_images(images, size))
        return logits

    with Trace(rows_to_trace(model, size, size**2)) as trace:
        output = run(trace.rows)
    return flops_of_one(trace, output, run)


def blank_images(images: int, size: int) -> Tensor:
    """Images without storage, [B, 3, H, W] with the channels last in memory, as training hands them over."""
    return torch.zeros(images, 3, size, size, device="meta").to(memory_format=torch.channels_last)


def flops_of_one(trace: Trace, output: Tensor, run: Callable[[int], Tensor]) -> int:
    """FLOPs of a row, or an image, forward and backward, where `trace` saw how `output` came about.

    Where it cannot tell, `run`, which does the same on any number of rows, is run backward.
    """
    trace.run_functions(output)
    if not trace.underivable:
        return trace.flops.at(1)
    two, three = (_flops_both_ways(run, rows) for rows in (2, 3))  # not one: batch norm takes no lone pixel
    return 2 * two - three


def _flops_both_ways(run: Callable[[int], Tensor], rows: int) -> int:
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(run(rows).sum())
    total: int = counter.get_total_flops()
    return total


def parameter_count(model: torch.nn.Module) -> int:
    """Trainable numbers."""
    return sum(parameter.numel() for parameter in model.parameters())
