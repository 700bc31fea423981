"""Meetings of a run's parts: a stop in an evaluation, a last step that is saved too, other machines; and runs whose
loss or weights are no numbers any more, which is a result: several published baselines end like that."""

from __future__ import annotations

import contextlib
import json
import math
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_runs import StopAt, Stopped, assert_same_run, stopped_at, tiny_spec, train, training, untimed

from comt_cli.errors import RunInterrupted, UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.kernels.choice import Choice
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.training.evaluation import Evaluation
from comt_cli.training.events import Evaluating, Event, Note, RunStarted, StepReport
from comt_cli.training.parallel import World
from comt_cli.training.processes import StopSignal
from comt_cli.training.record import LineLog, record_environment
from comt_cli.training.tasks import language

# ---- a stop in an evaluation


def test_a_stop_in_an_evaluation_or_before_it(tiny_corpus, tmp_path):
    """The evaluation is not waited for: its step is saved, also where nothing else was due, and going on begins with
    it; if the stop came before the evaluation was begun, it is not."""
    spec = tiny_spec(tiny_corpus, steps=12, log_every=1, save_every=100, evaluate_every=5, evaluation_batch_size=2)
    expected = train(spec, tmp_path / "undisturbed")
    directory = RunDirectory.of(tmp_path / "runs", spec)
    # Step 9 is logged, and so step 10 is done; the evaluation after it has not begun in the second part.
    for moment, step, evaluations in (((Evaluating, 5), 5, 0), ((StepReport, 9), 10, 1), ((Evaluating, 12), 12, 2)):
        stop, seen = StopSignal(), [(StepReport, 0)]

        def listener(event: Event, moment=moment, stop=stop, seen=seen) -> None:
            seen.append((type(event), event.step if isinstance(event, StepReport) else seen[-1][1]))
            if seen[-1] == moment:
                stop.number = signal.SIGTERM

        with pytest.raises(RunInterrupted, match=f"stopped after step {step} of 12; everything is saved"):
            train(spec, tmp_path / "runs", listener=listener, stop=stop)
        assert moment[0] is Evaluating or (Evaluating, step) not in seen
        assert read_state(directory.checkpoint_file)["progress"]["step"] == step
        assert sum("validation_loss" in line for line in directory.metrics()) == evaluations
    assert_same_run(train(spec, tmp_path / "runs"), expected)


# ---- the end of a run


def test_a_run_that_another_process_finished_meanwhile(tiny_corpus, tmp_path):
    """It was unfinished when the table was looked through; nothing in its directory may change any more."""
    spec = tiny_spec(tiny_corpus, steps=4)
    directory = train(spec, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in directory.path.iterdir() if path.name != ".lock"}
    late = training(spec, tmp_path)
    assert late.run() == directory.result()
    assert {path: path.stat().st_mtime_ns for path in directory.path.iterdir() if path.name != ".lock"} == before
    assert not late.began


def test_lines_are_on_the_disk_before_the_result_is(tiny_corpus, tmp_path, monkeypatch):
    """A power cut must not leave a result whose last line is lost."""
    order: list[str] = []
    durable, replace = LineLog.durable_length, Path.replace
    monkeypatch.setattr(LineLog, "durable_length", lambda log: (order.append(log.path.name), durable(log))[1])
    monkeypatch.setattr(Path, "replace", lambda path, to: (order.append(Path(to).name), replace(path, to))[1])
    train(tiny_spec(tiny_corpus, steps=4), tmp_path)
    assert order[-4:] == ["metrics.jsonl", "timings.jsonl", "metrics.csv", "result.json"]


# ---- other machines


def test_going_on_under_something_else_is_said(tiny_corpus, tmp_path):
    """Bits are promised for one device, number of processes and threads, and torch. It stays said: in the result too.

    The first start, with two threads, ends before anything of it is in a checkpoint, and does not count.
    """
    spec = tiny_spec(tiny_corpus, steps=9, log_every=1, save_every=2)
    directory = RunDirectory.of(tmp_path, spec)
    starts, heard = ((2, 1), (1, 6), (1, 4), (2, 3), (1, 99)), []
    for threads, number in starts:
        torch.set_num_threads(threads)
        stop_at, warned = StopAt(number), []

        def listener(event: Event, stop_at=stop_at, warned=warned) -> None:
            warned.extend([event.text.partition(":")[0]] if isinstance(event, Note) else [])
            if isinstance(event, RunStarted | StepReport):
                stop_at(event)

        with contextlib.suppress(Stopped):
            train(spec, tmp_path, listener=listener)
        heard.append(warned)
    said = ["the environment has changed since the run began (device, threads)"]
    assert heard == [[], [], [], said, said]
    assert [entry["step"] for entry in environment(directory)] == [0, 0, 4, 6, 6]
    assert directory.result()["mixed_environment"] is True
    assert train(tiny_spec(tiny_corpus, steps=4), tmp_path).result()["mixed_environment"] is False


def environment(directory: RunDirectory) -> list[dict]:
    return json.loads(directory.environment_file.read_text())


