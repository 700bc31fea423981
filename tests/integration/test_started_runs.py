"""Runs that start from another run's weights: alone, in several processes, by workers, beside other machines, and as a
recipe of its own."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from test_workers import Crew
from tiny_recipe import quick_recipe
from tiny_runs import assert_same_run, stopped_at, tiny_spec, train, training
from worlds import comt, run_together, train_table, train_together

from comt_cli.campaign.queue import Ending
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import read_state, write_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec, RunStart
from comt_cli.training.objective import SummedLoss

pytestmark = pytest.mark.usefixtures("quick_workers")
STEPS = {"steps": 8, "log_every": 1, "save_every": 2}


@pytest.fixture
def source(tiny_corpus: str) -> RunSpec:
    return tiny_spec(tiny_corpus, **STEPS)


def started(source: RunSpec, seed: int = 7, **parts: tuple[str, ...]) -> RunSpec:
    """A run that goes on where the source ended, on the samples of another seed."""
    return source.model_copy(update={"seed": seed, "row": "started", "start": RunStart(run=source, **parts)})


def weights(directory: RunDirectory) -> dict[str, torch.Tensor]:
    return read_state(directory.checkpoint_file)["model"]


def test_the_first_loss_is_the_sources_on_that_batch(source, tmp_path):
    train(source, tmp_path)
    spec = started(source)
    run = training(spec, tmp_path)
    result = run.run()
    directory = run.directory
    model = load(RunDirectory.of(tmp_path, source).path, LoadedModel).model
    with run.task.train_batches(source.settings.train.batch_size, 0) as batches:
        (batch,) = next(iter(batches))
        tokens, targets = run.task.inputs(batch)
        with torch.no_grad():
            expected = SummedLoss(model, "reference")(tokens, targets) / batches.targets(0)
    assert directory.metrics()[0]["loss"] == pytest.approx(float(expected), rel=1e-6)
    alone = train(spec.model_copy(update={"start": None}), tmp_path)
    assert alone.metrics()[0]["loss"] > directory.metrics()[0]["loss"] + 0.5
    assert result["start"] == source.id


def test_killed_it_ends_with_the_same_bits_and_needs_its_source_no_more(source, nursery, tmp_path):
    for folder in ("whole", "killed"):
        train(source, tmp_path / folder)
    spec = started(source)
    whole = train(spec, tmp_path / "whole")
    moments = [("half of a checkpoint is written", 1), ("after a checkpoint is renamed", 1)]
    nursery.kill_at_each(moments, spec, tmp_path / "killed")
    gone = RunDirectory.of(tmp_path / "killed", source).path
    gone.rename(gone.with_name("elsewhere"))
    assert_same_run(train(spec, tmp_path / "killed"), whole)


@pytest.mark.parametrize("sharding", [pytest.param("none", marks=pytest.mark.slow), "fsdp"])
def test_two_processes_start_alike(sharding, source, nursery, tiny_corpus, tmp_path):
    train(source, tmp_path)
    spec = started(source, new=("head",), drop=("head",))
    spec = spec.model_copy(update={"settings": tiny_spec(tiny_corpus, **STEPS, sharding=sharding).settings})
    train(source, tmp_path / "one")
    run_together(nursery, 2, train_together, spec.model_dump_json(), str(tmp_path))
    ours, theirs = (each.metrics()[:3] for each in (RunDirectory.of(tmp_path, spec), train(spec, tmp_path / "one")))
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], rel=1e-5)


def refused(spec: RunSpec, runs: Path) -> str:
    with pytest.raises(UserError) as error:
        train(spec, runs)
    return error.value.message


def test_a_source_without_weights_is_refused_by_name(source, tiny_corpus, tmp_path):
    spec = started(source)
    assert "has not ended" in refused(spec, tmp_path)
    stopped_at([6], source, tmp_path)
    assert "has not ended" in refused(spec, tmp_path)  # a checkpoint of some step is no start
    directory = train(source, tmp_path)
    average = {key: value for key, value in read_state(directory.checkpoint_file).items() if key != "progress"}
    write_state(directory.checkpoint_file, average)
    assert refused(spec, tmp_path).endswith("checkpoint.pt is not from the last step")
    directory.checkpoint_file.unlink()
    assert refused(spec, tmp_path) == f"there is no checkpoint {directory.checkpoint_file}"
    diverging = tiny_spec(tiny_corpus, **STEPS | {"warmup_steps": 0}, learning_rate=1e30)
    train(diverging, tmp_path)
    assert "has diverged" in refused(started(diverging), tmp_path)
    other = train(tiny_spec(tiny_corpus, seed=2, **STEPS), tmp_path)
    directory.checkpoint_file.write_bytes(other.checkpoint_file.read_bytes())
    assert refused(spec, tmp_path).endswith(f"belongs to run {other.path.name}, not {source.id}")


def test_workers_train_the_source_first(source, tmp_path):
    specs = [started(source, seed) for seed in (2, 3)]
    crew = Crew(specs, tmp_path / "runs")
    assert crew.run() == [Ending.done] * 3
    begun = [event[2] for event in crew.display.heard if event[0] == "started"]
    assert (begun[0], set(begun[1:])) == (1, {2, 3})
    assert crew.queue.summary().lines() == ["3 runs: 3 done"]
    assert train_table(specs, tmp_path / "alone", "cpu").lines() == ["3 runs: 3 done"]
    for spec in (source, *specs):
        assert_same_run(*(RunDirectory.of(tmp_path / folder, spec) for folder in ("runs", "alone")))


@pytest.fixture
def recipes(tiny_corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, more in (("first", {}), ("second", {"start": {"recipe": "first.yaml"}})):
        rows, train = {"plain": "pre-ln", "gated": "comt"}, {"steps": 6, "learning_rate": 0.003}
        text = quick_recipe(name, tiny_corpus, rows, train, columns={"whole": {}}, **more)
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


TRAIN = ("--jobs", "1", "--device", "cpu")


def test_sources_are_trained_and_left_out_of_the_table(recipes):
    comt("train-lm", "--recipe", "second.yaml", "--rows", "gated", *TRAIN)
    (plan,) = json.loads(comt("show", "second.yaml", "--rows", "gated", "--json"))
    assert (plan["table"], plan["state"]) == ("own/second", "done")  # its source is not needed any more
    source = plan["start"]
    assert json.loads((recipes / "runs/by-id" / source / "spec.json").read_text())["table"] == "first"
    with (recipes / "runs/results/smoke/own/second.csv").open() as handle:
        assert {row["row"] for row in csv.DictReader(handle) if row["mean"]} == {"gated"}
    assert "  start weights from own/first smoke: 2 runs: 1 missing, 1 done" in comt("status", "second.yaml")
    comt("train-lm", "--recipe", "first.yaml", "--rows", "gated", *TRAIN)
    starts = json.loads((recipes / "runs/by-id" / source / "environment.json").read_text())
    assert len(starts) == 1, "it was trained again"
