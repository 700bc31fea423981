"""Whole words as tokens: for captions, whose vocabulary is a list of words by a rule, with one for all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from comt_cli.data.special_tokens import SpecialTokens
from comt_cli.data.tokenizer import TOKENIZER_FORMAT, Tokenizer

_SPECIAL = ("<pad>", "</s>", "<s>", "<unk>")
SPECIAL_WORDS = len(_SPECIAL)


class WordTokenizer(Tokenizer):
    """Words between spaces: 0 is padding, 1 the end of a text, 2 its begin, 3 a word outside the vocabulary, and 4 + i
    word i of the list."""

    pad_id = 0
    eos_id = 1

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
        """Padding, end, begin, and the word that stands for all that are not in the list."""
        return SpecialTokens(pad=0, end=1, begin=2, unknown=3)

    def encode(self, text: str) -> list[int]:
        """The ids of the words of `text`, which are told apart by spaces."""
        return [self._ids.get(word, 3) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        """The words with spaces between; unknown ones are shown as `<unk>`, other special ones stand for no text."""
        return " ".join(self._name(int(i)) for i in ids if int(i) >= 3)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The words, special ones by their names."""
        return [self._name(int(i)) for i in ids]

    def _name(self, number: int) -> str:
        return _SPECIAL[number] if number < len(_SPECIAL) else self.words[number - len(_SPECIAL)]

    def to_json(self) -> dict[str, Any]:
        """The list of words."""
        return {"format": TOKENIZER_FORMAT, "kind": "words", "words": list(self.words)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        words = value.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("its words are not a list of words")
        return cls(words)
