"""A table on the terminal, as wide as it is; without colour and line drawing where it is not one."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from comt_cli.report import words
from comt_cli.report.ladder_words import HEADING, sentences
from comt_cli.report.layout import Key, Line, by_metric, headings, increases, lines, same_runs
from comt_cli.report.setup_words import beside
from comt_cli.report.table import Table
from comt_cli.report.trained import of_table
from comt_cli.report.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

WIDTH = 100
"""Where the output is no terminal and $COLUMNS says nothing."""
_GAP = 2
"""Spaces between columns."""
_DROPPED: tuple[Key, ...] = (
    "speed",
    "flops",
    "bytes",
    "saved",
    "step",
    "compiled",
    "detectable",
    "equal_time",
    "parameters",
    "paper_increase",
    "beside",
    "median",
    "published",
    "paper",
    "paper_difference",
    "difference",
)
"""Columns that make way where the terminal is narrow, the first first."""
_OF_RUNS = frozenset(_DROPPED[: _DROPPED.index("detectable")]) | {"parameters", "paper_increase"}
_STACKED_BEFORE: tuple[Key, ...] = ("paper_difference", "difference")
"""Before these go, errors and intervals move under their numbers."""
_LEFT: tuple[Key, ...] = ("method", "verdict")

_SHORT = {
    Verdict.agrees: "= agrees",
    Verdict.disagrees: "x against",
    Verdict.not_resolved: "? open",
    Verdict.better: "+ better",
    Verdict.worse: "- worse",
    Verdict.one_seed: "1 seed",
    Verdict.one_seed_same: "1 seed, =",
    Verdict.one_seed_opposite: "1 seed, x",
    Verdict.one_seed_equal: "1 seed, 0",
    Verdict.diverged: "! diverged",
    Verdict.diverged_here: "! diverged",
    Verdict.diverged_in_both: "= diverged",
    Verdict.baseline_diverged: "! baseline",
    Verdict.baseline_diverged_here: "! baseline",
    Verdict.baseline_diverged_in_both: "= baseline",
    Verdict.no_baseline_in_paper: "unprinted",
    Verdict.equal_in_paper: "paper: 0",
    Verdict.both_collapsed_in_paper: "collapsed",
}
"""Verdicts where room is scarce; the others are short as they are."""

_ONE_SEED = "1 seed, = or x: in the paper's direction or against it, but without an interval nothing is claimed"
_LEGEND = {
    Verdict.agrees: "= agrees: the interval lies on the paper's side of zero",
    Verdict.disagrees: "x against: the interval lies on the other side",
    Verdict.better: "+ better, - worse: the interval does not hold zero",
    Verdict.worse: "+ better, - worse: the interval does not hold zero",
    Verdict.not_resolved: "? open: the interval holds zero, so nothing is resolved",
    Verdict.one_seed: "1 seed: no interval, so nothing is claimed",
    Verdict.one_seed_same: _ONE_SEED,
    Verdict.one_seed_opposite: _ONE_SEED,
    Verdict.one_seed_equal: "1 seed, 0: no difference",
    Verdict.diverged_in_both: "= diverged: as in the paper",
    Verdict.baseline_diverged: "! baseline: it diverged",
    Verdict.baseline_diverged_here: "! baseline: it diverged",
    Verdict.baseline_diverged_in_both: "= baseline: it diverged, as in the paper",
    Verdict.no_baseline_in_paper: "unprinted: the paper has no value of the baseline",
    Verdict.equal_in_paper: "paper: 0: the paper's values are equal",
    Verdict.both_collapsed_in_paper: "collapsed: in the paper both did",
}
"""The legend of the verdicts, printed below the table for those that occur in it."""


@dataclass(frozen=True)
class _Layout:
    """Which columns fit, and whether errors and intervals stand under their numbers."""

    keys: tuple[Key, ...]
    stacked: bool


def console_for(file: IO[str] | None = None) -> Console:
    """A console for `file` (standard output if None): as wide as its terminal, `$COLUMNS` or else `WIDTH`."""
    from rich.console import Console

    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        given = os.environ.get("COLUMNS", "")
        console.width = int(given) if given.isdecimal() and int(given) else WIDTH
    return console


def print_table(table: Table, file: IO[str] | None = None) -> None:
    """Print the title, what was trained, a grid for each column, footnotes, notes, the legend and the verdict."""
    console = console_for(file)
    groups = same_runs(table)
    stacked = _Layout(tuple(key for key in headings(table) if key not in _OF_RUNS), stacked=True)
    grouped = all(len(columns) > 1 for columns in groups)
    layout = stacked if grouped else _layout(table, console.width)
    _say(console, table.title, "bold")
    _say(console, f"{of_table(table)}; {words.source(table)}", "dim")
    for columns in groups:
        column = columns[0]
        console.print()
        named = ", ".join(f"{table.heading(each)}: {table.metric(each).label}" for each in columns)
        _say(console, f"{named}. {beside(table, columns)}".rstrip(". ") + ".", "dim")
        if len(columns) > 1:
            _print_metrics(console, table, columns, stacked)
            continue
        print_grid(console, _grid(table, column, layout, console.width))
        if "parameters" not in layout.keys and (phrase := increases(table, column)) is not None:
            _say(console, phrase, "dim")
    console.print()
    for mark, text in enumerate(table.footnotes, start=1):
        _say(console, f"[{mark}] {text}")
    for text in _remarks(table, layout, grouped=grouped):
        _say(console, text, "dim")
    for sentence in sentences(table):
        _say(console, f"{HEADING}, {sentence}.")
    for text in (*table.notes, words.verdict(table)):
        _say(console, text)


def _print_metrics(console: Console, table: Table, columns: Sequence[str], layout: _Layout) -> None:
    """A grid of as many metrics as fit, below it the next ones; what is of the runs and of no metric is left out."""
    from rich.table import Table as Grid
    from rich.text import Text

    texts = by_metric(table, columns, lambda line: dict(zip(layout.keys, _cells(line, layout), strict=True)))
    for most in range(len(columns), 0, -1):
        parts = [[[*row[:2], *row[at : at + most]] for row in texts] for at in range(2, len(texts[0]), most)]
        if all(_width(part[0], part[1:]) <= console.width for part in parts):
            break
    for heads, *rows in parts:
        grid = Grid(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
        for number, head in enumerate(heads):
            grid.add_column(Text(head), justify="right" if number > 1 else "left", no_wrap=True, vertical="top")
        for row in rows:
            grid.add_row(*map(Text, row))
        print_grid(console, grid)


def _remarks(table: Table, layout: _Layout, *, grouped: bool) -> Iterator[str]:
    verdicts = {entry.verdict for entry in table.entries.values()}
    legend = dict.fromkeys(text for verdict, text in _LEGEND.items() if verdict in verdicts)
    if "verdict" in layout.keys and legend:
        yield f"{'; '.join(legend)}."
    for rule in (words.holm_rule(table), words.bold_rule(table)):
        if rule is not None:
            yield rule
    names = headings(table)
    if left_out := [names[key] for key in names if key not in layout.keys]:
        said = ", ".join(left_out)
        yield f"The files have {said}, too." if grouped else f"Too narrow for {said}: the files have them."


def say(text: str, file: IO[str] | None = None, style: str = "") -> None:
    """Print a sentence (to standard output if `file` is None), broken between words alone."""
    _say(console_for(file), text, style)


def say_written(paths: Iterable[Path], file: IO[str] | None = None) -> None:
    """One line for all files of a name: `wrote figures/gate-summary.{png,pdf,txt,tex,csv}`."""
    kinds: dict[Path, list[str]] = {}
    for path in paths:
        kinds.setdefault(path.with_suffix(""), []).append(path.suffix.removeprefix("."))
    for path, found in kinds.items():
        ending = ",".join(found)
        print(f"wrote {path}.{ending if len(found) == 1 else f'{{{ending}}}'}", file=file)


def print_grid(console: Console, grid: Grid, indent: str = "") -> None:
    """Print a grid without the spaces that fill its last column."""
    from rich.text import Text

    with console.capture() as drawn:
        console.print(grid)
    for line in drawn.get().removesuffix("\n").split("\n"):
        text = Text.from_ansi(f"{indent}{line}")
        text.rstrip()
        console.print(text, soft_wrap=True)


def _say(console: Console, text: str, style: str = "") -> None:
    """A sentence, broken between words alone: a path that is longer than the line is left whole."""
    from rich.text import Text

    broken = textwrap.wrap(text, console.width, break_long_words=False, break_on_hyphens=False)
    for line in broken or [""]:
        console.print(Text(line, style=style), soft_wrap=True)


def _layout(table: Table, width: int) -> _Layout:
    """The most that fits into `width`, for all columns of the table alike."""
    keys = list(headings(table))
    layout = _Layout(tuple(keys), stacked=False)
    for dropped in (None, *_DROPPED):
        if dropped in _STACKED_BEFORE and not layout.stacked and not _fits(table, layout, width):
            layout = _Layout(layout.keys, stacked=True)
        if _fits(table, layout, width):
            break
        if dropped is not None:
            layout = _Layout(tuple(key for key in layout.keys if key != dropped), layout.stacked)
    return layout


def _fits(table: Table, layout: _Layout, width: int) -> bool:
    texts = [_cells(line, layout) for column in table.columns for line in lines(table, column)]
    return _width(_heads(table, layout, texts, width), texts) <= width


def _width(heads: list[str], texts: list[list[str]]) -> int:
    widths = [max(map(_longest, column)) for column in zip(heads, *texts, strict=True)]
    return sum(widths) + _GAP * (len(widths) - 1)


def _longest(text: str) -> int:
    return max(map(len, text.split("\n")))


def _cells(line: Line, layout: _Layout) -> list[str]:
    texts = []
    for key in layout.keys:
        text = line.cells[key]
        if key == "verdict":
            text = text.replace(line.entry.verdict.value, _SHORT.get(line.entry.verdict, line.entry.verdict.value))
        elif layout.stacked and key == "ours" and line.entry.ours is not None:
            text = text.replace(" ± ", "\n± ")
        elif layout.stacked and key == "difference":
            text = text.replace(" [", "\n[")
        elif key == "ours" and line.entry.ours is None:
            text = textwrap.fill(text, 14, break_long_words=False, break_on_hyphens=False)
        if key == "ours":
            first, *others = text.split("\n")
            text = "\n".join([first + "".join(f" [{mark}]" for mark in line.marks), *others])
        texts.append(text)
    return texts


def _heads(table: Table, layout: _Layout, texts: list[list[str]], width: int, column: str | None = None) -> list[str]:
    """The headings; where `width` has no room for them as they are, broken between words into as few lines as fit, at
    the narrowest to about the width of what stands below."""
    names = headings(table, column)
    heads = [names[key] for key in layout.keys]
    if _width(heads, texts) <= width:
        return heads
    for parts in (2, 3, 9):
        broken = []
        for position, head in enumerate(heads):
            below = max(_longest(cells[position]) for cells in texts)
            rooms = range(max(below, *map(len, head.split())), max(below, len(head)) + 1)
            wrapped = (textwrap.wrap(head, room, break_long_words=False, break_on_hyphens=False) for room in rooms)
            broken.append("\n".join(next(each for each in wrapped if len(each) <= parts)))
        if _width(broken, texts) <= width:
            break
    return broken


def _grid(table: Table, column: str, layout: _Layout, width: int) -> Grid:
    from rich.table import Table as Grid
    from rich.text import Text

    every = [_cells(line, layout) for each in table.columns for line in lines(table, each)]
    grid = Grid(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    for key, heading in zip(layout.keys, _heads(table, layout, every, width, column), strict=True):
        grid.add_column(Text(heading), justify="left" if key in _LEFT else "right", no_wrap=True, vertical="top")
    for line in lines(table, column):
        styles = {"ours": "bold" if line.best else ""}
        cells = zip(layout.keys, _cells(line, layout), strict=True)
        grid.add_row(*(Text(text, style=styles.get(key, "")) for key, text in cells))
    return grid
