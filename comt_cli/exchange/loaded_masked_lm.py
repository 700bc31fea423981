"""A trained masked language model, with what is needed to feed it text, wherever it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from comt_cli.exchange.codecs import BegunCodec
from comt_cli.exchange.loaded_text import LoadedText
from comt_cli.models.bert import Bert


@dataclass(frozen=True)
class LoadedMaskedModel(LoadedText):
    """A BERT. Its texts begin with the begin token."""

    command: ClassVar = "train-bert"
    codec_kind: ClassVar = BegunCodec

    model: Bert
