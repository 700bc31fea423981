"""A table on the terminal, at most 100 columns wide; without colour and line drawing where it is not one."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from comt_cli.report import words
from comt_cli.report.layout import headings, increases, lines
from comt_cli.report.setup_words import setup
from comt_cli.report.table import Table

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
_SHOWN = 6
"""Method to direction: more does not fit."""


def console_for(file: IO[str] | None = None) -> Console:
    """A console for `file` (standard output if None): never wider than `WIDTH`, and exactly so when not a terminal."""
    from rich.console import Console

    console = Console(file=file, highlight=False)
    console.width = min(WIDTH, console.width) if console.is_terminal else WIDTH
    return console


def print_table(table: Table, file: IO[str] | None = None) -> None:
    """Print the title, a grid for each column, footnotes, notes and the verdict."""
    from rich.text import Text

    console = console_for(file)
    console.print(Text(f"{table.title} ({table.paper} {table.name}, scale {table.scale})", style="bold"))
    for column in table.columns:
        console.print()
        console.print(Text(f"{column}: {setup(table, column)}", style="dim"))
        _print_grid(console, table, column)
    console.print()
    for mark, text in enumerate(table.footnotes, start=1):
        console.print(Text(f"[{mark}] {text}"))
    for text in (*table.notes, words.verdict(table)):
        console.print(Text(text))


def _print_grid(console: Console, table: Table, column: str) -> None:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    shape = box.SIMPLE_HEAD if console.is_terminal else None
    grid = Grid(box=shape, header_style="bold", pad_edge=False, show_edge=False)
    last = _SHOWN - 1  # the direction, whose words may wrap; names and numbers may not
    for position, heading in enumerate(headings(table)[:_SHOWN]):
        numeric = 0 < position < last
        grid.add_column(Text(heading), justify="right" if numeric else "left", no_wrap=position < last)
    for line in lines(table, column):
        method, ours, *others = line.cells()[:_SHOWN]
        marked = ours + "".join(f" [{mark}]" for mark in line.marks)
        grid.add_row(Text(method), Text(marked, style="bold" if line.best else ""), *(Text(cell) for cell in others))
    console.print(grid)
    beside = increases(table, column)
    if beside is not None:
        console.print(Text(beside, style="dim"))
