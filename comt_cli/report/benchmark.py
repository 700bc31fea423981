"""Measured speeds as a CSV that later measurements join, and the same as Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comt_cli.files import write_text

KEY = ("device", "shape", "precision", "variant")
"""What makes two rows measurements of the same thing."""


def write_step_benchmark(
    rows: Sequence[Mapping[str, Any]], variants: Mapping[str, str], results: Path
) -> list[tuple[Path, str]]:
    """Write `<results>/bench/<device>/step.csv` and `.md`; a row with the same key as an old one replaces it.

    Returns the files and their text. All `rows` are of one device.
    """
    device = str(rows[0]["device"])
    folder = results / "bench" / re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-").lower()
    folder.mkdir(parents=True, exist_ok=True)
    csv_file = folder / "step.csv"
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    if csv_file.exists():
        with csv_file.open(newline="", encoding="utf-8") as handle:
            merged = {_key(row): dict(row) for row in csv.DictReader(handle)}
    merged.update({_key(row): {name: "" if value is None else value for name, value in row.items()} for row in rows})
    ordered = sorted(
        merged.values(), key=lambda row: (row["shape"], row["precision"], list(variants).index(row["variant"]))
    )
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(ordered)
    files = [(csv_file, text.getvalue()), (csv_file.with_suffix(".md"), _markdown(ordered, variants, device))]
    for path, content in files:
        write_text(path, content)
    return files


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in KEY)


def _markdown(rows: Sequence[Mapping[str, Any]], variants: Mapping[str, str], device: str) -> str:
    lines = [
        f"# Training step on {device}",
        "",
        "Variants took turns; a ratio is the median over rounds of the ratio within a round. Below 1 is faster.",
        f"Measured at commit {', '.join(sorted({str(row['git_commit'] or 'unknown') for row in rows}))}.",
        "",
        "| shape | precision | variant | ms a step (p10 to p90) | tokens/s "
        "| / plain-compiled | / transformers | forward / plain-compiled |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        spread = f"{float(row['step_ms']):.1f} ({float(row['step_ms_p10']):.1f} to {float(row['step_ms_p90']):.1f})"
        ratios = [
            "-" if row[name] in ("", None) else f"{float(row[name]):.3f}"
            for name in (
                "step_ratio_to_plain_compiled",
                "step_ratio_to_transformers",
                "forward_ratio_to_plain_compiled",
            )
        ]
        cells = [
            row["shape"],
            row["precision"],
            row["variant"],
            spread,
            f"{float(row['tokens_per_second']):,.0f}",
            *ratios,
        ]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    lines += ["", *(f"- `{name}`: {meaning}" for name, meaning in variants.items()), ""]
    return "\n".join(lines)
