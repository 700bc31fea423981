"""The settings of a run of a masked language model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import PositiveFloat, model_validator

from comt_cli.data.settings import MaskedData
from comt_cli.recipe.settings import Count, NonNegative, RunSettings
from comt_cli.tasks.settings.bert import BertSettings
from comt_cli.tasks.settings.language import TrainSettings


class MaskedTrainSettings(TrainSettings):
    """How a masked language model learns: as BERT did, unless said otherwise. Biases and norms have no weight decay."""

    batch_size: Count = 256
    learning_rate: PositiveFloat = 1e-4
    schedule: Literal["cosine", "linear", "noam", "constant"] = "linear"
    optimizer: Literal["adam", "adamw"] = "adamw"
    epsilon: PositiveFloat = 1e-6
    weight_decay: NonNegative = 0.01
    gradient_clipping: NonNegative = 1.0

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.sharding == "fsdp":
            yield "sharding: an evaluation reads more than the loss, for which no shards are gathered; leave it out"


class MaskedSettings(RunSettings):
    """Everything that decides a run of a masked language model, apart from its method and its seed."""

    model: BertSettings
    data: MaskedData
    train: MaskedTrainSettings

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        if self.data.sequence_length > self.model.positions:
            raise ValueError(
                f"data: sequence_length {self.data.sequence_length:,} is longer than the model's "
                f"{self.model.positions:,} positions; use a shorter one, or more model.positions"
            )
        return self
