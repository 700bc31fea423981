"""The carrier sentences of the almanac, read from the file beside this one: text in four languages with typed slots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

AlmanacLanguage = Literal["en", "de", "fr", "vi"]
LANGUAGES: tuple[AlmanacLanguage, ...] = get_args(AlmanacLanguage)

_SLOT = re.compile(r"\{([a-z]+(?:\.\d)?)\}")


@dataclass(frozen=True)
class Slot:
    """A place for a value. `key` distinguishes it from the sentence's other slots: its type, or `type.2`."""

    key: str

    @property
    def type(self) -> str:
        """The type of the value."""
        return self.key.partition(".")[0]


@dataclass(frozen=True, eq=False)
class Carrier:
    """A sentence in every language; a text is a sequence of strings and slots. The slots are those of the English."""

    texts: Mapping[AlmanacLanguage, tuple[str | Slot, ...]]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Its slots, in the order of the English sentence."""
        return tuple(part for part in self.texts["en"] if isinstance(part, Slot))


@dataclass(frozen=True)
class Carriers:
    """All of them: `clauses` may be joined in pairs, `labels` stand alone. `source` is the text that they are read
    from, without its comments."""

    clauses: tuple[Carrier, ...]
    labels: tuple[Carrier, ...]
    source: str


@cache
def carriers() -> Carriers:
    """The carriers of `almanac_carriers.txt`. Raises `ValueError` where the file is not as its first lines say."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    divide = lines.index("[labels]")
    return Carriers(_read(lines[1:divide]), _read(lines[divide + 1 :]), "\n".join(lines))


def _read(lines: list[str]) -> tuple[Carrier, ...]:
    count = len(LANGUAGES)
    found = []
    for start in range(0, len(lines), count):
        several = lines[start : start + count]
        texts = {language: _parse(line) for language, line in zip(LANGUAGES, several, strict=True)}
        keys = {tuple(sorted(part.key for part in text if isinstance(part, Slot))) for text in texts.values()}
        if len(keys) != 1:
            raise ValueError(f"the languages have different slots: {several}")
        found.append(Carrier(texts))
    return tuple(found)


def _parse(line: str) -> tuple[str | Slot, ...]:
    """Text and slots in turn; `re.split` gives the keys of the slots at the odd places."""
    parts = _SLOT.split(line)
    return tuple(Slot(part) if place % 2 else part for place, part in enumerate(parts) if part)
