"""The settings of a run of a masked language model."""

from __future__ import annotations

from typing import Self

from pydantic import PositiveFloat, model_validator

from comt_cli.data.text.settings import MaskedData
from comt_cli.recipe.settings import Count, RunSettings, Tokens
from comt_cli.tasks.settings.bert import BertSettings, BertTrainSettings, check_positions


class MaskedTrainSettings(BertTrainSettings):
    """How a masked language model learns: as BERT did, unless said otherwise. Batch sizes count sequences."""

    batch_size: Count = 256
    learning_rate: PositiveFloat = 1e-4
    evaluation_tokens: Tokens | None = None


class MaskedSettings(RunSettings):
    """Everything that decides a run of a masked language model, apart from its method and its seed."""

    model: BertSettings
    data: MaskedData
    train: MaskedTrainSettings

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        check_positions(self.model, self.data.sequence_length)
        return self
