"""The settings of a run of fine-tuning."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat, model_validator

from comt_cli.data.glue.settings import GlueData
from comt_cli.recipe.settings import Count, RunSettings
from comt_cli.tasks.settings import UNEQUAL_BATCHES, StartedTraining
from comt_cli.tasks.settings.masked_lm import BertSettings, BertTrainSettings, check_positions


class GlueTrainSettings(BertTrainSettings, StartedTraining):
    """Fine-tuning with BERT's defaults. Batch sizes count examples."""

    later: ClassVar[frozenset[str]] = StartedTraining.later
    refused: ClassVar = {**BertTrainSettings.refused, **UNEQUAL_BATCHES}

    batch_size: Count = 32
    learning_rate: PositiveFloat = 2e-5


class GlueSettings(RunSettings):
    """Everything that decides a run of fine-tuning, apart from its method, its seed and the run that it starts from."""

    model: BertSettings
    data: GlueData
    train: GlueTrainSettings

    _examples_fit = model_validator(mode="after")(check_positions)
