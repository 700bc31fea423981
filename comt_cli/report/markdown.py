"""A table as a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from comt_cli.report import format, words
from comt_cli.report.ladder_words import HEADING, ladder_texts, rule
from comt_cli.report.layout import Key, Line, by_metric, headings, lines, same_runs
from comt_cli.report.setup_words import setup
from comt_cli.report.table import Table
from comt_cli.report.trained import of_table

_LEFT: tuple[Key, ...] = ("method", "verdict")
"""Columns that are set to the left."""


def markdown(table: Table) -> str:
    """Title, what was trained, how it was made, the verdict, a table for each column, footnotes and notes."""
    parts = [
        f"# {escaped(table.title)}",
        f"*{escaped(of_table(table))}*",
        escaped(f"{words.origin(table, list(headings(table)))} {words.scale(table)}"),
        f"**Verdict.** {escaped(words.verdict(table))}",
    ]
    for columns in same_runs(table):
        made = _grid(table, columns[0])
        if len(columns) > 1:
            head, *rows = by_metric(table, columns, _texts)
            texts = [[*map(escaped, head)], [":---", ":---", *["---:"] * len(columns)]]
            texts += [[escaped(row[0]), escaped(row[1]), *row[2:]] for row in rows]
            made = "\n".join(f"| {' | '.join(line)} |" for line in texts)
        parts += [f"## {escaped(', '.join(map(table.heading, columns)))}", escaped(setup(table, columns)), made]
    if table.trends:
        parts += [f"## {HEADING}", escaped(rule(table)), pipes(ladder_texts(table))]
    if table.footnotes:
        parts.append("\n".join(f"- [{mark}] {escaped(text)}" for mark, text in enumerate(table.footnotes, start=1)))
    if table.notes:
        parts.append("\n".join(f"- {escaped(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def _grid(table: Table, column: str) -> str:
    names = headings(table, column)
    head = "| " + " | ".join(escaped(name) for name in names.values()) + " |"
    alignment = "| " + " | ".join(":---" if key in _LEFT else "---:" for key in names) + " |"
    return "\n".join([head, alignment, *(_row(line) for line in lines(table, column))])


def pipes(texts: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> str:
    """A table of texts, the headings first; `right` says which columns go to the right, by default all but the
    first."""
    rows = ["| " + " | ".join(map(escaped, line)) + " |" for line in texts]
    sides = ["---:" if to_right else ":---" for to_right in right or [False, *[True] * (len(texts[0]) - 1)]]
    return "\n".join([rows[0], "| " + " | ".join(sides) + " |", *rows[1:]])


def _row(line: Line) -> str:
    return "| " + " | ".join(_texts(line).values()) + " |"


def _texts(line: Line) -> dict[Key, str]:
    texts = {key: escaped(cell) for key, cell in line.cells.items()}
    if line.best:
        texts["ours"] = f"**{texts['ours']}**"
    texts["ours"] += "".join(f" [{mark}]" for mark in line.marks)
    return texts


_SPECIAL = "\\`*_<>|[]#~$"
_IN_PLACES = re.compile(
    r"^[-+](?=[-\s])"  # a list or a rule
    r"|(?<=^\d)[.)](?=\s|$)|(?<=^\d\d)[.)](?=\s|$)|(?<=^\d{3})[.)](?=\s|$)|(?<=^\d{4})[.)](?=\s|$)"
    r"|&(?=#?\w+;)"  # an entity
    r"|(?<=[A-Za-z]):(?=//)|(?<=\bwww)\.|(?<=\w)@(?=\w)",  # addresses, which some make links of
    re.IGNORECASE,
)
"""What is a mark in some places only."""


def escaped(text: str) -> str:
    r"""Text that a page shows as it stands, in a paragraph of its own or within a line.

    What Markdown reads as a mark gets a backslash: emphasis, code, links, images, HTML, headings, formulas, and at the
    beginning lists and rules. Line ends become spaces. Addresses are shown and not linked: the text may be of a
    stranger's recipe.
    """
    line = " ".join(format.one_line(text).split())
    marked = {found.start() for found in _IN_PLACES.finditer(line)}
    return "".join(
        f"\\{letter}" if letter in _SPECIAL or position in marked else letter for position, letter in enumerate(line)
    )
