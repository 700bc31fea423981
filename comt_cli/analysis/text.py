"""What a network of tokens is observed on: a text, or what an encoder and a decoder read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedText
from comt_cli.models.transformer import EncoderDecoder

DEFAULT_TEXT = "Once a king left his castle by the sea."
"""Of the papers' kind: content words, function words, punctuation."""
MAX_TOKENS = 512
"""A text may be this long, or as long as the model was trained on if that is less."""


@dataclass(frozen=True)
class Tokens:
    """A text as the model sees it: `ids` int64 [T], and the name of each token."""

    ids: Tensor
    pieces: list[str]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the model takes of it: int64 [1, T]."""
        return (self.ids[None],)


@dataclass(frozen=True)
class Regions:
    """An image as the model sees it: `vectors` float32 [R, F], and the name of each region."""

    vectors: Tensor
    pieces: list[str]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the model takes of it: the vectors, [1, R, F], and where there are any, bool [1, R]."""
        return self.vectors[None], torch.ones(1, len(self.vectors), dtype=torch.bool)


@dataclass(frozen=True)
class Observation:
    """What a network is run on once.

    Attributes:
        sequences: its inputs in their order, by name.
        read: the names of what modules read, where that is not the last sequence.
        said: sentences for a caption, which say what the sequences are.
    """

    sequences: Mapping[str, Tokens | Regions]
    read: Mapping[nn.Module, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The model's inputs, a batch of one."""
        return tuple(each for sequence in self.sequences.values() for each in sequence.inputs)

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


def encoded_and_decoded(
    model: EncoderDecoder, source: Mapping[str, Tokens | Regions], target: Mapping[str, Tokens], *said: str
) -> Observation:
    """A source and a target, each by its name, for a model that encodes the one and decodes the other.

    All modules of the encoder read the source, and those that make the keys and values of cross-attention.
    """
    (name,) = source
    of_source = [*model.encoder.modules(), *(block.cross.key_value for block in model.decoder_blocks())]
    last = "The decoder's tokens are those that it reads, from the begin token on."
    return Observation({**source, **target}, dict.fromkeys(of_source, name), (*said, last))
