"""The text that a network is observed on, as tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
