"""The tokenizers that models come with, as `TextCodec`: comt's own, and those of the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders

from comt_cli.data.tokenizer import Tokenizer


class OwnCodec:
    """A tokenizer of comt, for texts as models are trained on them: with a begin token or without, then the end of the
    text; of models that read one text or two (`pairs`) a separator closes each instead.

    Attributes:
        begin_ids: the token that a text begins with, if there is one.
        close_id: the token behind a text.
    """

    def __init__(self, tokenizer: Tokenizer, *, begins: bool = False, pairs: bool = False) -> None:
        """Raises `ValueError` where the tokenizer has no begin token, or no separator, and needs one."""
        self.tokenizer, self.pairs = tokenizer, pairs
        self.begin_ids = [tokenizer.special.need("begin")] if begins or pairs else []
        self.close_id = tokenizer.special.need("separator") if pairs else tokenizer.eos_id
        self.end_ids = frozenset([tokenizer.eos_id])

    def encode(self, text: str) -> list[int]:
        """The ids of `text` between what a text begins and is closed with."""
        return [*self.begin_ids, *self.tokenizer.encode(text), self.close_id]

    def prompt(self, text: str) -> list[int]:
        """The same without the end; where that is nothing, the end of the text before, as a text begins in training."""
        return [*self.begin_ids, *self.tokenizer.encode(text)] or [self.tokenizer.eos_id]

    def decode(self, ids: Sequence[int]) -> str:
        """The tokenizer's own text of `ids`."""
        return self.tokenizer.decode([i for i in ids if 0 <= i < self.tokenizer.vocabulary_size])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The tokenizer's own names."""
        return self.tokenizer.pieces(ids)


class LibraryCodec:
    """A `tokenizer.json`, with the special tokens that its own post-processor adds.

    Which tokens begin (`begin_id`) and end (`end_ids`) a text is said elsewhere, in the file or folder around it.
    """

    def __init__(self, tokenizer: LibraryTokenizer, begin_id: int | None = None, end_ids: Collection[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.begin_id, self.end_ids = begin_id, frozenset(end_ids)
        self._is_byte_level = '"ByteLevel"' in json.dumps(json.loads(tokenizer.to_str())["decoder"])
        self._decoder = decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with a beginning-of-text token where this tokenizer has one."""
        return list(self.tokenizer.encode(text).ids)

    def prompt(self, text: str) -> list[int]:
        """The ids of `text` after what the post-processor puts before it, without what it puts behind."""
        ids, bare = self.encode(text), list(self.tokenizer.encode(text, add_special_tokens=False).ids)
        if bare:
            before = next((n for n in range(len(ids) - len(bare) + 1) if ids[n : n + len(bare)] == bare), 0)
            return ids[: before + len(bare)]
        # What surrounds no text. Where that is an end alone, the next text begins after it.
        begins = [i for i in ids if i not in self.end_ids]
        return begins or ids[:1] or ([self.begin_id] if self.begin_id is not None else sorted(self.end_ids)[:1])

    def decode(self, ids: Sequence[int]) -> str:
        """The library's text of `ids`."""
        return str(self.tokenizer.decode([i for i in ids if self.tokenizer.id_to_token(i) is not None]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's names; those of byte-level vocabularies ('Ġcastle', 'Ċ') are turned into text first."""
        names = [self.tokenizer.id_to_token(int(i)) or f"<{i}>" for i in ids]
        if self._is_byte_level:
            names = [self._decoder.decode([name]) for name in names]
        return [name.replace(" ", "▁").replace("\n", "\\n") for name in names]


def byte_alphabet() -> dict[int, str]:
    """The printable character by which byte-level vocabularies (GPT-2's) write each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
