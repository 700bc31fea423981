"""A table on the terminal, as wide as it is; without colour and line drawing where it is not one."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING

from comt_cli.report import words
from comt_cli.report.exhibits import ladder
from comt_cli.report.layout import LEFT, Sheet
from comt_cli.report.trained import papers_columns

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table as Grid

WIDTH = 100
"""Where the output is no terminal and $COLUMNS says nothing."""
_GAP = 2
"""Spaces between columns."""
_DROPPED = (
    *("speed", "flops", "bytes", "saved", "step", "compiled", "detectable", "equal_time", "parameters"),
    *("paper_increase", "beside", "median", "published", "paper", "paper_difference", "difference"),
)
"""Columns that make way where the terminal is narrow, the first first."""
_OF_METRICS = ("beside", "median", "published", "paper", "paper_difference", "difference", "detectable", "equal_time")
"""Of columns that show metrics of the same runs, what is of the metric and not of the runs."""


def console_for(file: IO[str] | None = None) -> Console:
    """A console for `file` (standard output if None): as wide as its terminal, `$COLUMNS` or else `WIDTH`."""
    from rich.console import Console

    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        given = os.environ.get("COLUMNS", "")
        console.width = int(given) if given.isdecimal() and int(given) else WIDTH
    return console


def print_table(cells: pd.DataFrame, file: IO[str] | None = None) -> None:
    """Print the title, what was trained, a grid for each column, footnotes, notes and the verdict."""
    from rich.text import Text

    console, sheet = console_for(file), Sheet(cells)
    names = sheet.headings()
    groups = sheet.same_runs()
    grouped = all(len(columns) > 1 for columns in groups)
    keys = [key for key in sheet.keys if key in ("method", "ours", "verdict", *_OF_METRICS)]
    widths = {} if grouped else _fitting(sheet, console.width)
    keys = keys if grouped else list(widths)
    _say(console, sheet.attrs["title"], "bold")
    _say(console, f"{sheet.attrs['trained']}; {words.source(sheet.attrs)}", "dim")
    for columns in groups:
        console.print()
        named = ", ".join(f"{sheet.name(each)}: {sheet.metric(each).label}" for each in columns)
        _say(console, f"{named}. {papers_columns(sheet, columns)}".rstrip(". ") + ".", "dim")
        if len(columns) > 1:
            head, *lines = sheet.by_metric(columns, lambda line: {key: line.marked[key] for key in keys})
            for part in _parts([head, *lines], console.width):
                print_texts(part[0], part[1:], file)
            continue
        heads = sheet.headings(columns[0])
        grid = _grid([heads[key] for key in keys], [key in LEFT for key in keys], list(widths.values()))
        for line in sheet.under(columns[0]):
            bold = {"ours": "bold" if line.best else ""}
            grid.add_row(*(Text(line.marked[key], style=bold.get(key, "")) for key in keys))
        print_grid(console, grid)
        if "parameters" not in keys and (phrase := sheet.increases(columns[0])) is not None:
            _say(console, phrase, "dim")
    console.print()
    for mark, text in enumerate(sheet.footnotes, start=1):
        _say(console, f"[{mark}] {text}")
    for text in words.rules(sheet):
        _say(console, text, "dim")
    if left_out := ", ".join(names[key] for key in sheet.keys if key not in keys):
        said = f"The files have {left_out}, too." if grouped else f"Too narrow for {left_out}: the files have them."
        _say(console, said, "dim")
    for sentence in ladder.sentences(ladder.trends(cells)):
        _say(console, f"{ladder.HEADING}, {sentence}.")
    for text in (*sheet.attrs["notes"], words.verdict(sheet)):
        _say(console, text)


def _parts(texts: Sequence[Sequence[str]], width: int) -> Iterator[list[list[str]]]:
    """A table of texts in parts of as many columns as fit, each with the first two."""
    widths = [max(map(len, column)) + _GAP for column in zip(*texts, strict=True)]
    shown = [0, 1]
    for number in range(2, len(widths)):
        if len(shown) > 2 and sum(widths[each] for each in (*shown, number)) - _GAP > width:
            yield [[line[each] for each in shown] for line in texts]
            shown = [0, 1]
        shown.append(number)
    yield [[line[each] for each in shown] for line in texts]


def _fitting(sheet: Sheet, width: int) -> dict[str, int]:
    """The columns that fit with their least widths: headings are broken between words, and where that leaves no room
    for the differences, texts too."""
    names = sheet.headings()
    for are_whole, dropped in ((True, _DROPPED[:-2]), (False, _DROPPED)):
        texts = {key: [line.marked[key] for line in sheet.lines] for key in sheet.keys}
        parts = {key: [*(each if are_whole else " ".join(each).split()), *names[key].split()]
                 for key, each in texts.items()}  # fmt: skip
        widths = {key: max(map(len, each)) for key, each in parts.items()}
        for out in (None, *dropped):
            widths = {key: each for key, each in widths.items() if key != out}
            if sum(widths.values()) + _GAP * (len(widths) - 1) <= width:
                return widths
    return widths


def _grid(heads: Sequence[str], are_left: Sequence[bool], widths: Sequence[int] = ()) -> Grid:
    from rich.markup import escape
    from rich.table import Table as Grid

    grid = Grid(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    for head, is_left, width in zip_longest(heads, are_left, widths):
        grid.add_column(escape(head), justify="left" if is_left else "right", vertical="top", overflow="fold",
                        min_width=width)  # fmt: skip
    return grid


def print_texts(
    head: Sequence[str], lines: Iterable[Sequence[str]], file: IO[str] | None = None, most: int | None = None
) -> None:
    """Print a table of texts, all but the first column to the right; as wide as it takes, or in `most` letters if its
    words fit there: texts are broken between words then."""
    from rich.text import Text

    console, grid = console_for(file), _grid(head, [True, *[False] * (len(head) - 1)])
    grid.columns[0].no_wrap = True
    for line in lines:
        grid.add_row(*map(Text, line))
    needed = console.measure(grid, options=console.options.update(max_width=1000))
    console.width = max(console.width, needed.maximum if most is None else max(most, needed.minimum))
    print_grid(console, grid)


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
