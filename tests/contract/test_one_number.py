"""A run id has one number, wherever it stands in the committed results."""

from __future__ import annotations

import csv
from pathlib import Path

from comt_cli.report.written import read_lines

RESULTS = Path(__file__).resolve().parents[2] / "results"

PLACES = {
    *("row", "column", "recipe", "command", "scale", "tables"),
    *("chosen", "learning_rate", "grid.train.learning_rate"),
}
"""Where a run stands: each table says it in its own words."""
MEASURED = {
    *("train_seconds", "tokens_per_second", "images_per_second", "examples_per_second", "mfu"),
    *("peak_memory_bytes", "waiting_share", "device", "products", "attention", "git_commit"),
}
"""What the same training, run once more, has of its own."""


def test_every_run_has_one_number():
    """All other columns of all CSVs that name runs: what was set, what was counted, losses and metrics; of learning
    curves at every step. A column that a table does not have, or leaves empty, says nothing."""
    first: dict[tuple[str, str, str], tuple[str, str]] = {}
    apart: dict[str, str] = {}
    for path in sorted(RESULTS.rglob("*.csv")):
        with path.open(newline="", encoding="utf-8") as handle:
            lines = csv.reader(handle)
            head = next(lines)
            if "id" not in head:
                continue
            name = path.relative_to(RESULTS).as_posix()
            run, step = head.index("id"), head.index("step") if name.endswith("-logs.csv") else None
            compared = [at for at, key in enumerate(head) if at not in (run, step) and key not in PLACES | MEASURED]
            for line in lines:
                when = "" if step is None else line[step]
                for at in compared:
                    if head[at] == "state" and line[at] not in ("done", "diverged"):
                        continue  # a table says so of runs that it does not share
                    if value := line[at]:
                        before, there = first.setdefault((line[run], when, head[at]), (value, name))
                        if before != value:
                            apart[line[run]] = f"{head[at]} is {before} in {there}, {value} in {name}"
    assert len({run for run, *_ in first}) > 1_500
    assert not apart, f"{len(apart)} runs have two numbers:\n" + "\n".join(f"{run}: {apart[run]}" for run in apart)


def test_numbers_that_were_replaced_are_told_from_those_that_stand():
    """`superseded.csv` has the number that every table shows now, and another that none shows."""
    lines = {line["id"]: line for line in read_lines(RESULTS / "superseded.csv")}
    shown: dict[str, set[str]] = {run: set() for run in lines}
    for path in RESULTS.glob("*/*/*.csv"):
        if path.stem.endswith(("-runs", "-trials")):
            for run in read_lines(path):
                if run["id"] in lines and run["state"] == "done":
                    shown[run["id"]].add(run[lines[run["id"]]["metric"]])
    assert len(lines) == 67
    assert {run: {line["after"]} for run, line in lines.items()} == shown
    assert [run for run, line in lines.items() if line["before"] == line["after"]] == []
