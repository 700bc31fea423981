"""What a network of tokens is observed on, and the text of a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.exchange.loaded_text import LoadedText

DEFAULT_TEXT = "Once a king left his castle by the sea."
"""Of the papers' kind: content words, function words, punctuation."""
MAX_TOKENS = 512
"""A text may be this long, or as long as the model was trained on if that is less."""


@dataclass(frozen=True)
class Tokens:
    """A text as the model sees it: `ids` int64 [T], and the name of each token."""

    ids: Tensor
    pieces: list[str]


@dataclass(frozen=True)
class Observation:
    """What a network is run on once.

    Attributes:
        sequences: its inputs in their order, by name.
        read: the names of what modules read, where that is not the last sequence.
        said: sentences for a caption, which say what the sequences are.
    """

    sequences: Mapping[str, Tokens]
    read: Mapping[nn.Module, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The model's inputs, int64 [1, T] each."""
        return tuple(tokens.ids[None] for tokens in self.sequences.values())

    def read_by(self, module: nn.Module) -> str:
        """The name of the sequence whose tokens a module of the network reads."""
        return self.read.get(module, [*self.sequences][-1])


def tokens_of(loaded: LoadedText, text: str | None = None) -> Tokens:
    """Cut `text` into the model's tokens, with the special one that its texts begin with, if there is one.

    What ends a text is not added: nobody wrote it, and gates take other values on it than on words. None stands for
    `DEFAULT_TEXT`, of which a model of short texts is shown the beginning.

    Raises:
        UserError: the model has no tokenizer, the text has fewer than two tokens or too many (`MAX_TOKENS`), or the
            tokenizer belongs to another model.
    """
    codec = loaded.text_codec()
    limit = min(MAX_TOKENS, loaded.context_length or MAX_TOKENS)
    ids = codec.prompt(DEFAULT_TEXT)[:limit] if text is None else codec.prompt(text)
    if not 2 <= len(ids) <= limit:
        raise UserError(f"the text has {len(ids)} tokens; {loaded.name} takes 2 to {limit}", "Give another --text.")
    if max(ids) >= loaded.model.vocabulary:
        raise UserError(
            f"{loaded.name}: its tokenizer makes the id {max(ids)}, but the model has {loaded.model.vocabulary} tokens"
        )
    return Tokens(torch.tensor(ids), codec.pieces(ids))


def observed_text(loaded: LoadedText, text: str | None = None) -> Observation:
    """A text for a model that reads one (see `tokens_of`)."""
    return Observation({"text": tokens_of(loaded, text)})
