"""The optimiser and the learning rate of every step."""

from __future__ import annotations

import math

import torch
from torch import nn

from comt_cli.recipe.settings import TrainSettings


def learning_rate(settings: TrainSettings, step: int, width: int) -> float:
    """The learning rate of update `step`, counted from 0.

    All but noam rise linearly from 0 over `warmup_steps`, so the first update has rate 0, as in the scripts that the
    papers used; then `cosine` and `linear` fall to `min_lr_ratio` of the peak at `steps`.
    noam (Vaswani et al. 2017, Eq. 3) is `peak * width^-0.5 * min((s+1)^-0.5, (s+1) * warmup^-1.5)`.
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if settings.schedule == "noam":
        count = step + 1
        return peak / math.sqrt(width) * min(1 / math.sqrt(count), count / math.sqrt(warmup) ** 3)
    if step < warmup:
        return peak * step / warmup
    progress = (step - warmup) / max(1, settings.steps - warmup)
    match settings.schedule:
        case "cosine":
            share = 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            share = 1 - progress
        case "constant":
            return peak
    floor = settings.min_lr_ratio
    assert floor is not None  # these schedules have one
    return peak * (floor + (1 - floor) * share)


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Adam or AdamW over all parameters in one group, in the fused form (one pass over the states)."""
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
