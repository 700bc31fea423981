"""Measured speeds as a CSV that later measurements join, the same as Markdown, and a figure; from the CSV alone."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from comt_cli.errors import UserError
from comt_cli.files import Unreadable, read_csv, read_text, write_text

Row = Mapping[str, str]
"""A line of the CSV: every value is text, empty where there is none."""
TOO_NOISY = 1.5
"""p90 / p10 of a time beyond which no verdict is given."""


@dataclass(frozen=True)
class Column:
    """A column of the Markdown: its heading, the column of the CSV it shows, and how: `` a word, `number` a word set as
    one, `time` a time with its 10th and 90th percentile, or a number of decimals."""

    heading: str
    name: str
    how: str = ""

    def show(self, row: Row) -> str:
        """The cell of a row."""
        if not (text := row.get(self.name)):
            return "-"
        if self.how == "time":
            decimals = 1 if float(text) >= 10 else 2 if float(text) >= 1 else 3
            ends = [f"{float(end):,.{decimals}f}" for p in ("p10", "p90") if (end := row.get(f"{self.name}_{p}"))]
            return f"{float(text):,.{decimals}f}" + (f" ({' to '.join(ends)})" if ends else "")
        if not self.how.isdigit():
            return text
        doubt = ", not settled" if row.get(f"{self.name}_settled") and not row.get(f"{self.name}_uncertainty") else ""
        return f"{float(text):,.{self.how}f}{doubt}"


@dataclass(frozen=True)
class Goal:
    """A column whose value is to be at most (or, `at_least`, not below) that of the column `goal` in the same row;
    shown with so many `decimals`, one more where it was not met.

    `timed` is the prefix of the columns that say how reliable the value is: `<timed>_spread`, the greatest p90 / p10 of
    its times, `<timed>_uncertainty`, the reach of its 90 % interval as a part of it, and `<timed>_settled`. None: the
    value is no time.
    """

    value: str
    goal: str
    what: str
    at_least: bool = False
    decimals: int = 3
    timed: str | None = None

    def verdict(self, row: Row) -> str | None:
        """`met` or `missed`, or `too noisy`, or `not settled`: the goal lies within the interval of the value, or there
        were too few rounds for an interval. None where the row has no goal or no value."""
        if not row.get(self.value) or not row.get(self.goal):
            return None
        value, goal = float(row[self.value]), float(row[self.goal])
        spread, uncertainty, settled = (row.get(f"{self.timed}_{end}") for end in ("spread", "uncertainty", "settled"))
        if spread and float(spread) > TOO_NOISY:
            return f"{self.what} too noisy (p90 / p10 of a time is {float(spread):.2f}, beyond {TOO_NOISY:g})"
        is_met = value >= goal if self.at_least else value <= goal
        verdict, too_few = "met" if is_met else "missed", bool(settled and not uncertainty)
        if too_few or (uncertainty and abs(value - goal) < float(uncertainty) * value):
            verdict = "not settled"
        # what was just missed must not look equal: as many decimals as the rows have
        text = f"{value:,.{self.decimals + (verdict != 'met')}f}"
        text += f" ± {100 * float(uncertainty):.1f} %" if uncertainty else ""
        text += f", {'at least' if self.at_least else 'at most'} {f'{goal:,.4f}'.rstrip('0').rstrip('.')}"
        if too_few:
            text += ", too few rounds for an interval"
        elif self.timed is not None and not (spread and settled):
            text += f", {'uncertainty' if spread else 'spread'} not recorded"
        return f"{self.what} {verdict} ({text})"


@dataclass(frozen=True)
class Page:
    """One kind of measurement: its file's name, what makes two rows the same thing, and how it is shown.

    `turns`: the part of `key` by which the rows differ that took turns in one run. `order`: for some columns, their
    values in the order of rows; those of a version that offered something else come last. `renew`: what is known of a
    row without measuring, such as its goals; it replaces what an older version wrote. `draw` may find nothing to draw.
    """

    name: str
    title: str
    notes: str
    key: Sequence[str]
    sort: Sequence[str]
    columns: Sequence[Column]
    turns: Sequence[str] = ("variant",)
    goals: Sequence[Goal] = ()
    order: Mapping[str, Sequence[str]] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)
    draw: Callable[[Sequence[Row]], Figure | None] | None = None
    renew: Callable[[Row], Mapping[str, Any]] | None = None

    def key_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """What a row is known by."""
        return tuple(str(row.get(name, "")) for name in self.key)

    def turns_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """What rows have in common that take turns."""
        return tuple(str(row.get(name, "")) for name in self.key if name not in self.turns)

    def verdicts(self, row: Row) -> list[str]:
        """Of the goals that the row has, in words."""
        return [verdict for goal in self.goals if (verdict := goal.verdict(row)) is not None]

    def place_of(self, row: Row) -> list[tuple[float, str]]:
        """Where a row is sorted: by the order of a column's values, numbers by their size, words last."""

        def place(name: str, text: str) -> tuple[float, str]:
            order = [*self.order.get(name, ())]
            if text in order:
                return order.index(text), ""
            return (len(order) + int(text), "") if text.isdigit() else (float("inf"), text)

        return [place(name, row[name]) for name in self.sort]


