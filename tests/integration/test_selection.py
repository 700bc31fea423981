"""The weights that a run ends with: its last, the best by validation, or the mean of several (`train.select`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from same_bits import Reason, assert_same_bits
from tiny_runs import assert_same_run, image_spec, stopped_at, stopped_everywhere, tiny_spec, train, training
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.exchange.checkpoint import read_state
from comt_cli.runs.directory import RunDirectory
from comt_cli.training.events import Event, StepReport
from comt_cli.training.tasks import language

SHORT = {"steps": 12, "log_every": 1, "save_every": 5, "warmup_steps": 0}
BEST = {**SHORT, "evaluate_every": 3, "select": "best", "learning_rate": 0.01}
AVERAGE = {**SHORT, "average_last": 3, "average_every": 4}


def validated(directory: RunDirectory) -> list[tuple[int, float]]:
    """Step and perplexity of every evaluation before the weights were chosen."""
    lines = [line for line in directory.metrics() if "validation_loss" in line and "chosen" not in line]
    return [(line["step"], line["validation_perplexity"]) for line in lines]


class Weights:
    """A listener that keeps the weights of some steps."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.kept = steps, {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepReport) and event.step in self.steps:
            state = self.run.model.state_dict()
            self.kept[event.step] = {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize("higher", [False, True])
def test_the_best_by_validation_is_kept(tiny_corpus, tmp_path, upside_down, higher):
    """The perplexity is least at the first evaluation: the best need not be the last."""
    if higher:  # an accuracy is better the higher it is
        spec = image_spec(steps=12, log_every=1, evaluate_every=3, select="best", learning_rate=0.5)
        key = "accuracy"
    else:
        spec, key = tiny_spec(tiny_corpus, **BEST), "perplexity"
    listener = Weights(3, 6, 9, 12)
    run = training(spec, tmp_path, listener=listener)
    listener.run = run
    result = run.run()
    lines = [line for line in run.directory.metrics() if "validation_loss" in line]
    before, (after,) = ([line for line in lines if ("chosen" in line) == chosen] for chosen in (False, True))
    values = {line["step"]: line[f"validation_{key}"] for line in before}
    assert list(values) == [3, 6, 9, 12]
    best = (max if higher else min)(values.values())
    chosen = next(step for step, value in values.items() if value == best)  # of equal ones the first
    assert result["chosen_step"] == chosen
    assert higher or chosen == 3
    assert result["step"] == 12
    assert result[key] == after[f"validation_{key}"] == best
    final = read_state(run.directory.checkpoint_file)["model"]
    assert_same_bits(final, listener.kept[chosen], Reason.SAVED, "the weights")
    assert not list(run.directory.path.glob("best-*.pt"))


@pytest.fixture
def upside_down(monkeypatch):
    """Evaluations that call the worst the best: where a loss falls, on any machine, the first one is chosen."""
    real = language.LanguageRun.evaluate

    def evaluate(*arguments):
        found = real(*arguments)
        return replace(found, metrics={**found.metrics, "perplexity": 1 / found.metrics["perplexity"]})

    monkeypatch.setattr(language.LanguageRun, "evaluate", evaluate)


def test_the_mean_of_the_last_is_kept(tiny_corpus, tmp_path):
    listener = Weights(4, 8, 12)
    run = training(tiny_spec(tiny_corpus, **AVERAGE), tmp_path, listener=listener)
    listener.run = run
    result = run.run()
    assert result["averaged_steps"] == [4, 8, 12]
    final = read_state(run.directory.checkpoint_file)["model"]
    for name, weight in final.items():
        mean = torch.stack([kept[name].double() for kept in listener.kept.values()]).mean(0)
        assert torch.allclose(weight.double(), mean, rtol=1e-6, atol=1e-9), name
    assert result["perplexity"] != validated(run.directory)[-1][1]
    assert not list(run.directory.path.glob("weights-*.pt"))


@pytest.mark.parametrize("settings", [pytest.param(BEST, id="best", marks=pytest.mark.slow), AVERAGE])
def test_stopped_at_any_event_it_ends_the_same(tiny_corpus, tmp_path, upside_down, settings):
    spec = tiny_spec(tiny_corpus, **settings)
    expected = train(spec, tmp_path / "undisturbed")
    stopped_everywhere(spec, tmp_path / "runs")
    assert_same_run(RunDirectory.of(tmp_path / "runs", spec), expected)


def test_weights_that_are_kept_change_nothing_and_can_be_averaged_afterwards(tiny_corpus, tmp_path, monkeypatch):
    plain, keeping = (tiny_spec(tiny_corpus, **SHORT, **more) for more in ({}, {"keep_every": 3}))
    assert keeping.id == plain.id
    expected = train(plain, tmp_path / "plain")
    assert not [*expected.path.glob("weights-*.pt")]
    stopped_at([8], keeping, tmp_path)
    directory = train(keeping, tmp_path)
    for name in ("metrics_file", "metrics_table"):
        assert getattr(directory, name).read_bytes() == getattr(expected, name).read_bytes()
    same = {"loss", "perplexity", "bits_per_byte", "step", "train_loss"}
    assert {key: directory.result()[key] for key in same} == {key: expected.result()[key] for key in same}
    for again in (keeping, plain):  # what is done already keeps them, whatever is asked now
        train(again, tmp_path)
    assert {path.name for path in directory.path.glob("weights-*.pt")} == {f"weights-{n}.pt" for n in (3, 6, 9, 12)}
    done = CliRunner().invoke(app, ["average", keeping.id[:6], "--last", "2", "--runs", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (directory.path / "average-9-12.pt").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"select": "best"}, "set evaluate_every"),
        (AVERAGE | {"select": "best", "evaluate_every": 2}, "leave one of the two keys out"),
        ({"average_every": 2}, "give it together with average_last"),
        ({"average_last": 4, "average_every": 4}, "4 weights, 4 steps apart, need more than 12 steps"),
    ],
)
def test_contradictions_are_refused(tiny_corpus, settings, said):
    with pytest.raises(ValidationError, match=said):
        tiny_spec(tiny_corpus, **{**SHORT, **settings})
