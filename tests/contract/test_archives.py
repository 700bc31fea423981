"""The archives of runs beside the tables of scale evening have every run that these show, but those that are listed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from comt_cli.report.format import machine
from comt_cli.report.frame import csv_text
from comt_cli.report.written import Line, read_lines

EVENING = Path(__file__).resolve().parents[2] / "results/evening"
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
