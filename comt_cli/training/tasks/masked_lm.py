"""Masked language modelling, evaluated by loss, perplexity and accuracy of hidden tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.data.split import IGNORE, Split
from comt_cli.data.text.rows import MaskedBatch
from comt_cli.models.bert import Bert
from comt_cli.training.evaluation import Evaluation, finite, mean_over, perplexity
from comt_cli.training.objective import ClassifierLoss, SummedLoss
from comt_cli.training.tasks import TextRun


class MaskedRun(TextRun[MaskedBatch]):
    """A BERT's run, which predicts the hidden tokens of every sequence; only these are targets."""

    model: Bert
    objective: SummedLoss

    def arrays(self, batch: MaskedBatch) -> tuple[NDArray[Any], ...]:
        return batch.tokens, batch.places, batch.targets

    def evaluate(self, batches: Iterable[MaskedBatch], split: Split[MaskedBatch]) -> Evaluation:
        """Loss, perplexity and accuracy of the hidden tokens over all processes' batches."""

        def tally(tokens_BT: Tensor, places_BK: Tensor, targets_BK: Tensor) -> Tensor:
            """Loss, tokens, correctly predicted tokens."""
            logits_BKV = self.objective.logits(tokens_BT, places_BK)
            loss = ClassifierLoss.loss_of(logits_BKV.flatten(0, 1), targets_BK.flatten())
            right = (logits_BKV.argmax(-1) == targets_BK).sum()
            return torch.stack([loss, (targets_BK != IGNORE).sum(), right])

        tensors = map(self.tensors, batches)
        loss, tokens, (right,) = mean_over(self.objective, tensors, tally, self.settings.precision, self.world)
        metrics = {
            "masked_loss": finite(loss),
            "masked_perplexity": perplexity(loss),
            "masked_accuracy": 100 * right / tokens,
        }
        return Evaluation(loss, metrics, {"tokens": tokens})
