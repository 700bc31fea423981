"""FLOPs of a model, counted by running it without storage."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from comt_cli.models.base import Model
from comt_cli.models.trace import Trace, rows_to_trace


def flops_per_sample(model: Model) -> int:
    """FLOPs of convolutions and matrix products for one sample of the model's example, forward and backward, of a model
    on the meta device: 2 a multiply-add, attention counted in full.

    What activation checkpointing computes twice counts once, and the gradient of the input itself, which nothing needs,
    not at all.
    """
    with trace_of(model) as trace:
        output = model(*model.example(trace.rows))
    return flops_of_one(trace, output, lambda samples: model(*model.example(samples)))


def trace_of(model: Model) -> Trace:
    """A trace with as many samples as the model can be traced with."""
    return Trace(rows_to_trace(model, model.example(1), model.largest))


def flops_of_one(trace: Trace, output: Tensor, run: Callable[[int], Tensor]) -> int:
    """FLOPs of a sample, forward and backward, where `trace` saw how `output` came about.

    Where that is not known, `run`, which does the same on any number of samples, is run backward.
    """
    trace.run_functions(output)
    if not trace.underivable:
        return trace.flops.at(1)
    two, three = (_flops_both_ways(run, samples) for samples in (2, 3))  # not one: batch norm takes no lone pixel
    return 2 * two - three


def _flops_both_ways(run: Callable[[int], Tensor], samples: int) -> int:
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(run(samples).sum())
    total: int = counter.get_total_flops()
    return total


def parameter_count(model: torch.nn.Module) -> int:
    """Trainable numbers."""
    return sum(parameter.numel() for parameter in model.parameters())
