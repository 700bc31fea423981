"""The pages of `comt bench`: measured rows as a CSV that later ones join, as Markdown, and as a figure, from the CSV
alone; and the record, which shows the lines that benchmarks yield and writes their rows."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import typer
from matplotlib.figure import Figure

from comt_cli import words
from comt_cli.errors import StorageError, UserError
from comt_cli.files import Unreadable, read_csv, read_text, write_text
from comt_cli.kernels import measurements
from comt_cli.lab.bench.figure import draw_kernels, draw_steps
from comt_cli.lab.bench.runner import News, Outcome, Rows
from comt_cli.lab.bench.tables import DECODED, DTYPES, KERNELS, OPS, SUBJECTS, TABLES, Subject
from comt_cli.report.caption import Caption
from comt_cli.report.figures import sign, write_figure
from comt_cli.report.terminal import say_written

Row = Mapping[str, str]
"""A line of the CSV: every value is text, empty where there is none."""
TOO_NOISY = 1.5
"""p90 / p10 of a time beyond which no verdict is given."""


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

    `columns`: by heading the column of the CSV and how it is shown (`measured.yaml`). `turns`: the part of `key` by
    which the rows differ that took turns in one run. `order`: for some columns, their values in the order of rows;
    those of a version that offered something else come last. `renew`: what is known of a row without measuring, such as
    its goals; it replaces what an older version wrote. `draw` may find nothing to draw.
    """

    name: str
    title: str
    notes: str
    key: Sequence[str]
    sort: Sequence[str]
    columns: Mapping[str, str]
    turns: Sequence[str] = ("variant",)
    goals: Sequence[Goal] = ()
    order: Mapping[str, Sequence[str]] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)
    draw: Callable[[pd.DataFrame], Figure | None] | None = None
    renew: Callable[[Row], Mapping[str, Any]] | None = None

    def key_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The values that a row is known by."""
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


def pages() -> dict[str, Page]:
    """Every page by its name."""
    gates, variants = [*KERNELS["columns"]], KERNELS["variants"] | KERNELS["gemm_variants"]
    ops = {**OPS, "gemm": "the library's matrix product alone"}
    order = {"op": [*ops], "variant": [*variants], "gates": gates, "dtype": DTYPES}
    found = {"kernels": replace(_page("kernels"), order=order, meanings=ops | variants, draw=draw_kernels)}
    for name, each in DECODED.items():
        order = {"size": [*each.subject.shapes], "variant": [*each.variants], "dtype": DTYPES}
        found[name] = replace(_page(name), order=order, meanings=each.variants, renew=each.goals_of)
    return found | {subject.page: _step_page(subject) for subject in SUBJECTS}


def _page(name: str, *notes: str, **more: Any) -> Page:
    common, of = TABLES["pages"], {"goals": {}, **TABLES["pages"][name], **more}
    goals = [Goal(goal=column, **goal) for column, goal in of.pop("goals").items()]
    text = "".join([common["common"], *notes, of.pop("notes"), common["commits"]]).rstrip("\n")
    return Page(name=name, goals=goals, notes=text, **of)


def _step_page(subject: Subject) -> Page:
    """Training steps of a subject: the columns of its peers and of the goals that it has."""
    step, peers = TABLES["pages"]["step"], [*subject.peers]
    absent = {
        *(["step / nondeterministic"] if not subject.compiles else []),
        *(["arithmetic / plain"] if not subject.counts_arithmetic else []),
        *(["step / plain-compiled"] if "compiled" not in subject.goal_columns else []),
    }
    columns = {
        heading.format(unit=subject.unit, peer=peer): how.format(unit=subject.unit, peer=peer)
        for heading, how in step["columns"].items()
        for peer in (peers if "{peer}" in heading else [""])
        if heading not in absent
    }
    names = {"unit": subject.unit, "peer": next(iter(peers), "")}
    goals = {
        column: {key: text.format(**names) if isinstance(text, str) else text for key, text in goal.items()}
        for kind, goal in step["goals"].items()
        if (column := subject.goal_columns.get(kind)) is not None
    }
    plain = subject.best_plain
    best = f"The best plain step is the quickest of {words.listing(plain)}.\n" if len(plain) > 1 else ""
    page = _page("step", best, title=subject.title, columns=columns, goals=goals, notes=step["notes"] + subject.notes)
    order = {"size": [*subject.shapes], "variant": [*subject.variants]}
    meanings, renew = subject.variants, subject.goals_of
    return replace(page, name=subject.page, order=order, meanings=meanings, draw=draw_steps, renew=renew)


# ---- files


def write_benchmark(page: Page, rows: Sequence[Mapping[str, Any]], results: Path) -> tuple[list[Path], list[Row]]:
    """Merge `rows`, all of one device, into `<results>/bench/<device>/<name>.csv`, and write the page and figure anew.

    Rows of a run that lacks variants which the file has of the same turns are not written: verdicts of a whole run are
    relative to all of its variants. Returns the files, and the rows that were not written.
    """
    path = results / "bench" / device_folder(str(rows[0]["device"])) / f"{page.name}.csv"
    lesser = merge_rows(page, rows, path, whole=True)
    return [path, *write_page(page, path)] if len(lesser) < len(rows) else [], lesser


def merge_rows(page: Page, rows: Sequence[Mapping[str, Any]], path: Path, *, whole: bool = False) -> list[Row]:
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
        lesser |= {
            page.turns_of(row)
            for key, row in merged.items()
            if key not in found and all(row.get(name) in values for name, values in page.order.items())
        }  # of what can be measured today
    left_out = [row for row in found.values() if page.turns_of(row) in lesser]
    if len(left_out) < len(found):
        merged.update({key: row for key, row in found.items() if page.turns_of(row) not in lesser})
        _write(page, path, columns, list(merged.values()))
    return [*left_out]


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
    rows = _read(path)
    figure = page.draw(pd.DataFrame(rows)) if page.draw is not None else None
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


def _as_text(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in row.items()}


def _read(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, str]]:
    """The rows of a file, with these columns or its own: empty where an older version had none; no rows without a file.
    Raises `UserError` where it is damaged."""
    try:
        return [{name: row.get(name) or "" for name in columns or row} for row in read_csv(path)]
    except FileNotFoundError:
        return []
    except Unreadable as error:
        raise UserError(f"{path} cannot be read: {error}", "Delete it, and measure once more.") from error


# ---- Markdown


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
    table = {
        (heading, "---:" if " " in how else "---"): [_cell(row, *how.split()) for row in rows]
        for heading, how in page.columns.items()
    }
    if any(page.verdicts(row) for row in rows):
        table["goals", "---"] = ["; ".join(page.verdicts(row)) or "-" for row in rows]
    if len(commits) > 1:
        table["commit", "---"] = [row["git_commit"] or "unknown" for row in rows]
    lines += [f"| {' | '.join(cells)} |" for cells in (*zip(*table, strict=True), *zip(*table.values(), strict=True))]
    if page.meanings and notes:
        lines += ["", *(f"- `{name}`: {meaning}" for name, meaning in page.meanings.items())]
    return "\n".join([*lines, ""])


def _cell(row: Row, name: str, how: str = "") -> str:
    """A column of a row: a word, a number as it stands (`number`), a time with its 10th and 90th percentile (`time`),
    or a number with so many decimals."""
    if not (text := row.get(name)):
        return "-"
    if how == "time":
        decimals = 1 if float(text) >= 10 else 2 if float(text) >= 1 else 3
        ends = [f"{float(end):,.{decimals}f}" for p in ("p10", "p90") if (end := row.get(f"{name}_{p}"))]
        return f"{float(text):,.{decimals}f}" + (f" ({' to '.join(ends)})" if ends else "")
    if not how.isdigit():
        return text
    doubt = ", not settled" if row.get(f"{name}_settled") and not row.get(f"{name}_uncertainty") else ""
    return f"{float(text):,.{how}f}{doubt}"


def beside_goals(results: Path) -> str:
    """What was measured below `results`, as a table of Markdown: every row that has a goal, with its verdicts, and the
    values of the recipes' tables, which have none."""
    lines = ["| measured | of | beside its goal |", "| --- | --- | --- |"]
    for name, page in pages().items():
        known = [column for column in dict.fromkeys(("size", *page.key)) if column not in ("device", "shape")]
        for path in sorted(results.glob(f"bench/*/{name}.csv")):
            for row in read_csv(path):
                of = ", ".join(row[column] for column in known if row.get(column))
                lines += [f"| {name} | {of} | {verdict} |" for verdict in page.verdicts(row)]
    for row in (row for path in sorted(results.glob("*/*/*.csv")) for row in read_csv(path)):
        if row.get("mean") and row.get("recipe"):
            of = f"{row['row']}, {row['column']}, seeds {row['seeds']}"
            lines.append(f"| {row['recipe']}, {row['scale']} | {of} | {row['metric']} {row['mean']} |")
    return "\n".join(lines) + "\n"


