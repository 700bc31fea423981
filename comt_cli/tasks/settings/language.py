"""The settings of a run of a language model."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from comt_cli.data.text.settings import DataSettings
from comt_cli.recipe.settings import CapturedTraining, Count, RunSettings, Tokens
from comt_cli.tasks.settings.adam import AdamSettings
from comt_cli.tasks.settings.llama import ModelSettings


class TrainSettings(AdamSettings, CapturedTraining):
    """How a language model learns. Batch sizes count sequences of tokens.

    `test_share` of the validation sequences, the last ones, are the test split: the final weights alone are evaluated
    on them, and they are no longer part of validation.
    """

    later: ClassVar[frozenset[str]] = AdamSettings.later | {"test_share"}

    batch_size: Count = 512
    evaluation_tokens: Tokens | None = None
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None


class Settings(RunSettings):
    """Everything that decides a run of a language model, apart from its method and its seed."""

    model: ModelSettings
    data: DataSettings
    train: TrainSettings
