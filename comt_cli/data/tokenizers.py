"""The file that carries a tokenizer of any kind. Apart from them, since it names them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from comt_cli.data.sentencepiece_tokenizer import SentencePieceTokenizer
from comt_cli.data.tokenizer import TOKENIZER_FORMAT, ByteTokenizer, Tokenizer
from comt_cli.data.word_tokenizer import WordTokenizer
from comt_cli.errors import UserError
from comt_cli.files import if_damaged, read_json


def tokenizer_from_json(value: Any) -> Tokenizer:
    """The tokenizer whose `to_json` is `value`. Raises `ValueError` when `value` is not that, or was damaged."""
    if not isinstance(value, dict) or value.get("format") != TOKENIZER_FORMAT:
        raise ValueError(f"it is not a tokenizer of format {TOKENIZER_FORMAT}")
    if value.get("kind") == "bytes":
        extras = value.get("extras", [])
        if not isinstance(extras, list) or not all(isinstance(extra, str) for extra in extras):
            raise ValueError("its special tokens are not a list of names")
        return ByteTokenizer(extras)
    if value.get("kind") == "sentencepiece":
        return SentencePieceTokenizer.from_json(value)
    if value.get("kind") == "words":
        return WordTokenizer.from_json(value)
    raise ValueError(f"it holds a tokenizer of unknown kind {value.get('kind')!r}")


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer that `Tokenizer.save` wrote. Raises `UserError` where the file is absent, or is not a whole
    tokenizer; the message names it."""
    try:
        return tokenizer_from_json(read_json(path))
    except FileNotFoundError as error:
        raise UserError(f"there is no tokenizer at {path}") from error
    except (OSError, ValueError) as error:  # ValueError: also damaged JSON and damaged UTF-8
        hint = "It is damaged or not written by comt. If it is in the cache, delete it and run the same command again."
        raise UserError(f"cannot read the tokenizer {path}: {error}", if_damaged(hint, error)) from error
