"""A table as a Markdown page."""

from __future__ import annotations

from comt_cli.report import words
from comt_cli.report.layout import Line, headings, lines
from comt_cli.report.setup_words import setup
from comt_cli.report.table import Table

_TEXTS = ("method", "direction")
"""Columns that are set to the left."""


def markdown(table: Table) -> str:
    """Title, how it was made, the verdict, a table for each column, footnotes and notes."""
    parts = [
        f"# {escaped(table.title)}",
        escaped(words.origin(table)),
        f"**Verdict.** {escaped(words.verdict(table))}",
    ]
    for column in table.columns:
        parts += [f"## {escaped(column)}", escaped(setup(table, column)), _grid(table, column)]
    if table.footnotes:
        parts.append("\n".join(f"- [{mark}] {escaped(text)}" for mark, text in enumerate(table.footnotes, start=1)))
    if table.notes:
        parts.append("\n".join(f"- {escaped(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def _grid(table: Table, column: str) -> str:
    names = headings(table)
    head = "| " + " | ".join(escaped(name) for name in names) + " |"
    alignment = "| " + " | ".join(":---" if name in _TEXTS else "---:" for name in names) + " |"
    return "\n".join([head, alignment, *(_row(line) for line in lines(table, column))])


def _row(line: Line) -> str:
    method, ours, *others = (escaped(cell) for cell in line.cells())
    if line.best:
        ours = f"**{ours}**"
    ours += "".join(f" [{mark}]" for mark in line.marks)
    return "| " + " | ".join([method, ours, *others]) + " |"


def escaped(text: str) -> str:
    r"""Keep text from being read as Markdown: `|`, `*`, `<`, `_` and the like get a backslash."""
    return "".join(f"\\{letter}" if letter in "\\`*_<|" else letter for letter in text)
