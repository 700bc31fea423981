"""A run id has one number, wherever it stands in the committed results, and in the archives of scale evening."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path
from typing import Any

from comt_cli.report.format import machine
from comt_cli.report.frame import csv_text
from comt_cli.report.written import Line, read_lines

RESULTS = Path(__file__).resolve().parents[2] / "results"
EVENING = RESULTS / "evening"

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


ENDS = ("loss", "train_loss", "perplexity", "test_perplexity", "accuracy", "test_bleu")
"""Numbers by which a run is known to be the same training; a table has those of its task."""


def archived() -> dict[str, dict[str, Any]]:
    """The result of every run of the archives, by id."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(EVENING.glob("*.tar.xz")):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.endswith("/result.json") and (file := archive.extractfile(member)) is not None:
                    found[Path(member.name).parent.name] = json.load(file)
    return found


def shown() -> dict[str, dict[str, Line]]:
    """Every run that ended and that a table of this scale or its sweep shows, by id, then by table."""
    found: dict[str, dict[str, Line]] = {}
    for path in sorted(EVENING.glob("*/*.csv")):
        if path.stem.endswith(("-runs", "-trials")):
            table = path.relative_to(EVENING).with_suffix("").as_posix().removesuffix("-runs")
            for run in read_lines(path):
                if run["state"] in ("done", "diverged"):
                    found.setdefault(run["id"], {})[table] = run
    return found


def test_the_archives_lack_what_is_listed_and_have_the_numbers_of_the_rest():
    results, runs = archived(), shown()
    assert len(results) > 1_000
    lacking = [
        {"id": run, "row": next(iter(tables.values()))["row"], "seed": next(iter(tables.values()))["seed"],
         "tables": " ".join(tables)}
        for run, tables in sorted(runs.items()) if run not in results
    ]  # fmt: skip
    assert (EVENING / "not-archived.csv").read_text(encoding="utf-8") == csv_text(lacking)
    other = [
        f"{run}: {key} is {machine(results[run][key])} in its archive, {line[key]} in {table}"
        for run in runs.keys() & results.keys()
        for table, line in runs[run].items()
        for key in ENDS
        if line.get(key) and key in results[run] and machine(results[run][key]) != line[key]
    ]
    assert other == []
