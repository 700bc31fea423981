"""The settings of a run of a language model."""

from __future__ import annotations

from comt_cli.data.settings import DataSettings
from comt_cli.recipe.settings import Count, RunSettings, Tokens
from comt_cli.tasks.settings.adam import AdamSettings
from comt_cli.tasks.settings.llama import ModelSettings


class TrainSettings(AdamSettings):
    """How a language model learns. Batch sizes count sequences of tokens."""

    batch_size: Count = 512
    evaluation_tokens: Tokens | None = None


class Settings(RunSettings):
    """Everything that decides a run of a language model, apart from its method and its seed."""

    model: ModelSettings
    data: DataSettings
    train: TrainSettings
