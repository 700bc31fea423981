"""The pages of `comt bench`: measured rows as a CSV that later ones join, and as Markdown, from the CSV alone."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer

from comt_cli.errors import StorageError, UserError
from comt_cli.files import Unreadable, read_csv, write_text
from comt_cli.kernels import measurements
from comt_cli.lab.subjects import DECODED, DTYPES, GATES, KERNELS, LANGUAGE, OPS, SUBJECTS, TABLES

Row = Mapping[str, str]
"""A line of the CSV: every value is text, empty where there is none."""


@dataclass(frozen=True)
class Page:
    """One kind of measurement (`measured.yaml`): its file's `name`, what makes two rows the same thing (`key`), of
    which `turns` is the part by which rows differ that took turns in one run, and how rows are sorted and shown.
    `order`: sizes, types and the like in the order of rows; others come last. `meanings`: of words in the rows; and
    `measured` are the variants that there are today."""

    name: str
    title: str
    notes: str
    key: Sequence[str]
    sort: Sequence[str]
    columns: Mapping[str, str]
    measured: Sequence[str]
    turns: Sequence[str] = ("variant",)
    order: Sequence[str] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)

    def key_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The values that a row is known by."""
        return tuple(str(row.get(name) or "") for name in self.key)

    def run_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Those of them that all rows have which took turns."""
        return tuple(str(row.get(name) or "") for name in self.key if name not in self.turns)

    def place_of(self, row: Row) -> list[tuple[float, str]]:
        """The place of a row: by the order of a column's values, numbers by their size, words last."""
        known = {text: (float(number), "") for number, text in enumerate([*self.order, *self.measured])}
        texts = [row.get(name, "") for name in self.sort]
        return [known.get(text) or (float(text) if text.isdigit() else float("inf"), text) for text in texts]


def pages() -> dict[str, Page]:
    """Every page by its name."""
    more: dict[str, dict[str, Any]] = {
        "kernels": {"order": [*OPS, *GATES, *DTYPES], "measured": [*KERNELS["variants"]]},
        "decode": {"order": [*LANGUAGE.shapes, *DTYPES], "measured": [*DECODED], "meanings": DECODED},
        "decode-translation": {"measured": [], "meanings": TABLES["older-searches"]},
    }
    more["kernels"]["meanings"] = OPS | KERNELS["variants"] | KERNELS["older"]
    for name, of in SUBJECTS.items():
        more[name] = {"order": [*of.shapes], "measured": [*of.variants], "meanings": {**of.older, **of.variants}}
        more[name] |= {"title": of.title, "notes": TABLES["pages"]["step"]["notes"] + of.notes}
    found = {}
    for name, own in more.items():
        fields = TABLES["pages"]["step" if name in SUBJECTS else name] | own
        found[name] = Page(**fields | {"name": name, "notes": TABLES["pages"]["common"] + fields["notes"]})
    return found


