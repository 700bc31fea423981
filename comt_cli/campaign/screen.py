"""How the state of all workers is laid out on a terminal of some width: text alone, no drawing.

Every worker has a line: its name, its run, a bar, steps, time left, then the numbers of its last step as far as there
is room. What does not fit is left out, from the right; the bar goes last but for names and counts. Where even these do
not fit, a run takes two lines. No word is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comt_cli.words import wrap

GAP = "  "
LEAST_BAR, MOST_BAR = 6, 24
WIDE = 100
"""From so many columns on runs have their full names; below, the shortest unambiguous ones."""
MOST_WIDTH = 140
"""Wider lines are harder to read, not easier."""


@dataclass(frozen=True)
class Bar:
    """A bar of `cells` cells, of which `full` are filled."""

    cells: int
    full: int


Part = str | Bar
Line = Sequence[Part]


@dataclass(frozen=True)
class Row:
    """One worker's line, or that of all runs: `names` of it from the longest to the shortest, the
    `share` of it that is done (None: no bar), `facts` that must be seen, `details` that may be left out."""

    label: str
    names: tuple[str, ...]
    share: float | None
    facts: tuple[str, ...]
    details: tuple[str, ...] = ()


def lay_out(rows: Sequence[Row], width: int) -> list[Line]:
    """Lines of at most `width` columns, with the rows' parts below each other. See above for what is left out."""
    width = min(width, MOST_WIDTH)
    if width >= WIDE:
        lines = _one_line_each(rows, [row.names[0] if row.names else "" for row in rows], width, needs_bar=True)
        if lines is not None:
            return lines
    lines = _one_line_each(rows, [row.names[-1] if row.names else "" for row in rows], width)
    return lines if lines is not None else [line for row in rows for line in _two_lines(row, width)]


def _one_line_each(
    rows: Sequence[Row], names: Sequence[str], width: int, *, needs_bar: bool = False
) -> list[Line] | None:
    labels = max((len(row.label) for row in rows), default=0)
    named = max(map(len, names), default=0)
    columns = max((len(row.facts) for row in rows if row.share is not None), default=0)
    facts = [
        max((len(row.facts[at]) for row in rows if row.share is not None and at < len(row.facts)), default=0)
        for at in range(columns)
    ]
    left = [labels, named, *facts]
    fixed = sum(each + len(GAP) for each in left if each) - len(GAP)
    loose = max(
        (labels + len(GAP) + named + len(GAP) + len(GAP.join(row.facts)) for row in rows if row.share is None),
        default=0,
    )
    if max(fixed, loose) > width:
        return None
    has_bar = fixed + len(GAP) + LEAST_BAR <= width
    if needs_bar and not has_bar:
        return None
    details = _fitting_details(rows, width - fixed - (len(GAP) + LEAST_BAR)) if has_bar else []
    room = width - fixed - sum(each + len(GAP) for each in details) - len(GAP)
    cells = min(MOST_BAR, room) if has_bar else 0
    return [_line(row, name, labels, named, facts, details, cells) for row, name in zip(rows, names, strict=True)]


def _fitting_details(rows: Sequence[Row], room: int) -> list[int]:
    """The widths of those columns of details that have room, from the first."""
    found: list[int] = []
    for at in range(max((len(row.details) for row in rows), default=0)):
        wide = max(len(row.details[at]) for row in rows if at < len(row.details))
        room -= wide + len(GAP)
        if room < 0:
            break
        found.append(wide)
    return found


def _line(
    row: Row, name: str, labels: int, named: int, facts: Sequence[int], details: Sequence[int], cells: int
) -> Line:
    parts = [row.label.ljust(labels)] if labels else []
    parts += [name.ljust(named)] if named else []
    if row.share is None:
        return [GAP.join([*parts, *row.facts]).rstrip()]
    line: list[Part] = [GAP.join(parts) + GAP if parts else ""]
    if cells:
        line += [Bar(cells, round(cells * min(1.0, max(0.0, row.share)))), GAP]
    padded = [fact.rjust(wide) for fact, wide in zip(row.facts, facts, strict=False)]
    padded += [" " * wide for wide in facts[len(row.facts) :]]
    padded += [detail.rjust(wide) for detail, wide in zip(row.details, details, strict=False)]
    return [*line, GAP.join(padded).rstrip()]


def _two_lines(row: Row, width: int) -> list[Line]:
    """The name, then the facts, indented."""
    title = GAP.join(part for part in (row.label, row.names[-1] if row.names else "") if part)
    lines: list[Line] = [[text] for text in wrap(title, width, "  ")]
    facts = GAP.join(row.facts)
    if row.share is not None and len(GAP) + LEAST_BAR + len(GAP) + len(facts) <= width:
        full = round(LEAST_BAR * min(1.0, max(0.0, row.share)))
        return [*lines, [GAP, Bar(LEAST_BAR, full), GAP + facts]]
    return [*lines, *([GAP + text] for text in wrap(facts, max(1, width - len(GAP))))]