def test_a_damaged_environment_file(tiny_corpus, tmp_path):
    spec = tiny_spec(tiny_corpus, steps=4)
    directory = RunDirectory.of(tmp_path, spec)
    directory.create(spec)
    directory.environment_file.write_text("{}")
    with pytest.raises(UserError, match=r"environment\.json is damaged") as refused:
        train(spec, tmp_path)
    assert refused.value.exit_status == 2


@pytest.fixture
def begun(tiny_corpus, tmp_path):
    """The directory of a run, and what notes a start in it."""
    spec = tiny_spec(tiny_corpus, steps=4)
    directory = RunDirectory.of(tmp_path, spec)
    directory.create(spec)
    return directory, partial(record_environment, directory, training(spec, tmp_path).task)


@pytest.mark.parametrize(
    ("before", "now", "differs"),
    [
        ({}, {"swiglu": Choice(True, "as asked")}, True),
        ({"heads": "fused (1.20 times as fast)"}, {"heads": Choice(True, "1.30 times as fast")}, False),
        ({"heads": "fused (as asked)"}, {"heads": Choice(False, "there is no C++ compiler")}, True),
    ],
)
def test_going_on_with_other_kernels_is_said(begun, before, now, differs):
    """The operations that had kernels count; the reasons do not."""
    directory, record = begun
    first = record(step=0, kernels={})
    directory.environment_file.write_text(json.dumps([first | {"kernels": before}]))
    assert record(step=2, kernels=now)["differs"] == (["kernels"] if differs else [])
    assert record(step=0, kernels=now)["differs"] == []


@pytest.mark.parametrize(
    ("key", "values"),
    [
        *((key, ("another",)) for key in ("numerics", "device", "processes", "threads", "torch")),
        *((key, ("another",)) for key in ("products", "attention")),
        ("captured", (False, True)),
        ("sharding", ("none", "fsdp")),
        ("tiles", ({}, {"swiglu": "swiglu none 32: 16 64 1 0"})),
        ("instructions", ("native", "skylake-avx512")),
    ],
)
def test_all_that_decides_the_bits_is_compared(begun, key, values):
    """With every start since the one at step 0; what a start of an earlier version does not say is another value."""
    directory, record = begun
    first = record(step=0, kernels={})
    without = {name: value for name, value in first.items() if name != key}
    for before in (without, *(first | {key: value} for value in values)):
        directory.environment_file.write_text(json.dumps([first, before | {"step": 2}, first | {"step": 3}]))
        assert record(step=4, kernels={})["differs"] == ([key] if before.get(key) != first[key] else []), before


def test_a_process_that_sees_another_checkpoint(tiny_corpus, tmp_path, monkeypatch):
    """Folders that are not shared between machines: one process would go on from step 2, another from step 4."""
    spec = tiny_spec(tiny_corpus, steps=8, log_every=1, save_every=4)
    stopped_at([6], spec, tmp_path)
    monkeypatch.setattr(World, "broadcast", lambda self, value: 2 if value == 4 else value)
    with pytest.raises(UserError, match=r"process 0 found step 4 in .*, the first process step 2"):
        train(spec, tmp_path)


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
    assert not directory.checkpoint_file.exists()


@pytest.mark.parametrize(("step", "value"), [(5, math.nan), (6, math.inf)])
def test_no_bad_checkpoint_replaces_a_good_one(tiny_corpus, tmp_path, step, value):
    """At step 6 a checkpoint is due; the loss of step 6 is still a number, but the weights after it are none."""
    run = training(tiny_spec(tiny_corpus, steps=12, log_every=4, save_every=3), tmp_path)
    poison(run, step, value)
    result = run.run()
    assert (result["state"], result["diverged_at"]) == ("diverged", step + 1)
    state = read_state(run.directory.checkpoint_file)
    assert state["progress"]["step"] == 3
    assert all(weight.isfinite().all() for weight in state["model"].values())


def test_the_result_does_not_depend_on_when_it_was_noticed(tiny_corpus, tmp_path):
    """Looking waits for the device, so it is done only where something is logged or saved."""
    results = []
    for name, options in (("once", {"save_every": 100}), ("often", {"save_every": 4})):
        run = training(tiny_spec(tiny_corpus, steps=30, log_every=20, **options), tmp_path / name)
        poison(run, 8)
        results.append(run.run())
    assert results[0]["diverged_at"] == results[0]["step"] == 9
    # Its loss is looked at after step 20: the time is of 20 steps, and so must the speed be.
    assert results[0]["tokens_per_second"] == pytest.approx(20 * 8 * 48 / results[0]["train_seconds"], rel=0.05)
    assert untimed(RunDirectory.of(tmp_path / "once", run.spec)) == untimed(run.directory)


@pytest.mark.parametrize("is_seen", [True, False])
def test_divergence_in_the_last_step(tiny_corpus, tmp_path, monkeypatch, is_seen):
    """Only the final evaluation can see it. Even if it does not, done means that there is a final checkpoint."""
    if not is_seen:
        monkeypatch.setattr(language.LanguageRun, "evaluate", lambda *_: Evaluation(3.0, {}, {}))
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
    stopped_at([2], spec, tmp_path / "runs")
    directory = train(spec, tmp_path / "runs")
    assert untimed(directory) == untimed(expected)
    assert directory.metrics_file.read_bytes() == expected.metrics_file.read_bytes()
