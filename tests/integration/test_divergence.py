"""A run whose loss is no number any more is a result: several published baselines end like that."""

from __future__ import annotations

import json
import math

import pytest
import torch
from tiny_runs import StopAt, Stopped, tiny_spec, train, training, untimed

from comt_cli.exchange.checkpoint import read_state
from comt_cli.runs.directory import RunDirectory, RunState


def poison(run, step: int, value: float = math.nan) -> None:
    """Have the update of `step` leave `value` in one weight: the next loss is not finite."""
    set_up = run._set_up

    def with_poison(*arguments) -> None:
        set_up(*arguments)
        update = run.optimizer.step

        def poisonous_update() -> None:
            update()
            if run.counters.step + 1 == step:
                with torch.no_grad():
                    run.model.head_weight[0, 0] = value

        run.optimizer.step = poisonous_update

    run._set_up = with_poison


def test_an_absurd_learning_rate(tiny_corpus, tmp_path):
    spec = tiny_spec(tiny_corpus, method="pre-ln", steps=40, learning_rate=1e30, warmup_steps=0, log_every=5)
    directory = train(spec, tmp_path)
    result = directory.result()
    assert result["state"] == "diverged"
    assert directory.state() is RunState.diverged
    # The first loss belongs to the initial weights; every one after it to weights of 1e30.
    assert result["diverged_at"] == result["step"] == 2
    assert result["last_finite_loss"] == directory.metrics()[0]["loss"] == pytest.approx(math.log(258), abs=0.3)
    assert "perplexity" not in result
    json.dumps(result, allow_nan=False)
    assert [line["step"] for line in directory.metrics()] == [1]
    assert "NaN" not in directory.metrics_file.read_text()
    assert not directory.checkpoint_file.exists()
    assert directory.metrics_table.exists()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("step", [5, 6])
def test_no_bad_checkpoint_replaces_a_good_one(tiny_corpus, tmp_path, step, value):
    """At step 6 a checkpoint is due; the loss of step 6 is still a number, but the weights after it are none."""
    run = training(tiny_spec(tiny_corpus, steps=12, log_every=4, save_every=3), tmp_path)
    poison(run, step, value)
    result = run.run()
    assert (result["state"], result["diverged_at"]) == ("diverged", step + 1)
    state = read_state(run.directory.checkpoint_file)
    assert state["progress"]["step"] == 3
    assert all(weight.isfinite().all() for weight in state["model"].values())


@pytest.mark.parametrize("others", [{"save_every": 1}, {"save_every": 4}, {"save_every": 100}])
def test_the_result_does_not_depend_on_when_it_was_noticed(tiny_corpus, tmp_path, others):
    """Looking waits for the device, so it is done only where something is logged or saved."""
    results = []
    for name, options in (("once", {"save_every": 100}), ("often", others)):
        run = training(tiny_spec(tiny_corpus, steps=30, log_every=20, **options), tmp_path / name)
        poison(run, 8)
        results.append(run.run())
    assert results[0]["diverged_at"] == results[1]["diverged_at"] == 9
    assert results[0]["tokens"] == results[1]["tokens"]
    assert results[0]["last_finite_loss"] == results[1]["last_finite_loss"]
    assert untimed(RunDirectory.of(tmp_path / "once", run.spec)) == untimed(run.directory)


def test_divergence_in_the_last_step(tiny_corpus, tmp_path):
    """Only the final evaluation can see it."""
    run = training(tiny_spec(tiny_corpus, steps=5, save_every=2), tmp_path)
    poison(run, 5)
    result = run.run()
    assert (result["state"], result["diverged_at"]) == ("diverged", 5)
    assert math.isfinite(result["last_finite_loss"])
    assert read_state(run.directory.checkpoint_file)["progress"]["step"] == 4


def test_a_killed_run_diverges_at_the_same_step(tiny_corpus, tmp_path):
    spec = tiny_spec(
        tiny_corpus, method="pre-ln", steps=40, learning_rate=1e30, warmup_steps=6, schedule="constant", log_every=1,
        save_every=1,
    )  # fmt: skip
    expected = train(spec, tmp_path / "undisturbed")
    assert expected.result()["state"] == "diverged"
    with pytest.raises(Stopped):
        train(spec, tmp_path / "runs", listener=StopAt(2))
    directory = train(spec, tmp_path / "runs")
    assert untimed(directory) == untimed(expected)
    assert directory.metrics_file.read_bytes() == expected.metrics_file.read_bytes()
