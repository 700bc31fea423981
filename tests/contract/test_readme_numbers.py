"""The numbers that README shows are those of the committed table, to the letter, bold included."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from comt_cli.report.format import value

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE = ROOT / "results/evening/comt/table3.md"


def markdown_tables(text: str) -> list[list[list[str]]]:
    """Every table of a Markdown text, as rows of cells; the line under the heading is left out."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    rows = [[[cell.strip() for cell in line.strip().strip("|").split("|")] for line in b.splitlines()] for b in blocks]
    return [[row for row in table if not set("".join(row)) <= set(":- ")] for table in rows]


def test_the_table_is_the_committed_one():
    ((heading, *rows),) = markdown_tables(TABLE.read_text(encoding="utf-8"))
    _, _, results = README.partition("## What comes out")
    (shown, *shown_rows) = markdown_tables(results)[0]
    assert set(shown) <= set(heading)
    places = [heading.index(name) for name in shown]
    assert [[row[place] for place in places] for row in rows] == shown_rows


def test_what_the_demo_prints_is_what_seed_1_gave():
    with (ROOT / "results/smoke/comt/table3-runs.csv").open(encoding="utf-8") as handle:
        seed_1 = {run["row"]: run for run in csv.DictReader(handle) if run["seed"] == "1"}
    (block,) = re.findall(r"^```\n(method .*?)^```", README, re.DOTALL | re.MULTILINE)
    lines = [line.split() for line in block.splitlines()[1:]]
    assert len(lines) > 3
    for row, perplexity, _, bits_per_byte, *_ in lines:
        assert perplexity == value(float(seed_1[row]["perplexity"]))
        assert bits_per_byte == value(float(seed_1[row]["bits_per_byte"]), 3)
