"""The settings of a run of fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from pydantic import PositiveFloat, model_validator

from comt_cli.data.glue.settings import GlueData
from comt_cli.recipe.settings import Count, RunSettings
from comt_cli.tasks.settings import StartedTraining
from comt_cli.tasks.settings.masked_lm import BertSettings, BertTrainSettings, check_positions


class GlueTrainSettings(BertTrainSettings, StartedTraining):
    """Fine-tuning as BERT had it, unless said otherwise. Batch sizes count examples."""

    later: ClassVar[frozenset[str]] = StartedTraining.later

    batch_size: Count = 32
    learning_rate: PositiveFloat = 2e-5

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.compile:
            yield "compile: every batch has another shape, and each would be compiled anew; leave it out"


class GlueSettings(RunSettings):
    """Everything that decides a run of fine-tuning, apart from its method, its seed and the run that it starts from."""

    model: BertSettings
    data: GlueData
    train: GlueTrainSettings

    @model_validator(mode="after")
    def _examples_fit(self) -> Self:
        check_positions(self.model, self.data.sequence_length)
        return self
