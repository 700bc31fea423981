"""The optimiser and the learning rate of every step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from comt_cli.layers.learned import UpdateRule
from comt_cli.recipe.settings import Training
from comt_cli.tasks.settings import OPTIMIZERS
from comt_cli.training.parallel import is_sharded

RATE = "rate"
"""The key of an optimiser's parameter group with the factor on the learning rate."""


def learning_rate(settings: Training, step: int) -> float:
    """The learning rate of update `step`, counted from 0.

    All schedules rise linearly from 0 over `warmup_steps`, so the first update has rate 0, as in the papers' scripts;
    then `cosine` and `linear` fall to `min_lr_ratio` of the peak at `steps`, and `noam` as `peak * sqrt(warmup / step)`
    (Vaswani et al. 2017, Eq. 3, with the peak given). `step` divides by ten once each of the `milestones` updates are
    done. A `warmup_learning_rate` is that of all of the warm-up.
    """
    peak, warmup, floor = settings.learning_rate, settings.warmup_steps, settings.min_lr_ratio or 0.0
    if step < warmup:
        held: float | None = getattr(settings, "warmup_learning_rate", None)
        return peak * step / warmup if held is None else held
    progress = (step - warmup) / max(1, settings.steps - warmup)
    match settings.schedule:
        case "cosine":
            return peak * (floor + (1 - floor) * (0.5 * (1 + math.cos(math.pi * progress))))
        case "linear":
            return peak * (floor + (1 - floor) * (1 - progress))
        case "noam":
            return peak * math.sqrt(warmup / step)
        case "step":
            milestones: tuple[int, ...] = getattr(settings, "milestones", ())
            return float(peak / 10.0 ** sum(step >= drop for drop in milestones))
        case _:  # constant
            return peak


def optimizer_of(model: nn.Module, settings: Any) -> torch.optim.Optimizer:
    """The optimiser that the settings name (`OPTIMIZERS`); parameters with a rule of the model's own
    (`layers.learned.UpdateRule`) are updated by it. Where the settings say so (BERT's), biases, norms and single
    numbers have no weight decay.

    One parameter group has all that are updated alike; sharded ones are separate from the others, since one fused pass
    takes one kind. In a group the largest come first: on CUDA one launch updates a few dozen tensors at most.
    """
    rules: dict[nn.Parameter, UpdateRule] = {}
    for module in model.modules():
        if isinstance(rule := getattr(module, "update_rule", None), UpdateRule):
            rules |= dict.fromkeys(module.parameters(recurse=False), rule)
    members: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        own = rules.get(parameter)
        decays = own.decays if own else parameter.ndim > 1 or not getattr(settings, "decays_matrices_alone", False)
        key = (settings.weight_decay if decays else 0.0, own.rate if own else 1.0, is_sharded(parameter))
        members.setdefault(key, []).append(parameter)
    parts = [
        {"params": sorted(alike, key=nn.Parameter.numel, reverse=True), "weight_decay": decay, RATE: rate}
        for (decay, rate, _), alike in members.items()
    ]
    kind = OPTIMIZERS[settings.optimizer]
    build = getattr(torch.optim, kind.torch_class)
    found: torch.optim.Optimizer = build(parts, lr=settings.learning_rate, **kind.arguments(settings))
    return found


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every parameter group: `rate`, times the group's own."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(RATE, 1.0)
