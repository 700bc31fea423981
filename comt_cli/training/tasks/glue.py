"""Fine-tuning, evaluated by the measures of the task.

Shapes: B examples of a batch, T tokens of its longest, C classes (1 for a number), N examples of a split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from comt_cli.data.glue.dataset import GlueBatch, GlueDataset
from comt_cli.data.split import IGNORE, Split
from comt_cli.models.bert import BertClassifier
from comt_cli.runs.plan import RunSpec
from comt_cli.scoring.classification import classification_scores
from comt_cli.tasks.settings.glue import GlueSettings
from comt_cli.training.evaluation import Evaluation, mean_over
from comt_cli.training.objective import ClassifierLoss, NumberLoss
from comt_cli.training.parallel import World
from comt_cli.training.tasks import TextRun


class GlueRun(TextRun[GlueBatch]):
    """A run of a BERT for classification or regression of texts."""

    model: BertClassifier
    objective: ClassifierLoss

    def __init__(self, spec: RunSpec, dataset: GlueDataset, world: World) -> None:
        super().__init__(spec, dataset, world)
        self.data = spec.settings_as(GlueSettings).data

    def objective_of(self, model: nn.Module) -> ClassifierLoss:
        return NumberLoss(model) if self.data.classes == 1 else ClassifierLoss(model)

    def arrays(self, batch: GlueBatch) -> tuple[NDArray[Any], ...]:
        return batch.tokens, batch.segments, batch.targets

    def evaluate(self, batches: Iterable[GlueBatch], split: Split[GlueBatch]) -> Evaluation:
        """Loss and measures over all processes' batches; on validation only the main measure, as `score`."""
        found_2N = torch.zeros(2, len(split), device=self.world.device)

        def tally(tokens_BT: Tensor, segments_BT: Tensor, targets_B: Tensor, numbers_B: Tensor) -> Tensor:
            """Loss and number of examples; stores prediction and target of each example at its number."""
            logits_BC = self.objective.passes(tokens_BT, segments_BT)
            predicted_B = logits_BC[:, 0] if self.data.classes == 1 else logits_BC.argmax(-1)
            counted_B = targets_B != IGNORE
            pair_2B = torch.stack([predicted_B.float(), targets_B.float()])
            found_2N.index_add_(1, numbers_B, torch.where(counted_B, pair_2B, 0.0))
            return torch.stack([self.objective.loss_of(logits_BC, targets_B), counted_B.sum()])

        inputs = ((*self.tensors(batch), torch.from_numpy(batch.positions)) for batch in batches)
        loss, examples, _ = mean_over(self.objective, inputs, tally, self.settings.precision, self.world)
        extent, measures = {"examples": examples}, self.data.measures
        keys = measures[:1] if split is self.validation else measures
        names = {str(key): "score" if split is self.validation else str(key) for key in keys}
        if not math.isfinite(loss):
            return Evaluation(loss, dict.fromkeys(names.values()), extent)
        kind = np.float64 if self.data.classes == 1 else np.int64
        predicted_N, right_N = self.world.sum(found_2N).cpu().numpy().astype(kind)
        scores = classification_scores(predicted_N, right_N, tuple(names))
        missing = {names[key]: value for key, value in scores.items() if isinstance(value, str)}
        metrics = {names[key]: None if isinstance(value, str) else value for key, value in scores.items()}
        is_constant = self.data.classes > 1 and len(np.unique(predicted_N)) == 1
        return Evaluation(loss, metrics, extent, missing=missing, remark="predicts one class" if is_constant else None)
