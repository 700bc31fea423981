"""Run directories of an earlier version, committed below tests/older, are read, taken up and reported by today's code.

For each kind of network there are a recipe, the run directory of its row as it was killed after step 6 of 10, and
what the same run had written when it was not. An id that differs from the recorded one means that runs which people
have finished would be trained anew: then the change needs a reason, in the commit that writes the new id to id.json.

    python tests/integration/test_older_runs.py --record NAME     add the directories of today's code, under a new name
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":  # before torch and the others look where their caches are
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import isolation

    MADE = isolation.isolate()

import pytest
import torch
from tiny_runs import PICTURES, PICTURES_CONTENT, StopAt, Stopped, dataset_of, train, write_corpus
from worlds import comt

from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedImageModel, LoadedModel
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.images import ImageClassification
from comt_cli.verbs.plan import plan_recipe

OLDER = Path(__file__).parents[1] / "older"
KILLED, WHOLE = "killed", "whole"
CASES = sorted(path.parent.relative_to(OLDER).as_posix() for path in OLDER.glob("*/*/recipe.yaml"))
assert {case.split("/")[0] for case in CASES} == {"images", "language"}


def identify_pictures(self, settings, progress=None):
    return PICTURES, PICTURES_CONTENT


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder to stand in, with the texts that the recipes name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ImageClassification, "identify", identify_pictures)
    write_corpus(Path("texts"), 30)
    return tmp_path


def planned(folder: Path) -> RunSpec:
    (spec,) = plan_recipe(folder / "recipe.yaml", "smoke").specs
    return spec.with_content(dataset_of(spec).content_hash)


def copied(case: str, what: str, runs: Path) -> tuple[RunSpec, RunDirectory]:
    """The run that the case's recipe means today, and the recorded directory in its place."""
    folder = OLDER / case
    spec = planned(folder)
    recorded = json.loads((folder / "id.json").read_text())
    assert spec.id == recorded, "the run has another id than when it was recorded"
    directory = RunDirectory.of(runs, spec)
    directory.path.mkdir(parents=True)
    for part in (KILLED, WHOLE) if what == WHOLE else (KILLED,):
        for file in (folder / part).iterdir():
            (directory.path / file.name).write_bytes(file.read_bytes())  # not its mode: a checkout may be read-only
    return spec, directory


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_is_taken_up(here, case):
    spec, directory = copied(case, KILLED, here / "runs")
    train(spec, here / "runs")
    whole = [json.loads(line) for line in (OLDER / case / WHOLE / "metrics.jsonl").read_text().splitlines()]
    for mine, recorded in zip(directory.metrics(), whole, strict=True):
        assert mine == pytest.approx(recorded, rel=1e-4), mine["step"]  # it may have been another processor
    starts = json.loads(directory.environment_file.read_text())
    assert [start["step"] for start in starts] == [0, 6]
    result, recorded = directory.result(), json.loads((OLDER / case / WHOLE / "result.json").read_text())
    assert recorded.keys() <= result.keys()


@pytest.mark.parametrize("case", CASES)
def test_a_finished_run_is_listed_and_reported(here, case):
    spec, directory = copied(case, WHOLE, here / "runs")
    recipe = str(OLDER / case / "recipe.yaml")
    assert "done" in comt("status", recipe, "--runs", "runs")
    (run,) = json.loads(comt("runs", "--json", "--runs", "runs"))
    assert run["id"] == spec.id
    comt("report", recipe, "--results", "results", "--runs", "runs")
    (table,) = (here / "results/smoke").rglob("recipe.csv")
    (row,) = csv.DictReader(table.read_text().splitlines())
    value = directory.result()["accuracy" if case.startswith("images/") else "perplexity"]
    assert float(row["mean"]) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_its_checkpoint_is_read(here, case):
    checkpoint = OLDER / case / KILLED / "checkpoint.pt"
    if case.startswith("images/"):
        loaded = load(checkpoint, LoadedImageModel)
        with torch.no_grad():
            logits = loaded.model.eval()(torch.zeros(2, 3, 8, 8))
        assert logits.shape == (2, len(loaded.class_names))
    else:
        loaded = load(checkpoint, LoadedModel)
        with torch.no_grad():
            logits = loaded.model(torch.tensor([loaded.text_codec().prompt("the gate")]))
        assert logits.shape == (1, 8, 258)  # a byte each
    assert logits.isfinite().all()


def record(name: str) -> None:
    """Write the directories that today's code makes, below tests/older/<kind>/<name>."""
    ImageClassification.identify = identify_pictures
    for latest in {case.split("/")[0]: case for case in CASES}.values():
        kind = latest.split("/")[0]
        folder = OLDER / kind / name
        folder.mkdir(parents=True)
        shutil.copy(OLDER / latest / "recipe.yaml", folder / "recipe.yaml")
        work = isolation.working_folder() / kind
        work.mkdir()
        os.chdir(work)
        write_corpus(Path("texts"), 30)
        spec = planned(folder)
        whole = train(spec, work / "whole")
        with contextlib.suppress(Stopped):
            train(spec, work / "killed", listener=StopAt(8))  # the start and seven steps: the sixth was saved
        killed = RunDirectory.of(work / "killed", spec)
        (folder / "id.json").write_text(json.dumps(spec.id) + "\n")
        leave = shutil.ignore_patterns(".lock", "checkpoint.pt")
        shutil.copytree(whole.path, folder / WHOLE, ignore=leave)
        shutil.copytree(killed.path, folder / KILLED, ignore=shutil.ignore_patterns(".lock"))


if __name__ == "__main__":
    try:
        record(sys.argv[sys.argv.index("--record") + 1])
    finally:
        isolation.remove(MADE)
