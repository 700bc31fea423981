"""Language modelling, evaluated by its perplexity and by the value that the papers' scripts would have printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
    """A LLaMA's run, which predicts the next token of every sequence; every token but the first is a target."""

    model: Llama
    validation: Rows
    objective: SummedLoss

    def __init__(self, spec: RunSpec, dataset: Dataset, world: World) -> None:
        super().__init__(spec, dataset, world)
        test_share = spec.settings_as(Settings).train.test_share
        if test_share is not None and dataset.validation is not None:  # benchmarks have no data
            self.validation, test = without_last(dataset.validation, test_share)
            self.tests = {"test": test}

    def arrays(self, batch: Batch) -> tuple[NDArray[Any], ...]:
        return batch.tokens, batch.targets

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.tensors(batch)  # a LLaMA has no dropout

    def read(self, inputs: Sequence[Tensor]) -> Tensor:
        """By the targets, because a tokenizer from a file can have a word at the id that fills rows."""
        is_target_BT = inputs[1] != IGNORE
        return is_target_BT | is_target_BT.roll(1, dims=1)

    def checkpoint_parts(self) -> dict[str, Any]:
        return super().checkpoint_parts() | {"vocabulary": self.model.vocabulary}  # the tokenizer may have fewer tokens

    def evaluate(self, batches: Iterable[Batch], split: Any) -> Evaluation:
        """Evaluate on all processes' batches.

        `perplexity` is exp of the token-weighted mean over all targets. `galore_perplexity` reproduces the public
        scripts: exp of the unweighted mean over batches of each batch's mean, times n / (n + 1), because they count
        batches from one; n is the number per process, and the processes' numbers are averaged. `bits_per_byte` is the
        loss in bits, times the split's `tokens_per_byte`. Raises `ValueError` if there are no targets.
        """

        def tally(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
            """Loss, tokens, sum of batch means, batches."""
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
            # The mean over processes of sum / (n + 1), with the same n for all.
            "galore_perplexity": perplexity(mean_sum / (count_batches + self.world.size)),
        }
        return Evaluation(loss, metrics, {"tokens": tokens, "batches": int(count_batches)})
