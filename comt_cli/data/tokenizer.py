"""What a tokenizer is, and the one that needs no training: bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from comt_cli.data.special_tokens import EXTRA_PIECES, SpecialTokens, in_order
from comt_cli.files import write_json

TOKENIZER_FORMAT = 1


class Tokenizer(ABC):
    """Text to token ids and back. Ids are in [0, vocabulary_size); no special token is added or needed by `encode`."""

    vocabulary_size: int
    pad_id: int
    eos_id: int

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

    pad_id = 0
    eos_id = 1

    def __init__(self, extras: Collection[str] = ()) -> None:
        """With the special tokens named in `extras` (`special_tokens.Extra`). Raises `ValueError` at unknown ones."""
        self._extras = {extra: 258 + number for number, extra in enumerate(in_order(extras))}
        self.vocabulary_size = 258 + len(self._extras)

    @property
    def special(self) -> SpecialTokens:
        """Padding, end and extras; no byte is unknown."""
        return SpecialTokens(self.pad_id, self.eos_id, **self._extras)

    def encode(self, text: str) -> list[int]:
        """2 + each byte of the text's UTF-8."""
        return [2 + byte for byte in text.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        """The text; bytes that are not UTF-8, such as a character cut in half, become U+FFFD."""
        return bytes(int(i) - 2 for i in ids if 2 <= i < 258).decode(errors="replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Printable ASCII as itself, the rest as '<0x0A>'."""
        special = {self.pad_id: "<pad>", self.eos_id: "</s>"}
        special |= {number: EXTRA_PIECES[extra] for extra, number in self._extras.items()}
        return [special.get(int(i)) or _byte_name(int(i) - 2) for i in ids]

    def to_json(self) -> dict[str, Any]:
        """There is nothing to store but the name, and the extras where there are any."""
        extras = {"extras": list(self._extras)} if self._extras else {}
        return {"format": TOKENIZER_FORMAT, "kind": "bytes", **extras}


def _byte_name(byte: int) -> str:
    return chr(byte) if 0x20 < byte < 0x7F else f"<0x{byte:02X}>"