def write_benchmark(
    page: Page, rows: Sequence[Mapping[str, Any]], results: Path
) -> tuple[list[Path], list[dict[str, str]]]:
    """Merge `rows`, all of one device, into `<results>/bench/<device>/<name>.csv`, and write the page and figure anew.

    Rows of a run that lacks variants which the file has of the same turns are not written: verdicts of a whole run are
    relative to all of its variants. Returns the files, and the rows that were not written.
    """
    path = results / "bench" / device_folder(str(rows[0]["device"])) / f"{page.name}.csv"
    lesser = merge_rows(page, rows, path, whole=True)
    return [path, *write_page(page, path)] if len(lesser) < len(rows) else [], lesser


def merge_rows(
    page: Page, rows: Sequence[Mapping[str, Any]], path: Path, *, whole: bool = False
) -> list[dict[str, str]]:
    """Add `rows` to the CSV at `path`, which need not be there yet: each replaces an older one with the same key, all
    others stay. Lines that lack a part of the key are dropped: nobody knows what they are of. A run of too few rounds
    for an interval does not replace one that has it, nor, if `whole`, one of some variants that of more: its rows are
    returned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(rows[0])
    merged = {key: row for row in _read(path, columns) if all(key := page.key_of(row))}
    found = {page.key_of(row): row for row in map(_as_text, rows)}
    intervals = [name for name in columns if name.endswith("_uncertainty")]
    lesser = {
        page.turns_of(row)
        for key, row in found.items()
        if any(merged.get(key, {}).get(name) and not row[name] for name in intervals)
    }
    if whole:
        offered = {
            key: row
            for key, row in merged.items()
            if all(row.get(name) in values for name, values in page.order.items())  # it can be measured today
        }
        lesser |= {page.turns_of(row) for key, row in offered.items() if key not in found}
    left_out = [row for row in found.values() if page.turns_of(row) in lesser]
    if len(left_out) < len(found):
        merged.update({key: row for key, row in found.items() if page.turns_of(row) not in lesser})
        _write(page, path, columns, list(merged.values()))
    return left_out


def renew_page(page: Page, path: Path) -> list[Path]:
    """Write the CSV `path`, Markdown and figure anew from the CSV's own rows, as a page is made today; returns the
    files. None are written where the CSV has no rows, or is of an older version and lacks columns that rows are known
    by."""
    columns = [*next(iter(_read(path)), ())]
    if not columns or not {*page.key, *page.sort, *page.order} <= set(columns):
        return []
    _write(page, path, columns, _read(path, columns))
    return [path, *write_page(page, path)]


def _write(page: Page, path: Path, columns: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    if page.renew is not None:
        for row in rows:
            row.update({name: text for name, text in _as_text(page.renew(row)).items() if name in columns})
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=page.place_of))
    write_text(path, text.getvalue())


def write_page(page: Page, path: Path) -> list[Path]:
    """Write Markdown and figure beside the CSV `path`; returns the files."""
    from comt_cli.report.caption import Caption
    from comt_cli.report.figures import sign, write_figure

    rows: list[Row] = [*_read(path)]
    figure = page.draw(rows) if page.draw is not None else None
    written = path.with_suffix(".md")
    write_text(written, markdown(page, rows, f"{page.name}.png" if figure is not None else None))
    if figure is None:
        return [written]
    where = f"Measured on {rows[0]['device']}"
    sign(figure, where)
    caption = Caption(page.title, where, (" ".join(page.notes.replace("`", "").split("\n")),))
    drawn = write_figure(figure, read_text(path), path.parent, path.stem, caption)
    return [written, *(each for each in drawn if each != path)]


def device_folder(device: str) -> str:
    """`NVIDIA H200` as `nvidia-h200`."""
    return re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-").lower()


def markdown(page: Page, rows: Sequence[Row], picture: str | None = None, *, notes: bool = True) -> str:
    """The page of a CSV's rows; without its explanations where they are not wanted."""
    commits = sorted({row["git_commit"] or "unknown" for row in rows if "git_commit" in row})
    lines = [f"# {page.title} on {rows[0]['device']}", "", *([page.notes] if notes else [])]
    if len(commits) == 1:
        lines.append(f"Measured at commit {commits[0]}.")
    elif commits:
        lines.append(f"Measured at several commits, each row at its own: {', '.join(commits)}.")
    lines.append("")
    if picture:
        lines += [f"![{page.title}]({picture})", ""]
    headings = [column.heading for column in page.columns]
    aligned = ["---:" if column.how else "---" for column in page.columns]
    cells = [[column.show(row) for column in page.columns] for row in rows]
    if any(page.verdicts(row) for row in rows):
        headings.append("goals")
        cells = [[*line, "; ".join(page.verdicts(row)) or "-"] for line, row in zip(cells, rows, strict=True)]
    if len(commits) > 1:
        headings.append("commit")
        cells = [[*line, row["git_commit"] or "unknown"] for line, row in zip(cells, rows, strict=True)]
    lines += map(_line, [headings, [*aligned, *["---"] * (len(headings) - len(aligned))], *cells])
    if page.meanings and notes:
        lines += ["", *(f"- `{name}`: {meaning}" for name, meaning in page.meanings.items())]
    return "\n".join([*lines, ""])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _as_text(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in row.items()}


def _read(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, str]]:
    """The rows of a file, with these columns or its own: empty where an older version had none; no rows without a file.

    Raises:
        UserError: it is damaged.
    """
    try:
        return [{name: row.get(name) or "" for name in columns or row} for row in read_csv(path)]
    except FileNotFoundError:
        return []
    except Unreadable as error:
        raise UserError(f"{path} cannot be read: {error}", "Delete it, and measure once more.") from error
