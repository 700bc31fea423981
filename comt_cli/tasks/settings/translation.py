"""The settings of a run of a translator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from comt_cli.data.pairs.settings import PairData
from comt_cli.recipe.settings import Count, RunSettings
from comt_cli.tasks.settings.adam import AdamSettings
from comt_cli.tasks.settings.decoding import DecodeSettings
from comt_cli.tasks.settings.transformer import TransformerSettings


class TranslationTrainSettings(AdamSettings):
    """How a translator learns. Batch sizes count buckets of pairs, each of at most `data.batch_tokens` tokens."""

    batch_size: Count = 1
    learning_rate: PositiveFloat = 6.99e-4
    schedule: Literal["cosine", "linear", "noam", "constant"] = "noam"
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    epsilon: PositiveFloat = 1e-9
    label_smoothing: Annotated[float, Field(ge=0, le=0.9)] = 0.1

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.compile:
            yield "compile: every batch has another shape, and each would be compiled anew; leave it out"
        if self.sharding == "fsdp":
            yield "sharding: beam search steps as often as its sentences need, which shards cannot follow; leave it out"


class TranslationSettings(RunSettings):
    """Everything that decides a run of a translator, apart from its method and its seed."""

    model: TransformerSettings
    data: PairData
    train: TranslationTrainSettings
    decode: DecodeSettings = DecodeSettings()