def merge_rows(page: Page, rows: Sequence[Mapping[str, Any]], path: Path) -> list[Row]:
    """Add `rows` to the CSV at `path`, which need not be there yet: each replaces an older one with the same key, all
    others stay. Lines that lack a part of the key are dropped: nobody knows what they are of. A run of too few rounds
    for an interval does not replace one that has it, nor one of some variants that of more, since ratios are relative
    to all of them: its rows are returned."""
    older = read_rows(path)
    columns = [*dict.fromkeys([*rows[0], *(older[0] if older else ())])]
    merged = {key: row for row in older if all(key := page.key_of(row))}
    found = {page.key_of(row): {k: "" if v is None else str(v) for k, v in row.items()} for row in rows}
    intervals = [name for name in rows[0] if name.endswith("_uncertainty")]
    lesser = {
        page.run_of(row)
        for key, row in merged.items()
        if (key not in found and row["variant"] in page.measured)
        or (key in found and any(row.get(name) and not found[key][name] for name in intervals))
    }
    left_out: list[Row] = [row for row in found.values() if page.run_of(row) in lesser]
    if len(left_out) < len(found):
        merged |= {key: row for key, row in found.items() if page.run_of(row) not in lesser}
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(merged.values(), key=page.place_of))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text.getvalue())
    return left_out


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a file; none without it. Raises `UserError` where it is damaged."""
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
    return UserError(f"{path} cannot be used: {problem}", "Delete it, and measure once more.")


def renew_page(page: Page, path: Path) -> Path:
    """Write the Markdown beside the CSV `path` anew; returns the file. Raises `UserError` where the CSV is damaged, has
    no rows, or lacks columns that rows are known by."""
    rows = read_rows(path)
    if not rows:
        raise _damaged(path, "it has no rows")
    if lacking := {*page.key, *page.sort} - {*rows[0]}:
        raise _damaged(path, f"it lacks the columns {', '.join(sorted(lacking))}")
    written = path.with_suffix(".md")
    try:
        write_text(written, markdown(page, rows))
    except ValueError as error:  # of a cell that ought to be a number
        raise _damaged(path, str(error)) from error
    return written


def markdown(page: Page, rows: Sequence[Row]) -> str:
    """The page of a CSV's rows. Raises `ValueError` where a cell is no number that ought to be one."""
    commits = sorted({row["git_commit"] or "unknown" for row in rows if "git_commit" in row})
    lines = [f"# {page.title} on {rows[0]['device']}", "", page.notes.rstrip("\n")]
    lines += [f"Measured at commit {', '.join(commits)}.", ""]
    table = {
        (heading, "---:" if " " in how else "---"): [_cell(row, *how.split()) for row in rows]
        for heading, how in page.columns.items()
        if how.split()[0] in rows[0]
    }
    if len(commits) > 1:
        table["commit", "---"] = [row["git_commit"] or "unknown" for row in rows]
    lines += [f"| {' | '.join(cells)} |" for cells in (*zip(*table, strict=True), *zip(*table.values(), strict=True))]
    there = {row[name] for row in rows for name in ("op", "variant") if name in row}
    meanings = [f"- `{name}`: {meaning}" for name, meaning in page.meanings.items() if name in there]
    return "\n".join([*lines, "", *meanings, ""])


def _cell(row: Row, name: str, how: str = "") -> str:
    """A column of a row: a word, a number as it stands (`number`), a time with its 10th and 90th percentile (`time`),
    or a number with so many decimals and its error."""
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
    """Writes rows below `results` as they come, and returns the files. Rows that would replace a part of a run of more
    variants, or one of enough rounds by too few, are shown and not written."""
    known = pages()

    def write(name: str, rows: list[dict[str, Any]]) -> list[Path]:
        page = known[name]
        path = results / "bench" / device_folder(str(rows[0]["device"])) / f"{name}.csv"
        lesser = merge_rows(page, rows, path)
        if lesser:
            typer.echo(markdown(page, lesser))
            typer.echo(f"not written, since {path} has a run of more variants or rounds: delete it, or choose another "
                       "--results", err=True)  # fmt: skip
        if path.name in (measurements.FILE, measurements.STEP_FILE):
            _keep(page, rows)
        return [path, renew_page(page, path)] if len(lesser) < len(rows) else []

    return write


def device_folder(device: str) -> str:
    """`NVIDIA H200` as `nvidia-h200`."""
    return re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-").lower()


def _keep(page: Page, rows: list[dict[str, Any]]) -> None:
    """Add what `kernels: auto` chooses by to the cache folder: wherever one stands, it finds it there. One name may
    stand for processors of several classes, so the class is part of the folder's."""
    folder = device_folder(f"{rows[0]['device']} {rows[0]['device_class']}")
    path = measurements.own_folder() / folder / f"{page.name}.csv"
    if rows[0].get("kernel_hash"):  # a GPU's: what was measured with other kernels or versions stays
        page = replace(page, key=(*page.key, "kernel_hash", "torch", "triton"))
    try:
        if merge_rows(page, rows, path):
            typer.echo("`kernels: auto` keeps to an earlier measurement of more variants or rounds", err=True)
    except (OSError, StorageError, UserError, ValueError) as error:  # the results have them all the same
        typer.echo(f"`kernels: auto` will not know of this, {path} cannot be added to: {error}", err=True)
