"""Tables and sentences on the terminal, in its width; without colour and line drawing if the output is no terminal."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from comt_cli.report import format
from comt_cli.report.collect import Cell, Collection
from comt_cli.report.statistics import summarise
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import point_in_words

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 100  # if the output is no terminal and $COLUMNS is not set
_GAP = 2  # spaces between columns


def console_for(file: IO[str] | None = None) -> Console:
    """A console for `file` (standard output if None), with the width of its terminal, `$COLUMNS` or 100."""
    from rich.console import Console

    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        given = os.environ.get("COLUMNS", "")
        console.width = int(given) if given.isdecimal() and int(given) else _WIDTH
    return console


def print_texts(
    head: Sequence[str],
    lines: Iterable[Sequence[str]],
    file: IO[str] | None = None,
    most: int | None = None,
    *,
    left: Sequence[bool] = (),
    bold: Sequence[bool] = (),
    folded: Sequence[int] | None = None,
    indent: str = "",
) -> None:
    """Print a table of texts in its natural width, or in at most `most` letters, broken between words.

    `left` selects the left-aligned columns, by default the first; `bold` the lines whose second text is bold; `folded`
    the columns that may be broken, by default all but the first.
    """
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    console, grid = console_for(file), Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    rows = [*lines]
    least = [max(map(len, [*(row[at] for row in rows), *title.split(), ""])) for at, title in enumerate(head)]
    spare = (console.width if most is None else most) - sum(least) - _GAP * (len(least) - 1)
    fits = spare >= 0  # with headings broken between words; rich would take the space from the texts
    for number, title in enumerate(head):
        side: Literal["left", "right"] = "left" if (left[number] if left else number == 0) else "right"
        is_whole = number == 0 if folded is None else number not in folded
        more = max(0, min(len(title) - least[number], spare))
        spare -= more
        grid.add_column(escape(title), justify=side, no_wrap=is_whole, vertical="top", overflow="fold",
                        width=least[number] + more if fits else None)  # fmt: skip
    for number, row in enumerate(rows):
        is_bold = bool(bold) and bold[number]
        grid.add_row(*(Text(text, style="bold" if is_bold and at == 1 else "") for at, text in enumerate(row)))
    needed = console.measure(grid, options=console.options.update(max_width=1000)).maximum
    console.width = max(console.width, needed if most is None else min(most, needed))
    with console.capture() as drawn:
        console.print(grid)
    for line in drawn.get().removesuffix("\n").split("\n"):
        text = Text.from_ansi(f"{indent}{line}")
        text.rstrip()  # the spaces that fill the last column
        console.print(text, soft_wrap=True)


def print_progress(collection: Collection, metrics: Mapping[str, str]) -> None:
    """Print the cells of a table in their present state; `metrics` has the shown metric by column."""
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*collection.cells, strict=True))
    lines = [
        [row, *(cell_text(cell, metrics[column]) if (cell := collection.cells.get((row, column))) else ""
                for column in columns)]
        for row in rows
    ]  # fmt: skip
    print_texts(["", *columns], lines, most=console_for().width, left=[True] * (1 + len(columns)), indent="  ")


def cell_text(cell: Cell, metric: str) -> str:
    """`26.73 ± 0.12 (3)`; if the cell is not done: `26.51 (2), 2 done, 1 running (step 40 of 200)`."""
    done, parts = summarise(list(cell.values(metric).values())), []
    if done is not None:
        decimals = cell.runs[0].spec.task.metrics[metric].decimals
        parts.append(format.value(done.mean, decimals) if len(cell.runs) == 1 else format.summary(done, decimals))
    if done is None or cell.state != RunState.done:
        parts.append(cell.standing(metric))
    if cell.point is not None and done is not None:
        parts.append(point_in_words(cell.point))
    return ", ".join(parts)


def say(text: str, file: IO[str] | None = None, style: str = "") -> None:
    """Print a sentence (to standard output if `file` is None), broken between words only: long paths stay whole."""
    from rich.text import Text

    console = console_for(file)
    for line in textwrap.wrap(text, console.width, break_long_words=False, break_on_hyphens=False) or [""]:
        console.print(Text(line, style=style), soft_wrap=True)


def say_written(paths: Iterable[Path], file: IO[str] | None = None) -> None:
    """One line for all files of a name: `wrote figures/gate-summary.{png,pdf,txt,tex,csv}`."""
    kinds: dict[Path, list[str]] = {}
    for path in paths:
        kinds.setdefault(path.with_suffix(""), []).append(path.suffix.removeprefix("."))
    for path, found in kinds.items():
        ending = ",".join(found)
        print(f"wrote {path}.{ending if len(found) == 1 else f'{{{ending}}}'}", file=file)
