"""Tokenizers: bytes, whole words, SentencePiece models; and the file that carries any of them."""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from comt_cli.data.special_tokens import EXTRA_PIECES, SpecialTokens, in_order
from comt_cli.errors import UserError
from comt_cli.files import if_damaged, read_json, sha256, write_json

TOKENIZER_FORMAT = 1


class Tokenizer(ABC):
    """Text to token ids and back. Ids are in [0, vocabulary_size); no special token is added or needed by `encode`."""

    vocabulary_size: int
    pad_id: int = 0
    eos_id: int = 1

    @property
    @abstractmethod
    def special(self) -> SpecialTokens:
        """The ids of all special tokens that it has."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without an end-of-text token."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of every text, on all cores; the order is kept."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens stand for no text."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        r"""A readable name of each token, for the axes of figures: '▁castle', '</s>', '\\n'."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All that `tokenizer_from_json` needs to build the same tokenizer elsewhere."""

    def save(self, path: Path) -> None:
        """Write the tokenizer to one JSON file, whole or not at all. Raises `StorageError`."""
        write_json(path, self.to_json())


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes: 0 is padding, 1 the end of a text, 2 + b the byte b, 258 and above the extra special tokens."""

    def __init__(self, extras: Collection[str] = ()) -> None:
        """With the special tokens named in `extras` (`special_tokens.Extra`). Raises `ValueError` at unknown ones."""
        self._extras = {extra: 258 + number for number, extra in enumerate(in_order(extras))}
        self.vocabulary_size = 258 + len(self._extras)

    @property
    def special(self) -> SpecialTokens:
        return SpecialTokens(self.pad_id, self.eos_id, **self._extras)

    def encode(self, text: str) -> list[int]:
        return [2 + byte for byte in text.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        """The text; bytes that are not UTF-8, such as a character cut in half, become U+FFFD."""
        return bytes(int(i) - 2 for i in ids if 2 <= i < 258).decode(errors="replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        special = {self.pad_id: "<pad>", self.eos_id: "</s>"}
        special |= {number: EXTRA_PIECES[extra] for extra, number in self._extras.items()}
        return [special.get(int(i)) or _byte_name(int(i) - 2) for i in ids]

    def to_json(self) -> dict[str, Any]:
        extras = {"extras": list(self._extras)} if self._extras else {}
        return {"format": TOKENIZER_FORMAT, "kind": "bytes", **extras}


def _byte_name(byte: int) -> str:
    return chr(byte) if 0x20 < byte < 0x7F else f"<0x{byte:02X}>"


_SPECIAL = ("<pad>", "</s>", "<s>", "<unk>")
SPECIAL_WORDS = len(_SPECIAL)


class WordTokenizer(Tokenizer):
    """Whole words between spaces, for captions: 0 is padding, 1 the end of a text, 2 its begin, 3 a word outside the
    vocabulary, and 4 + i word i of the list."""

    def __init__(self, words: Sequence[str]) -> None:
        """Raises `ValueError` where a word occurs twice, is empty or has a space in it, or is a special one."""
        self.words = tuple(words)
        self._ids = {word: len(_SPECIAL) + number for number, word in enumerate(self.words)}
        if len(self._ids) < len(self.words):
            raise ValueError("a word occurs twice in the vocabulary")
        if wrong := [word for word in self.words if word.split() != [word] or word in _SPECIAL]:
            raise ValueError(f"{wrong[0]!r} cannot be a word of the vocabulary")
        self.vocabulary_size = len(_SPECIAL) + len(self.words)

    @property
    def special(self) -> SpecialTokens:
        return SpecialTokens(pad=0, end=1, begin=2, unknown=3)

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, 3) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        """The words with spaces between; unknown ones are shown as `<unk>`, other special ones stand for no text."""
        return " ".join(self.pieces([i for i in ids if int(i) >= 3]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        names = _SPECIAL + self.words
        return [names[int(i)] for i in ids]

    def to_json(self) -> dict[str, Any]:
        return {"format": TOKENIZER_FORMAT, "kind": "words", "words": list(self.words)}


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model. `vocabulary_size` and the special ids are the model's own."""

    def __init__(self, model: bytes) -> None:
        """Raises `ValueError` when `model` is not the content of a `.model` file."""
        import sentencepiece

        self._model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(f"it holds no SentencePiece model ({error})") from error
        self.vocabulary_size = int(self._processor.vocab_size())
        self.pad_id = int(self._processor.pad_id())
        self.eos_id = int(self._processor.eos_id())
        if self.pad_id < 0 or self.eos_id < 0:
            raise ValueError("its SentencePiece model has no padding or no end-of-text token")

    @property
    def special(self) -> SpecialTokens:
        """The model's own; mask and separator are its control pieces of these names, never a piece of text."""

        def known(i: int) -> int | None:
            return i if i >= 0 else None

        def control(name: str) -> int | None:
            i = int(self._processor.piece_to_id(name))
            return i if self._processor.is_control(i) else None

        return SpecialTokens(
            pad=self.pad_id,
            end=self.eos_id,
            begin=known(int(self._processor.bos_id())),
            mask=control(EXTRA_PIECES["mask"]),
            separator=control(EXTRA_PIECES["separator"]),
            unknown=known(int(self._processor.unk_id())),
        )

    def encode(self, text: str) -> list[int]:
        """The ids of `text`. A literal '▁' (U+2581) comes back as a space: SentencePiece uses it to mean one."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode(list(texts), out_type=int)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._processor.decode([int(i) for i in ids])
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        r"""The model's pieces: '▁castle' begins a word, '</s>' ends a text, '\\n' is a line break."""
        return [str(self._processor.id_to_piece(int(i))).replace("\n", "\\n") for i in ids]

    def to_json(self) -> dict[str, Any]:
        model = base64.b64encode(self._model).decode("ascii")
        return {"format": TOKENIZER_FORMAT, "kind": "sentencepiece", "sha256": sha256(self._model), "model": model}


def tokenizer_from_json(value: Any) -> Tokenizer:
    """The tokenizer whose `to_json` is `value`. Raises `ValueError` when `value` is not that, or was damaged."""
    if not isinstance(value, dict) or value.get("format") != TOKENIZER_FORMAT:
        raise ValueError(f"it is not a tokenizer of format {TOKENIZER_FORMAT}")
    if value.get("kind") == "bytes":
        return ByteTokenizer(_names(value.get("extras", [])))
    if value.get("kind") == "words":
        return WordTokenizer(_names(value.get("words")))
    if value.get("kind") != "sentencepiece":
        raise ValueError(f"it holds a tokenizer of unknown kind {value.get('kind')!r}")
    try:
        model = base64.b64decode(str(value.get("model")), validate=True)
    except binascii.Error as error:
        raise ValueError("its model is not base64") from error
    if sha256(model) != value.get("sha256"):
        raise ValueError("its model is not the one that was stored (the hash differs)")
    return SentencePieceTokenizer(model)


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("its words or special tokens are not a list of names")
    return value


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
