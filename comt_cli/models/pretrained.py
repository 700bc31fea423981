"""Parameters that come from the weights a run starts from: trained, frozen, or adapted by LoRA (Hu et al. 2021).

LoRA's A and B are part of the model while they are learned, and of the checkpoints that a run resumes from. In all
other files, and in the model after the last step, s B A is added to W. The run can then be read like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.layers.projection import Projections
from comt_cli.recipe.settings import Training

LORA = ".lora."
"""Part of the name of LoRA's matrices, between projections and site."""


def is_part(name: str, parts: Iterable[str]) -> bool:
    """Whether a tensor of this name is in one of the parts, which are name prefixes."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def is_pretrained(name: str, new: Iterable[str]) -> bool:
    """Whether a tensor comes from the start, unlike the parts `new`."""
    return LORA not in name and not is_part(name, new)


def adapt(model: nn.Module, rank: int, scale: float, new: Sequence[str]) -> None:
    """Freeze parameters that come from the start, in a model on the meta device; with a rank, add LoRA's matrices."""
    for name, parameter in model.named_parameters():
        if is_pretrained(name, new):
            parameter.requires_grad_(False)
    for path, module in [*model.named_modules()] if rank else ():
        if isinstance(module, Projections) and is_pretrained(f"{path}.weight", new):
            module.adapt(rank, scale)


def merged(weights: Mapping[str, Tensor], train: Training) -> dict[str, Tensor]:
    """Weights of a run with s B A added to each W that LoRA adapts, without A and B."""
    found = {name: weight for name, weight in weights.items() if LORA not in name}
    updates: dict[str, list[Tensor]] = {}
    scale = 1.0 if train.lora is None else train.lora[1]
    for name in weights:
        path, is_update, site = name.partition(LORA)
        if is_update and site.endswith(".A"):
            B, A = weights[f"{name[:-1]}B"].double(), weights[name].double()
            updates.setdefault(f"{path}.weight", []).append(scale * B @ A)
    for name, rows in updates.items():  # in the order of the sites, as the rows of W
        found[name] = (found[name].double() + torch.cat(rows)).to(found[name].dtype)
    return found


def unmerged(weights: Mapping[str, Tensor], own: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights for a model with the names `own`. If they are merged, without LoRA's matrices, B is zero."""
    return {name: torch.zeros(like.shape, dtype=like.dtype) for name, like in own.items() if LORA in name} | {**weights}
