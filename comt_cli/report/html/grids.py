"""A CSV of any columns as a table of a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Line = Mapping[str, str]

_UNITS = {"_percent": ", %", "_points": ", points", "_per_second": "/s", "_seconds": ", s", "_bytes": ", bytes"}
_OF_RUNS = ("id", "run_ids")
"""The columns that lead to runs."""


@dataclass(frozen=True)
class Cell:
    """A text, and the links that it is made of instead, if it is: pairs of address and text. `anchor` is its id, `kind`
    the class that it is set by: `n` for numbers, a verdict's for verdicts."""

    text: str
    links: tuple[tuple[str, str], ...] = ()
    anchor: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Grid:
    """`same`: heading and text of the columns that have one value in all lines; the other columns make the table."""

    caption: str
    same: list[tuple[str, str]]
    headings: list[str]
    rows: list[list[Cell]]


def grid(caption: str, lines: Sequence[Line], section: str, folders: Mapping[str, str] | None = None) -> Grid:
    """The table of a CSV's lines, whatever its columns are. Numbers have five significant digits.

    Ids of runs (`run_ids`) lead to the lines of the runs' own table in the same `section`, whose `id` column leads to
    the run directory where `folders` has its address. Columns without any value are left out.
    """
    keys = [key for key in (lines[0] if lines else {}) if any(line[key] for line in lines)]
    same = [key for key in keys if len({line[key] for line in lines}) < min(2, len(lines)) and key not in _OF_RUNS]
    varying = [key for key in keys if key not in same]
    met: set[str] = set()
    return Grid(
        caption=caption,
        same=[(heading(key), shown(lines[0][key])) for key in same],
        headings=[heading(key) for key in varying],
        rows=[[_cell(key, line[key], section, folders or {}, met) for key in varying] for line in lines],
    )


def _cell(key: str, text: str, section: str, folders: Mapping[str, str], met: set[str]) -> Cell:
    """`met` gathers the runs that have their line: one that is behind two rows has its anchor at the first."""
    if key == "run_ids":
        return Cell(text, links=tuple((f"#{run_anchor(section, run)}", run) for run in text.split()))
    if key == "id":
        anchor = "" if text in met else run_anchor(section, text)
        met.add(text)
        return Cell(text, links=((folders[text], text),) if text in folders else (), anchor=anchor)
    kind = verdict_class(text) if key == "verdict" else "" if not text or _number(text) is not None else "t"
    return Cell(shown(text), kind=kind)


def verdict_class(text: str) -> str:
    """The class that a cell with a verdict is coloured by; its words say the same without colours."""
    return f"verdict {re.sub(r'[^a-z]+', '-', text.lower()).strip('-')}"


def run_anchor(section: str, run: str) -> str:
    """The id of a run's line on the page."""
    return f"{section}/run/{run}"


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


def distinct(lines: Iterable[Line], key: str) -> list[str]:
    """The values of a column, each once, in order."""
    return sorted({line[key] for line in lines if line.get(key)})
