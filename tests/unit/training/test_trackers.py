"""Trackers are told what the metrics say, go on where a run goes on, and can neither change nor stop it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import StopAt, Stopped, assert_same_run, tiny_spec, train

from comt_cli.errors import UserError
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.logs import logged
from comt_cli.runs.plan import RunSpec
from comt_cli.training.events import Event, Note
from comt_cli.training.trackers import VARIABLE, tracking

TAGS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "validation_loss": "evaluation/loss",
    "validation_perplexity": "evaluation/perplexity",
}
Points = dict[str, dict[int, float]]


@pytest.fixture
def spec(tiny_corpus: str) -> RunSpec:
    return tiny_spec(tiny_corpus, steps=14, log_every=2, save_every=5, evaluate_every=7)


def assert_tracked(found: Points, directory: RunDirectory) -> None:
    """The numbers of the run directory's own files, to a float's precision."""
    for key, tag in TAGS.items():
        wanted = {line["step"]: line[key] for line in directory.metrics() if key in line}
        assert found[tag] == pytest.approx(wanted, rel=1e-6), tag
    assert found["train/tokens_per_second"].keys() == found["train/loss"].keys()


def train_stopped_in_the_middle(spec: RunSpec, runs: Path) -> RunDirectory:
    """Steps 6 to 10 are logged before the stop, and are not in the checkpoint that the second start has: step 5's."""
    with pytest.raises(Stopped):
        train(spec, runs, listener=StopAt(8))
    assert RunDirectory.of(runs, spec).metrics()[-1]["step"] > 5
    return train(spec, runs)


def test_tensorboard_shows_the_metrics_of_a_run_that_was_stopped(spec, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracking(["tensorboard"]):
        directory = train_stopped_in_the_middle(spec, tmp_path / "runs")
    events = EventAccumulator(str(directory.path / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    assert all(len(found[tag]) == len(events.Scalars(tag)) for tag in found), "a step that stands twice"
    assert_tracked(found, directory)


class FakeWandb(types.ModuleType):
    """The calls of wandb that are used, as the real package has them."""

    Settings = dict

    def __init__(self) -> None:
        super().__init__("wandb")
        self.starts: list[dict[str, Any]] = []
        self.points: Points = defaultdict(dict)
        self.endings: list[int] = []
        self.fails_at: int | None = None

    def login(self) -> bool:
        return True

    def init(self, **options: Any) -> FakeWandb:
        self.starts.append(options)
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        if step == self.fails_at:
            raise ConnectionError("the service is away")
        for tag, value in values.items():
            self.points[tag][step] = value

    def finish(self, exit_code: int) -> None:
        self.endings.append(exit_code)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0" if name == "wandb" else version(name))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


def test_wandb_gets_the_metrics_under_the_runs_id(spec, wandb, tmp_path):
    with tracking(["wandb"]):
        directory = train_stopped_in_the_middle(spec, tmp_path / "runs")
    assert_tracked(wandb.points, directory)
    found = [(start["id"], start["resume"], start["dir"]) for start in wandb.starts]
    assert found == [(spec.id, "allow", str(directory.path))] * 2
    assert wandb.starts[0]["config"]["settings"]["train"]["steps"] == 14
    assert wandb.endings == [1, 0]  # the first start was stopped


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(spec, wandb, tmp_path):
    wandb.fails_at = 4
    heard: list[Event] = []
    with tracking(["wandb", "tensorboard"]):
        directory = train(spec, tmp_path / "runs", listener=heard.append)
    (said,) = (event.text for event in heard if isinstance(event, Note))
    assert said == "wandb is disabled from now on: ConnectionError: the service is away"
    assert max(wandb.points["train/loss"]) == 2
    assert list((directory.path / "tensorboard").iterdir())
    assert_same_run(directory, train(spec, tmp_path / "untracked"))


def test_trackers_are_in_use_within_the_context_alone(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    with tracking(["tensorboard", "tensorboard"]), tracking(None):  # what the environment says stays
        assert os.environ[VARIABLE] == "tensorboard"
    assert os.environ[VARIABLE] == ""
    monkeypatch.setenv(VARIABLE, "tensorboard,neptune")
    with pytest.raises(UserError, match="neptune"), tracking(None):
        pytest.fail("a wrong name in the environment is found before anything starts")


def test_gates_and_spikes_are_tracked_as_if_the_run_had_not_been_stopped(tiny_corpus, wandb, tmp_path):
    """Whether a value is a spike depends on those before it, also on those that an earlier start logged."""
    spec = tiny_spec(tiny_corpus, steps=40, log_every=1, save_every=30, observe_every=20)
    with tracking(["wandb"]):
        with pytest.raises(Stopped):
            train(spec, tmp_path, listener=StopAt(35))
        wandb.points.clear()
        directory = train(spec, tmp_path)
    log = directory.metrics()
    for key in ("loss_spikes", "gradient_norm_spikes"):
        assert wandb.points[f"train/{key}"] == {step: spike for step, spike in logged(log, key) if step > 30}
    gates = {line["step"]: line["gate_mean.q_proj.scalar"] for line in log if "gate_mean.q_proj.scalar" in line}
    assert gates.keys() == {1, 20, 40}
    assert wandb.points["gate_mean/q_proj.scalar"] == {40: gates[40]}
