"""Evaluations: their results, and sums over batches and processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.recipe.settings import Precision
from comt_cli.training.devices import compute_context
from comt_cli.training.parallel import World


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        loss: the mean loss in nats a target; NaN or infinite where the model's is.
        metrics: the task's, by their keys in `result.json`; None where one is not finite.
        extent: what was evaluated, counted: samples, tokens, images ...
        signatures: by the keys of metrics the conventions of their own (sacreBLEU's).
        missing: by the keys of metrics that are None for another reason than the model, that reason: `needs Java`.
        remark: what a table must say beside its numbers: `predicts one class`.
    """

    loss: float
    metrics: dict[str, float | None]
    extent: dict[str, int]
    signatures: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    remark: str | None = None

    def line(self, split: str = "validation") -> dict[str, float | None]:
        """Its numbers in `metrics.jsonl`, where it was on this split."""
        return {f"{split}_{key}": value for key, value in {"loss": finite(self.loss), **self.metrics}.items()}

    @property
    def signed(self) -> dict[str, Any]:
        """The signatures, what is missing and the remark in `result.json`, where there are any."""
        first = next(iter(self.signatures.values()), None)
        said = {"signature": first, "signatures": dict(self.signatures), "missing": dict(self.missing)}
        return {key: value for key, value in {**said, "remark": self.remark}.items() if value}


def finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


def perplexity(loss: float) -> float | None:
    """exp of a loss in nats; None where a float cannot hold it."""
    return math.exp(loss) if loss < 700 else None


@torch.no_grad()
def mean_over(
    module: nn.Module,
    batches: Iterable[tuple[Tensor, ...]],
    tally: Callable[..., Tensor],
    precision: Precision,
    world: World,
) -> tuple[float, int, list[float]]:
    """The mean loss a target, the number of targets, and other sums, over the batches of all processes, of which
    `tally(*inputs)` gives those of one. Raises `ValueError` where there is not one target."""
    module.eval()
    found = []
    for inputs in batches:
        with compute_context(precision, world.device):
            found.append(tally(*(tensor.to(world.device) for tensor in inputs)))
    module.train()
    # In fp64: sums are of up to tens of millions of losses, and fp32 would lose the last of them.
    sums = torch.zeros(len(found[0]), dtype=torch.float64)
    for numbers in torch.stack(found).cpu().double():
        sums += numbers
    total: list[float] = world.sum(sums.to(world.device) if world.device.type == "cuda" else sums).tolist()
    loss, targets, *others = total
    if not targets:
        raise ValueError("there is nothing to evaluate on")
    return loss / targets, int(targets), others
