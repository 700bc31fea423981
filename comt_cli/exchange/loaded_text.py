"""A trained model that reads one text, of any task, with what is needed to feed it, wherever it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from comt_cli.data.tokenizers import tokenizer_from_json
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import check_blocks, check_tokens, name_of
from comt_cli.exchange.codecs import OwnCodec
from comt_cli.exchange.loaded import Loaded
from comt_cli.layers.gates import CarriesGates
from comt_cli.models.flops import parameter_count
from comt_cli.runs.plan import RunSpec


class TextCodec(Protocol):
    """Text to the token ids that a model was trained to see and back, and the ids' names for the axes of figures.

    `end_ids` are the tokens that end a text; there may be none.
    """

    end_ids: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """The ids of one whole text, with the special tokens that this model's texts begin and end with."""

    def prompt(self, text: str) -> list[int]:
        """The ids of the beginning of a text, which is to be continued: those of `encode` without what ends a text.

        Of an empty beginning that is the token that texts begin after; nothing where there is none.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`. Special tokens and ids that are not the tokenizer's stand for no text; bytes that are not
        UTF-8, such as a character of which only the beginning is there, for U+FFFD."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        r"""A name for each id: '▁castle' begins with a space, '</s>' ends a text, '\\n' is a line break."""


@dataclass(frozen=True)
class LoadedText(Loaded):
    """`codec` is None where the source has no tokenizer; `context_length` is the longest text the model was trained on,
    in tokens, where the source says it. Of our own checkpoints the codec is a `codec_kind`."""

    codec_kind: ClassVar[type[OwnCodec]] = OwnCodec

    model: Any
    codec: TextCodec | None = None
    context_length: int | None = None

    @classmethod
    def kind(cls) -> str:
        return "a language model" if cls.command is None else super().kind()

    @classmethod
    def check(cls, state: Mapping[str, Any], spec: RunSpec, path: Path) -> None:
        settings: Any = spec.settings
        check_blocks(state["model"], path, blocks=settings.model.shape().layers)
        check_tokens(state, settings.data.vocabulary_size, path)

    @classmethod
    def from_checkpoint(cls, model: Any, state: Mapping[str, Any], spec: RunSpec, path: Path) -> Self:
        try:
            codec = cls.codec_kind(tokenizer_from_json(state["tokenizer"]))
        except ValueError as error:
            raise UserError(f"{path}: its tokenizer cannot be restored: {error}") from None
        settings: Any = spec.settings
        length = settings.data.sequence_length
        return cls(model, name_of(spec), describe(model, spec.method_words), codec, length, spec=spec)

    def text_codec(self) -> TextCodec:
        """The codec. Raises `UserError` where the source has no tokenizer."""
        if self.codec is None:
            raise UserError(f"{self.name} has no tokenizer, so it cannot be fed text", "A folder needs tokenizer.json.")
        return self.codec


def residual_name(model: Any) -> str:
    """The published name of the model's residual connection, `pre-norm` ...; a user's own by its class."""
    kind = type(model.blocks[0].attention_connection)
    return str(vars(kind).get("name", kind.__name__))


def gated_sites(model: Any) -> list[str]:
    """The names of the sites that carry a gate in any layer, in the order of the model."""
    names = [name for module in model.modules() if isinstance(module, CarriesGates) for name in module.gates]
    return list(dict.fromkeys(names))


def describe(model: Any, method: str | None = None, plain: str = "a plain LLaMA") -> str:
    """One line for people: method, or `plain` of a model that has none, residual connection, gates, size."""
    shape = model.shape
    sites = gated_sites(model)
    parts = [
        f"method {method}" if method else plain,
        f"residual connection {residual_name(model)}",
        f"gates at {', '.join(sites)}" if sites else "no gates",
        f"{shape.layers} layers of width {shape.width}, {parameter_count(model):,} parameters",
    ]
    return ", ".join(parts)
