"""A fine-tuned BERT, with what is needed to feed it text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from comt_cli.exchange.codecs import PairCodec
from comt_cli.exchange.loaded_text import LoadedText
from comt_cli.models.bert import BertClassifier


@dataclass(frozen=True)
class LoadedClassifier(LoadedText):
    """A BERT that puts texts into classes, or gives them a number. Its codec cuts one text alone, between the begin
    token and a separator."""

    command: ClassVar = "finetune"
    foreign: ClassVar = False
    codec_kind: ClassVar = PairCodec

    model: BertClassifier
