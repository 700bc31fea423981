"""Results of evaluations, and sums over batches and processes."""

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
    """The result of an evaluation.

    Attributes:
        loss: the mean loss in nats per target; not finite if the model's is not.
        metrics: the task's metrics by key of `result.json`; None if one is not finite or missing.
        extent: the numbers of evaluated samples, tokens, images ...
        signatures: conventions of metrics (sacreBLEU's signatures), by key.
        missing: reasons of missing metrics by key, such as `needs Java`.
        remark: a remark for tables, such as `predicts one class`.
    """

    loss: float
    metrics: dict[str, float | None]
    extent: dict[str, int]
    signatures: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    remark: str | None = None

    def line(self, split: str = "validation") -> dict[str, float | None]:
        """Its numbers for `metrics.jsonl`, on this split."""
        return {f"{split}_{key}": value for key, value in {"loss": finite(self.loss), **self.metrics}.items()}

    @property
    def signed(self) -> dict[str, Any]:
        """The signatures, missing metrics and remark for `result.json`, if there are any."""
        first = next(iter(self.signatures.values()), None)
        said = {"signature": first, "signatures": dict(self.signatures), "missing": dict(self.missing)}
        return {key: value for key, value in {**said, "remark": self.remark}.items() if value}


def finite(value: float) -> float | None:
    """The value, or None if JSON cannot represent it."""
    return value if math.isfinite(value) else None


def perplexity(loss: float) -> float | None:
    """exp of a loss in nats; None if it overflows."""
    return math.exp(loss) if loss < 700 else None


@torch.no_grad()
def mean_over(
    module: nn.Module,
    batches: Iterable[tuple[Tensor, ...]],
    tally: Callable[..., Tensor],
    precision: Precision,
    world: World,
) -> tuple[float, int, list[float]]:
    """The mean loss per target, the number of targets, and other sums, over the batches of all processes;
    `tally(*inputs)` returns these numbers for one batch. Raises `ValueError` if there are no targets."""
    module.eval()
    found = []
    for inputs in batches:
        with compute_context(precision, world.device):
            found.append(tally(*(tensor.to(world.device) for tensor in inputs)))
    module.train()
    # In fp64: fp32 would lose digits in sums of up to tens of millions of losses.
    sums = torch.zeros(len(found[0]), dtype=torch.float64)
    for numbers in torch.stack(found).cpu().double():
        sums += numbers
    total: list[float] = world.sum(sums.to(world.device) if world.device.type == "cuda" else sums).tolist()
    loss, targets, *others = total
    if not targets:
        raise ValueError("the evaluation data has no targets")
    return loss / targets, int(targets), others
