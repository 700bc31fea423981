"""Token names that a reader can read, and that every font and text engine of a figure can draw."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from matplotlib.font_manager import FontProperties, findfont, get_font

MAX_LINES = 36
"""So many tokens get a line of their own, as many as an image of scenes has regions; the legend says how many the text
has."""
_LONGEST = 14
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_labels(pieces: Sequence[str]) -> list[str]:
    r"""A label for each token of a text: its number from 1 and its name.

    A token that begins a word loses its '▁', one that continues a word gets a '-' before it (where the tokenizer
    marks words at all). Spaces show as '␣', line breaks as '\n', signs that the font lacks as '\u65e5'.
    """
    marks_words = any(piece.startswith("▁") and piece.strip("▁") for piece in pieces)
    labels = []
    for number, piece in enumerate(pieces):
        name = _BYTE.sub(_printable_byte, piece)
        goes_on = marks_words and number > 0 and _is_of_word(name) and _is_of_word(pieces[number - 1][-1:])
        word = name[1:] if name.startswith("▁") and name.strip("▁") else name
        text = ("-" if goes_on else "") + word.replace("▁", "␣").replace(" ", "␣").replace("\n", "\\n")
        if len(text) > _LONGEST:
            text = text[: _LONGEST - 1] + "…"
        labels.append(f"{number + 1} {drawable(text)}")
    return labels


def _is_of_word(text: str) -> bool:
    """Whether it starts with a digit or a letter that has a case: scripts that write no spaces are not marked."""
    return text[:1].isdigit() or text[:1].lower() != text[:1].upper()


def drawable(text: str) -> str:
    """`text` with what the figures' font lacks spelled out, and dollar signs kept from starting a formula."""
    signs = _signs_of_font()
    spelled = "".join(sign if ord(sign) in signs else sign.encode("unicode_escape").decode() for sign in text)
    return spelled.replace("$", r"\$")


def _printable_byte(match: re.Match[str]) -> str:
    byte = int(match[1], 16)
    return chr(byte) if 0x20 <= byte < 0x7F or byte == 0x0A else match[0]


@functools.cache
def _signs_of_font() -> frozenset[int]:
    font = get_font(findfont(FontProperties(family="DejaVu Sans")))
    return frozenset(code for code in font.get_charmap() if code >= 0x20)
