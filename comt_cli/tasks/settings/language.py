"""The settings of a run of a language model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from comt_cli.data.settings import DataSettings
from comt_cli.recipe.settings import Count, RunSettings, Tokens, Training
from comt_cli.tasks.settings.llama import ModelSettings


class TrainSettings(Training):
    """How a language model learns: with Adam. Batch sizes count rows of tokens."""

    batch_size: Count = 512
    learning_rate: PositiveFloat = 1e-3
    schedule: Literal["cosine", "linear", "noam", "constant"] = "cosine"
    optimizer: Literal["adam", "adamw"] = "adam"
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: PositiveFloat = 1e-8
    activation_checkpointing: bool = False
    sharding: Literal["none", "fsdp"] = "none"
    evaluation_tokens: Tokens | None = None

    @property
    def moments_per_parameter(self) -> int:
        return 2

    @property
    def recomputes(self) -> bool:
        return self.activation_checkpointing

    @property
    def shards(self) -> bool:
        return self.sharding == "fsdp"


class Settings(RunSettings):
    """Everything that decides a run of a language model, apart from its method and its seed."""

    model: ModelSettings
    data: DataSettings
    train: TrainSettings
