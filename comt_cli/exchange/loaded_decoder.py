"""A trained encoder-decoder of any task, with what is needed to make texts of what it puts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from comt_cli.data.tokenizer import Tokenizer
from comt_cli.data.tokenizers import tokenizer_from_json
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import check_blocks, check_tokens, name_of
from comt_cli.exchange.loaded import Loaded
from comt_cli.models.flops import parameter_count
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.decoding import BeamSettings


@dataclass(frozen=True)
class LoadedDecoder(Loaded):
    """`decode` is how the run decodes; `longest` the most tokens of a text that it was trained on, None where that is
    not known."""

    foreign: ClassVar = False

    model: EncoderDecoder
    tokenizer: Tokenizer
    decode: BeamSettings
    longest: int | None

    @classmethod
    def check(cls, state: Mapping[str, Any], spec: RunSpec, path: Path) -> None:
        settings: Any = spec.settings
        check_blocks(state["model"], path, **settings.model.shape().depths)
        check_tokens(state, settings.data.vocabulary_size, path)

    @classmethod
    def from_checkpoint(cls, model: EncoderDecoder, state: Mapping[str, Any], spec: RunSpec, path: Path) -> Self:
        settings: Any = spec.settings
        try:
            tokenizer = tokenizer_from_json(state["tokenizer"])
            tokenizer.special.need("begin")
        except ValueError as error:
            raise UserError(f"{path}: its tokenizer cannot be restored: {error}") from None
        shape = model.shape
        description = (
            f"method {spec.method_words}, {shape.encoder_layers} + {shape.decoder_layers} layers, "
            f"width {shape.width}, {parameter_count(model):,} parameters"
        )
        return cls(model, name_of(spec), description, tokenizer, settings.decode, settings.data.max_length, spec=spec)
