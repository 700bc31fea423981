"""A trained translator, with what is needed to feed it text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from comt_cli.exchange.loaded_decoder import LoadedDecoder
from comt_cli.models.transformer import Transformer
from comt_cli.tasks.settings.decoding import DecodeSettings


@dataclass(frozen=True)
class LoadedTranslator(LoadedDecoder):
    """`longest` counts the tokens of a sentence, its end included."""

    command: ClassVar = "train-mt"

    model: Transformer
    decode: DecodeSettings
