"""The half of the toy task that trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from comt_cli.data.split import IGNORE, Split
from comt_cli.data.text.rows import Batch
from comt_cli.models.llama import Llama
from comt_cli.training.evaluation import Evaluation, mean_over
from comt_cli.training.objective import SummedLoss
from comt_cli.training.tasks import TaskRun


class CopyingRun(TaskRun[Batch]):
    """A LLaMA that copies."""

    model: Llama

    def objective_of(self, model: Llama) -> SummedLoss:
        return SummedLoss(model, self.settings.kernels)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        device = self.world.device
        return torch.from_numpy(batch.tokens).to(device), torch.from_numpy(batch.targets).to(device)

    def evaluate(self, batches: Iterable[Batch], split: Split[Batch]) -> Evaluation:
        def tally(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
            """Loss, symbols, right symbols, sequences, right sequences."""
            counted_BT = targets_BT != IGNORE
            right_BT = (self.model(tokens_BT).argmax(-1) == targets_BT) | ~counted_BT
            counts = [counted_BT, right_BT & counted_BT, counted_BT.any(1), right_BT.all(1) & counted_BT.any(1)]
            return torch.stack([self.objective(tokens_BT, targets_BT), *(each.sum() for each in counts)])

        pairs = (self.inputs(batch) for batch in batches)
        loss, symbols, (right, sequences, copied) = mean_over(
            self.objective, pairs, tally, self.settings.precision, self.world
        )
        metrics: dict[str, float | None] = {"copied": 100 * copied / sequences, "right": 100 * right / symbols}
        return Evaluation(loss, metrics, {"symbols": symbols, "sequences": int(sequences)})

    def checkpoint_parts(self) -> dict[str, Any]:
        return {}
