"""What `comt bench costs` writes: a CSV that the recipe's table reads (`costs`), and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comt_cli.files import write_text
from comt_cli.report.costs import costs_lines, ratio_columns
from comt_cli.report.csv_tables import csv_text
from comt_cli.report.markdown import escaped, pipes


def write_costs(path: Path, rows: Sequence[Mapping[str, Any]], title: str, order: Sequence[str]) -> list[Path]:
    """Write what was measured and its page, the rows of a column in this order; rows of the same device that were not
    measured this time stay.

    Raises:
        UserError: the file that is there is none of these.
        StorageError: it cannot be written.
    """
    measured = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    lines = {(line["row"], line["column"]): line for line in costs_lines(path) if line["device"] == rows[0]["device"]}
    lines |= {(line["row"], line["column"]): line for line in measured}
    columns = list(dict.fromkeys(column for _, column in lines))
    places = {row: number for number, row in enumerate(order)}
    ordered = sorted(lines, key=lambda of: (columns.index(of[1]), places.get(of[0], len(places))))
    found = [{name: lines[of].get(name, "") for name in measured[0]} for of in ordered]
    page = path.with_suffix(".md")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, csv_text(found))
    write_text(page, _page(found, title))
    return [path, page]


def _page(lines: Sequence[Mapping[str, str]], title: str) -> str:
    """The costs of every column as Markdown, with the numbers that the ratios are of."""
    commits = sorted({line["git_commit"] or "unknown" for line in lines})
    parts = [
        f"# {escaped(f'Costs: {title}')}",
        escaped(
            f"Measured on {lines[0]['device']} at commit {', '.join(commits)}. Beside each number its ratio to that "
            f"of {lines[0]['baseline']}. FLOPs: of a training step, counted. Bytes: what the compiled forward and "
            "backward pass read and write, as PyTorch's compiler counts it: every input and output of a fused kernel, "
            "of a matrix product and of an operator of ours, without the update of the weights. Kept: what a forward "
            "pass keeps for the backward pass. Steps took turns; a time is the 20th percentile of its turns, since "
            "other work only slows them, and ± the reach of the ratio's 90 % interval."
        ),
    ]
    for column in dict.fromkeys(line["column"] for line in lines):
        heads = ["row", "parameters", "FLOPs", "bytes, MiB", "kept, MiB", "step, ms", "compiled step, ms"]
        rows = [_texts(line) for line in lines if line["column"] == column]
        parts += [f"## {escaped(column)}", pipes([heads, *rows])]
    return "\n\n".join(parts) + "\n"


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
    reach = f" ± {100 * float(line[error]):.1f} %" if error is not None and line[error] and float(line[error]) else ""
    return f"{float(line[name]):,.1f} ({float(line[ratio]):.3f}{reach})"
