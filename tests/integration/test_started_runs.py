"""Runs that start from another run's weights: their first loss, resuming, several processes, and what is refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from same_bits import Reason, assert_same_bits
from tiny_runs import StopAt, Stopped, assert_same_run, tiny_spec, train, training
from worlds import run_together

from comt_cli.data.prepare import prepare
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.models.build import materialise, model_of
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec, RunStart
from comt_cli.training.events import ignore
from comt_cli.training.loop import Training
from comt_cli.training.objective import SummedLoss
from comt_cli.training.parallel import join_world
from comt_cli.training.processes import StopSignal

STEPS = {"steps": 12, "log_every": 1, "save_every": 3}


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
    (beginning,) = json.loads(directory.environment_file.read_text())
    assert beginning["start"] == source.id
    assert directory.spec().start.run.id == source.id


def test_new_parts_keep_their_initial_values(source, tiny_corpus, tmp_path):
    train(source, tmp_path)
    spec = started(source, new=("head",), drop=("head",))
    no_step = spec.model_copy(update={"settings": tiny_spec(tiny_corpus, **STEPS, learning_rate=1e-30).settings})
    ours, theirs = weights(train(no_step, tmp_path)), weights(RunDirectory.of(tmp_path, source))
    model = model_of(spec)
    materialise(model, torch.device("cpu"), spec.seed)
    expected = {
        name: initial if name.startswith("head.") else theirs[name] for name, initial in model.state_dict().items()
    }
    assert_same_bits({name: ours[name] for name in expected}, expected, Reason.MOVED, "the weights")


def test_stopped_anywhere_it_ends_with_the_same_bits_and_needs_its_source_no_more(source, tmp_path):
    train(source, tmp_path / "whole")
    spec = started(source)
    whole = train(spec, tmp_path / "whole")
    train(source, tmp_path / "stopped")
    for event in (1, 2, 6):  # before a step was saved, twice; and after
        with pytest.raises(Stopped):
            train(spec, tmp_path / "stopped", listener=StopAt(event))
    gone = RunDirectory.of(tmp_path / "stopped", source).path
    gone.rename(gone.with_name("elsewhere"))
    assert_same_run(train(spec, tmp_path / "stopped"), whole)


def test_killed_it_ends_with_the_same_bits(source, nursery, tmp_path):
    for folder in ("whole", "killed"):
        train(source, tmp_path / folder)
    spec = started(source)
    whole = train(spec, tmp_path / "whole")
    for moment in (("half of a checkpoint is written", 1), ("after a checkpoint is renamed", 1)):
        assert nursery.run(spec, tmp_path / "killed", moment) == -signal.SIGKILL
    assert_same_run(train(spec, tmp_path / "killed"), whole)


def together(rank: int, spec: RunSpec, folder: Path) -> None:
    with join_world("cpu") as world:
        dataset = prepare(spec.settings.data)
        Training(spec, RunDirectory.of(folder, spec), dataset, world, ignore, StopSignal()).run()


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_processes_start_alike(sharding, source, nursery, tiny_corpus, tmp_path):
    train(source, tmp_path)
    spec = started(source, new=("head",), drop=("head",))
    spec = spec.model_copy(update={"settings": tiny_spec(tiny_corpus, **STEPS, sharding=sharding).settings})
    whole = tmp_path / "one"
    train(source, whole)
    run_together(nursery, 2, together, spec, tmp_path)
    ours, theirs = (RunDirectory.of(folder, spec).metrics()[:3] for folder in (tmp_path, whole))
    assert theirs == []
    theirs = train(spec, whole).metrics()[:3]
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], rel=1e-5)


def refused(spec: RunSpec, runs: Path) -> str:
    with pytest.raises(UserError) as error:
        train(spec, runs)
    return error.value.message


def test_a_source_without_weights_is_refused_by_name(source, tiny_corpus, tmp_path):
    spec = started(source)
    assert "it is not done" in refused(spec, tmp_path)
    with pytest.raises(Stopped):
        train(source, tmp_path, listener=StopAt(6))
    assert "it is not done" in refused(spec, tmp_path)  # a checkpoint of some step is no start
    directory = train(source, tmp_path)
    directory.checkpoint_file.unlink()
    assert refused(spec, tmp_path) == f"there is no checkpoint {directory.checkpoint_file}"
    diverging = tiny_spec(tiny_corpus, **STEPS | {"warmup_steps": 0}, learning_rate=1e30)
    train(diverging, tmp_path)
    assert "it diverged at step " in refused(started(diverging), tmp_path)


def test_another_runs_checkpoint_is_refused(source, tiny_corpus, tmp_path):
    other = train(tiny_spec(tiny_corpus, seed=2, **STEPS), tmp_path)
    directory = train(source, tmp_path)
    directory.checkpoint_file.write_bytes(other.checkpoint_file.read_bytes())
    assert refused(started(source), tmp_path).endswith(f"belongs to run {other.path.name}, not {source.id}")


def test_weights_that_do_not_fit_are_named(source, tmp_path):
    train(source, tmp_path)
    message = refused(started(source, new=("head",)), tmp_path)
    assert "head.weight [" in message
    assert "of the source has no place in the model, where it is new" in message
