"""The settings of a run of a translator."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from comt_cli.data.pairs.settings import PairData
from comt_cli.recipe.settings import Count, RunSettings
from comt_cli.tasks.settings.transformer import DecoderTrainSettings, DecodeSettings, TransformerSettings


class TranslationTrainSettings(DecoderTrainSettings):
    """How a translator learns. Batch sizes count buckets of pairs, each of at most `data.batch_tokens` tokens."""

    batch_size: Count = 1
    label_smoothing: Annotated[float, Field(ge=0, le=0.9)] = 0.1


class TranslationSettings(RunSettings):
    """Everything that decides a run of a translator, apart from its method and its seed."""

    model: TransformerSettings
    data: PairData
    train: TranslationTrainSettings
    decode: DecodeSettings = DecodeSettings()
