"""What the workshops of all kinds of models do alike: variants that share a network's weights, and their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.benchmarks.step_turns import Prepared, Unavailable
from comt_cli.kernels.choice import Choice


def share_weights(model: nn.Module, first: nn.Module) -> None:
    """Make the parameters and buffers of `first`, a model of the same shape, those of `model`: both train the same."""
    model.load_state_dict(first.state_dict(keep_vars=True), assign=True)  # `keep_vars`: not copies


def prepared(
    loss: Callable[[], Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, notes: list[str]
) -> Prepared:
    """The step (loss, gradients, update) and the forward pass (loss without gradients) of `model`."""

    def step() -> None:
        torch.autograd.backward(loss())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def forward() -> None:
        with torch.no_grad():
            loss()

    return Prepared(step, forward, loss, list(model.parameters()), notes)


def not_fused(choices: Mapping[Any, Choice]) -> list[str]:
    """What of the fused operations that were asked for is not to be had, and why.

    Raises:
        Unavailable: none of them is.
    """
    missing = [f"{op}: {choice.reason}" for op, choice in choices.items() if not choice.fused]
    if len(missing) == len(choices):
        raise Unavailable(f"nothing is fused here ({'; '.join(missing)})")
    return missing