class Record:
    """Shows the lines that benchmarks yield, writes their rows below `results` as they come, and counts both."""

    def __init__(self, results: Path) -> None:
        self._results, self._pages, self.outcome = results, pages(), Outcome()

    def add(self, news: Iterable[News], *, quiet: bool = False) -> None:
        """All of `news`; pages that were written are shown at the end unless `quiet`, however that comes. Rows that
        would replace a part of a run of more variants, or one of enough rounds by too few, are shown and not written.
        """
        written: dict[Path, None] = {}
        try:
            for each in news:
                self.outcome.add(each)
                if isinstance(each, Rows):
                    written |= dict.fromkeys(self._write(self._pages[each.page], each.rows))
                else:
                    typer.echo(each, err=True)
        finally:
            for path in [] if quiet else written:
                if path.suffix == ".md":
                    typer.echo(path.read_text(encoding="utf-8"))
            say_written(written)

    def _write(self, page: Page, rows: list[dict[str, Any]]) -> list[Path]:
        files, lesser = write_benchmark(page, rows, self._results)
        if lesser:
            typer.echo(markdown(page, lesser, notes=False))
            has_more = f"{page.name}.csv below {self._results / 'bench'} has a run of more variants or rounds"
            typer.echo(f"not written, since {has_more}: delete it, or choose another --results", err=True)
        if f"{page.name}.csv" in (measurements.FILE, measurements.STEP_FILE):
            self._keep(page, rows)
        return files

    @staticmethod
    def _keep(page: Page, rows: list[dict[str, Any]]) -> None:
        """What `kernels: auto` chooses by goes to the cache folder too: wherever one stands, it finds it there. One
        name may stand for processors of several classes, so the class is part of the folder's."""
        folder = device_folder(f"{rows[0]['device']} {rows[0]['device_class']}")
        path = measurements.own_folder() / folder / f"{page.name}.csv"
        if rows[0].get("kernel_hash"):  # a GPU's: what was measured with other kernels or versions stays
            page = replace(page, key=(*page.key, "kernel_hash", "torch", "triton"))
        try:
            if merge_rows(page, rows, path):
                typer.echo("`kernels: auto` keeps to a longer measurement, of which there is an interval", err=True)
        except (OSError, StorageError, UserError, ValueError) as error:  # the results have them all the same
            typer.echo(f"`kernels: auto` will not know of this, {path} cannot be added to: {error}", err=True)
