"""The pages of `comt bench`: measured rows as a CSV to which later ones are added, and as Markdown made from the
CSV."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from comt_cli.errors import UserError
from comt_cli.files import Unreadable, make_folder, read_csv, write_text
from comt_cli.kernels import measurements
from comt_cli.lab.subjects import SUBJECTS, TABLES
from comt_cli.report.frame import csv_text

Row = Mapping[str, str]  # a line of the CSV: every value is text, empty if there is none


@dataclass(frozen=True)
class Page:
    """One kind of measurement (`measured.yaml`): `key` identifies a row; `turns` is the part of it that differs between
    the rows of one run; `columns` define how rows are shown."""

    title: str
    notes: str
    key: Sequence[str]
    columns: Mapping[str, str]
    measured: Collection[str]
    meanings: Sequence[Mapping[str, str]]
    turns: Sequence[str] = ("variant",)

    def key_of(self, row: Mapping[str, Any], without: Sequence[str] = ()) -> tuple[str, ...]:
        """The values that identify a row; without `turns` those of all rows of its run."""
        return tuple(str(row.get(name) or "") for name in self.key if name not in without)


def pages() -> dict[str, Page]:
    """Every page by its name, which is the name of its file."""
    common, step = TABLES["pages"]["common"], TABLES["pages"]["step"]
    fields = {name: own for name, own in TABLES["pages"].items() if name not in ("common", "step")}
    for name, of in SUBJECTS.items():
        own = {"title": of.title, "measured": of.variants, "meanings": [of.older, of.variants]}
        fields[name] = step | own | {"notes": step["notes"] + of.notes}
    return {name: Page(**own | {"notes": common + own["notes"]}) for name, own in fields.items()}


def merge_rows(page: Page, rows: Sequence[Mapping[str, Any]], path: Path) -> list[Row]:
    """Add `rows` to the CSV at `path`, or create it: each replaces an older one with the same key, all others stay.
    Lines that lack a part of the key are dropped. A run of too few rounds for an interval does not replace one with
    intervals, nor a run of some variants one of more, since ratios depend on all of them: its rows are returned."""
    older = read_rows(path)
    merged = {key: row for row in older if all(key := page.key_of(row))}
    found = {page.key_of(row): {k: "" if v is None else str(v) for k, v in row.items()} for row in rows}
    intervals = [name for name in rows[0] if name.endswith("_uncertainty")]
    lesser = {
        page.key_of(row, page.turns)
        for key, row in merged.items()
        if (key not in found and row["variant"] in page.measured)
        or (key in found and any(row.get(name) and not found[key][name] for name in intervals))
    }
    left_out: list[Row] = [row for row in found.values() if page.key_of(row, page.turns) in lesser]
    if len(left_out) < len(found):
        merged |= {key: row for key, row in found.items() if page.key_of(row, page.turns) not in lesser}
        empty = dict.fromkeys([*rows[0], *(older[0] if older else ())], "")
        make_folder(path.parent)
        write_text(path, csv_text([empty | row for row in merged.values()]))
    return left_out


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a file; none without it. Raises `UserError` if it is damaged."""
    try:
        rows = read_csv(path)
    except FileNotFoundError:
        return []
    except Unreadable as error:
        raise _damaged(path, str(error)) from error
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise _damaged(path, f"row {line} has more or fewer cells than the first one")
    return rows


def _damaged(path: Path, problem: str) -> UserError:
    return UserError(f"{path} cannot be used: {problem}", "Delete it, and measure again.")


def renew_page(page: Page, path: Path) -> Path:
    """Write the Markdown next to the CSV `path`; returns the file. Raises `UserError` if the CSV is damaged."""
    rows = read_rows(path)
    if not rows:
        raise _damaged(path, "it has no rows")
    if lacking := {*page.key} - {*rows[0]}:
        raise _damaged(path, f"it lacks the columns {', '.join(sorted(lacking))}")
    written = path.with_suffix(".md")
    try:
        write_text(written, markdown(page, rows))
    except ValueError as error:  # of a cell that should be a number
        raise _damaged(path, str(error)) from error
    return written


