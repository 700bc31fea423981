"""Language modelling, and its evaluation: the perplexity, and beside it what the papers' scripts would have printed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.data.split import IGNORE
from comt_cli.data.text.dataset import Dataset
from comt_cli.data.text.rows import Batch, Rows, without_last
from comt_cli.models.llama import Llama
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.language import Settings
from comt_cli.training.evaluation import Evaluation, finite, mean_over, perplexity
from comt_cli.training.objective import SummedLoss
from comt_cli.training.parallel import World
from comt_cli.training.tasks import TextRun


class LanguageRun(TextRun[Batch]):
    """A LLaMA that predicts the next token of every sequence; its targets are the tokens that have one before them."""

    model: Llama
    validation: Rows
    objective: SummedLoss

    def __init__(self, spec: RunSpec, dataset: Dataset, world: World) -> None:
        super().__init__(spec, dataset, world)
        test_share = spec.settings_as(Settings).train.test_share
        if test_share is not None and dataset.validation is not None:  # a benchmark has no data
            self.validation, test = without_last(dataset.validation, test_share)
            self.tests = {"test": test}

    def arrays(self, batch: Batch) -> tuple[NDArray[Any], ...]:
        return batch.tokens, batch.targets

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.tensors(batch)  # a LLaMA has no dropout that follows positions

    def evaluate(self, batches: Iterable[Batch], split: Any) -> Evaluation:
        """Evaluate on this process's batches, and sum over all processes.

        `perplexity` is exp of the token-weighted mean over all targets. `galore_perplexity` is what the public scripts
        print: exp of the unweighted mean over batches of each batch's mean, times n / (n + 1), because their count of
        batches starts at one; n is of one process, and the processes' numbers are averaged. `bits_per_byte` is the loss
        in bits, times the split's `tokens_per_byte`. Raises `ValueError` where there is not one target to predict.
        """

        def tally(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
            """Loss, tokens, batch means, batches."""
            count = int((targets_BT != IGNORE).sum())
            value = float(self.objective(tokens_BT, targets_BT))
            numbers = [value, count, value / count, 1.0] if count else [0.0] * 4
            return torch.tensor(numbers, dtype=torch.float64)

        pairs = map(self.tensors, batches)
        loss, tokens, sums = mean_over(self.objective, pairs, tally, self.settings.precision, self.world)
        mean_sum, count_batches = sums
        metrics = {
            "perplexity": perplexity(loss),
            "bits_per_byte": finite(loss / math.log(2) * split.tokens_per_byte),
            # The mean over processes of sum / (n + 1), where all have the same n.
            "galore_perplexity": perplexity(mean_sum / (count_batches + self.world.size)),
        }
        return Evaluation(loss, metrics, {"tokens": tokens, "batches": int(count_batches)})
