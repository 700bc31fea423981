"""What `comt bench costs` writes: a CSV that the recipe's table reads (`costs`), and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comt_cli.files import write_text
from comt_cli.report.costs import costs_lines, ratio_columns
from comt_cli.report.frame import csv_text
from comt_cli.report.markdown import pipes
from comt_cli.report.overview import template


def write_costs(
    path: Path, rows: Sequence[Mapping[str, Any]], title: str, order: Sequence[str], columns: Sequence[str]
) -> tuple[list[Path], list[str]]:
    """Write what was measured and its page, rows and columns in these orders; rows that were not measured this time
    stay, where they are of the same device and of the same baseline. A column measured in too few rounds for intervals
    does not replace rows that have them, nor one that has not settled rows of more rounds. Returns the files, and the
    columns that were not written.

    Raises:
        UserError: the file that is there is none of these.
        StorageError: it cannot be written.
    """
    measured = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    beside = {line["column"]: (line["baseline"], line["baseline_network"]) for line in measured}
    lines = {
        (line["row"], line["column"]): line
        for line in costs_lines(path)
        if line["device"] == rows[0]["device"]
        and (own := (line["baseline"], line["baseline_network"])) == beside.get(line["column"], own)
    }
    intervals = {name: name.removesuffix("_uncertainty") for name in rows[0] if name.endswith("_uncertainty")}
    lesser = {
        line["column"]
        for line in measured
        if (older := lines.get((line["row"], line["column"]))) and _is_lesser(line, older, intervals)
    }
    measured = [line for line in measured if line["column"] not in lesser]
    if not measured:
        return [], sorted(lesser)
    lines |= {(line["row"], line["column"]): line for line in measured}
    at, under = ({name: number for number, name in enumerate(names)} for names in (order, columns))
    ordered = sorted(lines, key=lambda of: (under.get(of[1], len(under)), at.get(of[0], len(at))))
    found = [{name: lines[of].get(name, "") for name in measured[0]} for of in ordered]
    page = path.with_suffix(".md")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, csv_text(found))
    write_text(page, _page(found, title))
    return [path, page], sorted(lesser)


def _is_lesser(line: Mapping[str, str], older: Mapping[str, str], intervals: Mapping[str, str]) -> bool:
    """Whether a ratio lacks the interval of the older one, or has not settled in fewer rounds. Old files have none."""
    fewer = int(line.get("rounds") or 0) < int(older.get("rounds") or 0)
    return any(
        line[ratio] and ((older.get(name) and not line[name]) or (fewer and line.get(f"{ratio}_settled") == "False"))
        for name, ratio in intervals.items()
    )


def _page(lines: Sequence[Mapping[str, str]], title: str) -> str:
    """The costs of every column as Markdown, with the numbers that the ratios are of."""
    heads = ["row", "parameters", "FLOPs", "bytes, MiB", "saved, MiB", "step, ms", "compiled step, ms"]
    tables = {
        column: pipes([heads, *(_texts(line) for line in lines if line["column"] == column)])
        for column in dict.fromkeys(line["column"] for line in lines)
    }
    commits = sorted({line["git_commit"] or "unknown" for line in lines})
    return template("costs.md.jinja").render(lines=lines, title=title, commits=commits, tables=tables)


def _texts(line: Mapping[str, str]) -> list[str]:
    return [
        line["row"],
        f"{int(line['parameters']):,}",
        f"{float(line['flops']):.3g} ({float(line['flops_ratio']):.3f})",
        _beside(line, "bytes_mib", "bytes_ratio"),
        _beside(line, "saved_mib", "saved_ratio"),
        *(_beside(line, f"{how}_ms", *ratio_columns(how)) for how in ("step", "compiled_step")),
    ]


def _beside(line: Mapping[str, str], name: str, ratio: str, error: str | None = None) -> str:
    if not line[name]:
        return "-"
    if not line[ratio]:
        return f"{float(line[name]):,.1f}"
    reach = ""
    if error is not None and not line[error]:
        reach = ", not settled"
    elif error is not None and float(line[error]):
        reach = f" ± {100 * float(line[error]):.1f} %"
    return f"{float(line[name]):,.1f} ({float(line[ratio]):.3f}{reach})"
