"""A CSV of any columns as a table of a page."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

Line = Mapping[str, str]

_UNITS = {"_percent": ", %", "_points": ", points", "_per_second": "/s", "_seconds": ", s", "_bytes": ", bytes"}


@dataclass(frozen=True)
class Grid:
    """`same`: heading and text of the columns that have one value in all lines; the other columns make the table, each
    cell a text and whether it is a number. `links` are addresses of texts."""

    caption: str
    same: list[tuple[str, str]]
    headings: list[str]
    rows: list[list[tuple[str, bool]]]
    links: Mapping[str, str]


def grid(
    caption: str, lines: Sequence[Line], links: Mapping[str, str] | None = None, without: Collection[str] = ()
) -> Grid:
    """The table of a CSV's lines, whatever its columns are, but some. Numbers have five significant digits; columns
    without any value are left out."""
    keys = [key for key in (lines[0] if lines else {}) if key not in without and any(line[key] for line in lines)]
    same = [key for key in keys if len({line[key] for line in lines}) < min(2, len(lines)) and key != "id"]
    varying = [key for key in keys if key not in same]
    return Grid(
        caption,
        [(heading(key), shown(lines[0][key])) for key in same],
        [heading(key) for key in varying],
        [[(shown(line[key]), not line[key] or _number(line[key]) is not None) for key in varying] for line in lines],
        links or {},
    )


def verdict_class(text: str) -> str:
    """The class that a cell with a verdict is coloured by; its words say the same without colours."""
    return f"verdict {re.sub(r'[^a-z]+', '-', text.lower()).strip('-')}"


def heading(key: str) -> str:
    """`difference, %` for `difference_percent`; `tokens/s` for `tokens_per_second`; else the words of the key."""
    ending = next((ending for ending in _UNITS if key.endswith(ending)), "")
    return f"{key.removesuffix(ending).replace('_', ' ')}{_UNITS.get(ending, '')}"


def shown(text: str) -> str:
    """A field for people: a fraction has five significant digits; what is no number stays as it is."""
    number = _number(text)
    return text if number is None or text.lstrip("+-").isdigit() else f"{number:.5g}"


def _number(text: str) -> float | None:
    """The number that a field is. Not every text that `float` takes: an id of a run may read `12e4`, or `nan`."""
    try:
        number = float(text)
    except ValueError:
        return None
    plain = text.lstrip("+-").replace(".", "", 1).isdigit()
    return number if plain or "e+" in text or "e-" in text else None
