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
from comt_cli.runs.plan import RunSpec
from comt_cli.training.events import Event, Note
from comt_cli.training.trackers import VARIABLE, tracking

TAGS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "tokens_per_second": "train/tokens_per_second",
    "validation_loss": "evaluation/loss",
    "validation_perplexity": "evaluation/perplexity",
    "validation_bits_per_byte": "evaluation/bits_per_byte",
    "validation_galore_perplexity": "evaluation/galore_perplexity",
}
Points = dict[str, dict[int, float]]


@pytest.fixture
def spec(tiny_corpus: str) -> RunSpec:
    return tiny_spec(tiny_corpus, steps=14, log_every=2, save_every=5, evaluate_every=7)


def logged(directory: RunDirectory) -> Points:
    """Numbers of the run directory's own files, as trackers should have it."""
    points: Points = defaultdict(dict)
    for line in [*directory.metrics(), *directory.timings()]:
        for key, tag in TAGS.items():
            if key in line:
                points[tag][line["step"]] = line[key]
    assert points.keys() == set(TAGS.values())
    return points


def assert_equal(found: Points, expected: Points) -> None:
    """The numbers of training to a float's precision; speeds differ in lines that a second start logged anew."""
    assert found.keys() == expected.keys()
    for tag, values in expected.items():
        assert found[tag].keys() == values.keys(), tag
        if tag != "train/tokens_per_second":
            assert found[tag] == pytest.approx(values, rel=1e-6), tag


def train_stopped_in_the_middle(spec: RunSpec, runs: Path) -> RunDirectory:
    """Steps 6 to 10 are logged before the stop, and are not in the checkpoint that the second start has: step 5's."""
    with pytest.raises(Stopped):
        train(spec, runs, listener=StopAt(8))
    directory = RunDirectory.of(runs, spec)
    assert directory.metrics()[-1]["step"] > 5
    return train(spec, runs)


def test_tensorboard_shows_the_metrics_of_a_run_that_was_stopped(spec, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracking(["tensorboard"]):
        directory = train_stopped_in_the_middle(spec, tmp_path / "runs")
    events = EventAccumulator(str(directory.path / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    assert all(len(found[tag]) == len(events.Scalars(tag)) for tag in found), "a step that stands twice"
    assert_equal(found, logged(directory))
    assert any(tag.startswith("config") for tag in events.Tags()["tensors"])
    assert_same_run(directory, train(spec, tmp_path / "untracked"))


class FakeWandb(types.ModuleType):
    """The calls of wandb that are used, as the real package has them."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.starts: list[dict[str, Any]] = []
        self.points: Points = defaultdict(dict)
        self.endings: list[int] = []
        self.fails_at: int | None = None
        self.logged_in = True
        self.Settings = dict

    def login(self) -> bool:
        if not self.logged_in:
            raise RuntimeError("No API key configured")
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
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return fake


def test_wandb_gets_the_metrics_under_the_runs_id(spec, wandb, tmp_path):
    with tracking(["wandb"]):
        directory = train_stopped_in_the_middle(spec, tmp_path / "runs")
    assert_equal(wandb.points, logged(directory))
    assert [(start["id"], start["resume"], start["dir"]) for start in wandb.starts] == [
        (spec.id, "allow", str(directory.path))
    ] * 2
    config = wandb.starts[0]["config"]
    assert config["names"]["id"] == spec.id
    assert config["settings"]["train"]["steps"] == 14
    assert wandb.endings == [1, 0]  # the first start was stopped
    assert_same_run(directory, train(spec, tmp_path / "untracked"))


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(spec, wandb, tmp_path):
    wandb.fails_at = 4
    heard: list[Event] = []
    with tracking(["wandb", "tensorboard"]):
        directory = train(spec, tmp_path / "runs", listener=heard.append)
    assert [event.text for event in heard if isinstance(event, Note)] == [
        "wandb is left out from here on: ConnectionError: the service is away"
    ]
    assert max(wandb.points["train/loss"]) == 2
    assert list((directory.path / "tensorboard").iterdir())
    assert_same_run(directory, train(spec, tmp_path / "untracked"))


def test_trackers_are_in_use_within_the_context_alone(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    with tracking(["tensorboard", "tensorboard"]):
        assert os.environ[VARIABLE] == "tensorboard"
        with tracking(None):  # what the environment says stays
            assert os.environ[VARIABLE] == "tensorboard"
    assert os.environ[VARIABLE] == ""
    monkeypatch.setenv(VARIABLE, "tensorboard,neptune")
    with pytest.raises(UserError, match="neptune"), tracking(None):
        pytest.fail("a wrong name in the environment is found before anything starts")
