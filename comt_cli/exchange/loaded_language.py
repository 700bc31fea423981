"""A trained language model, with what is needed to feed it text, wherever it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from comt_cli.exchange.loaded_text import LoadedText
from comt_cli.models.llama import Llama


@dataclass(frozen=True)
class LoadedModel(LoadedText):
    """A LLaMA."""

    command: ClassVar = "train-lm"

    model: Llama