def markdown(page: Page, rows: Sequence[Row]) -> str:
    """The page of a CSV's rows. Raises `ValueError` if a cell that should be a number is not."""
    by_row = [row.get("git_commit") or "unknown" for row in rows]
    commits = sorted({*by_row})
    lines = [f"# {page.title} on {rows[0]['device']}", ""]
    table = {
        (heading, "---:" if " " in how else "---"): [_cell(row, *how.split()) for row in rows]
        for heading, how in page.columns.items()
        if how.split()[0] in rows[0]
    }
    if len(commits) > 1:
        table["commit", "---"] = by_row
    lines += [f"| {' | '.join(cells)} |" for cells in (*zip(*table, strict=True), *zip(*table.values(), strict=True))]
    there = {row[name] for row in rows for name in ("op", "variant") if name in row}
    known = itertools.chain(*(of.items() for of in page.meanings))
    meanings = [f"- `{name}`: {meaning}" for name, meaning in known if name in there]
    notes = f"Commits: {', '.join(commits)}.\n{page.notes.rstrip()}"
    return "\n".join([*lines, "", *meanings, "", "## Notes", "", notes, ""])


def _cell(row: Row, name: str, how: str = "") -> str:
    """A text or `number` as it is, a `time` with its percentiles, a number with so many decimals and its error."""
    if not (text := row.get(name)):
        return "-"
    if how == "time":
        decimals = 1 if float(text) >= 10 else 2 if float(text) >= 1 else 3
        ends = [f"{float(end):,.{decimals}f}" for p in ("p10", "p90") if (end := row.get(f"{name}_{p}"))]
        return f"{float(text):,.{decimals}f}" + (f" ({' to '.join(ends)})" if ends else "")
    if not how.isdigit():
        return text
    error = float(row.get(f"{name}_uncertainty") or 0)
    doubt = ", not settled" if row.get(f"{name}_settled") and not row.get(f"{name}_uncertainty") else ""
    return f"{float(text):,.{how}f}" + (f" ± {100 * error:.1f} %" if error else doubt)


def writer(results: Path) -> Callable[[str, list[dict[str, Any]]], list[Path]]:
    """A function that writes rows below `results` and returns the files. Rows that `merge_rows` leaves out are
    printed."""

    def write(name: str, rows: list[dict[str, Any]]) -> list[Path]:
        page = pages()[name]
        path = results / "bench" / device_folder(str(rows[0]["device"])) / f"{name}.csv"
        lesser = merge_rows(page, rows, path)
        if lesser:
            typer.echo(markdown(page, lesser))
            typer.echo(f"not written: {path} has a run with more variants or rounds; see --results", err=True)
        if path.name in (measurements.FILE, measurements.STEP_FILE):
            _keep(page, rows, path.name)
        return [path, renew_page(page, path)] if len(lesser) < len(rows) else []

    return write


def device_folder(device: str) -> str:
    """`NVIDIA H200` as `nvidia-h200`."""
    return re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-").lower()


def _keep(page: Page, rows: list[dict[str, Any]], name: str) -> None:
    """Add the measurements that `kernels: auto` uses to the cache folder, by class too, since one name may be of
    several."""
    path = measurements.own_folder() / device_folder(f"{rows[0]['device']} {rows[0]['device_class']}") / name
    if rows[0].get("kernel_hash"):  # a GPU's: measurements with other kernels or versions stay
        page = replace(page, key=(*page.key, "kernel_hash", "torch", "triton"))
    try:
        merge_rows(page, rows, path)
    except (OSError, UserError) as error:  # the results have them anyway
        typer.echo(f"`kernels: auto` will not use this measurement, since {path} cannot be written: {error}", err=True)
