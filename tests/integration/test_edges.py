"""Where a run's parts meet: a stop in an evaluation, a last step that is saved too, weights that are no numbers though
the loss is one, other machines, a disk that fills up within a file."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import platform
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_divergence import poison
from test_interruptions import After
from tiny_runs import StopAt, Stopped, assert_same_run, tiny_spec, train, training

from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.kernels.choice import Choice
from comt_cli.kernels.triton.tiles import TILES, Tile
from comt_cli.runs.directory import NUMERICS, PYTORCH, RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.training import record as training_record
from comt_cli.training.checkpoint import save_checkpoint
from comt_cli.training.evaluation import Evaluation
from comt_cli.training.events import Evaluating, Event, Note, RunStarted, StepReport
from comt_cli.training.parallel import World
from comt_cli.training.processes import StopSignal
from comt_cli.training.record import NATIVE, LineLog, record_environment
from comt_cli.training.tasks import language

CPU = torch.device("cpu")


# ---- a stop in an evaluation


class InEvaluation:
    """A listener that does something at the start of the n-th evaluation."""

    def __init__(self, number: int, action: Callable[[], object]) -> None:
        self.left, self.action = number, action

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Evaluating) or event.done:
            return
        self.left -= 1
        if not self.left:
            self.action()


@pytest.mark.parametrize(("evaluation", "step"), [(1, 5), (2, 10), (3, 12)])
def test_a_stop_in_an_evaluation(tiny_corpus, tmp_path, evaluation, step):
    """It is not waited for: its step is saved, also where nothing else was due, and going on begins with it."""
    spec = tiny_spec(tiny_corpus, steps=12, log_every=4, save_every=100, evaluate_every=5, evaluation_batch_size=2)
    expected = train(spec, tmp_path / "undisturbed")
    stop = StopSignal()
    listener = InEvaluation(evaluation, lambda: setattr(stop, "number", signal.SIGTERM))
    with pytest.raises(RunInterrupted, match=f"stopped after step {step} of 12; everything is saved"):
        train(spec, tmp_path / "runs", listener=listener, stop=stop)
    directory = RunDirectory.of(tmp_path / "runs", spec)
    assert read_state(directory.checkpoint_file)["progress"]["step"] == step
    assert sum("validation_loss" in line for line in directory.metrics()) == evaluation - 1
    assert_same_run(train(spec, tmp_path / "runs"), expected)


def test_a_stop_is_saved_before_the_evaluation_that_is_due(tiny_corpus, tmp_path):
    spec = tiny_spec(tiny_corpus, steps=12, save_every=100, evaluate_every=5, log_every=1)
    expected = train(spec, tmp_path / "undisturbed")
    stop = StopSignal()

    class Both(After):
        def __call__(self, event: Event) -> None:
            assert not isinstance(event, Evaluating), "it evaluates first"
            super().__call__(event)

    listener = Both(4, lambda: setattr(stop, "number", signal.SIGTERM))
    with pytest.raises(RunInterrupted, match="stopped after step 5"):
        train(spec, tmp_path / "runs", listener=listener, stop=stop)
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


# ---- numbers that are none


def test_the_rate_is_of_all_steps_that_took_time(tiny_corpus, tmp_path):
    """The loss of step 9 is looked at after step 20: the time is of 20 steps, and so must the speed be."""
    run = training(tiny_spec(tiny_corpus, steps=30, log_every=20, save_every=100), tmp_path)
    poison(run, 8)
    result = run.run()
    assert result["step"] == 9
    assert result["tokens_per_second"] == pytest.approx(20 * 8 * 48 / result["train_seconds"], rel=0.05)


def test_a_stop_whose_weights_are_no_numbers_says_so(tiny_corpus, tmp_path):
    """Weights are bad after step 5, of which no loss tells yet: nothing may claim that they were saved."""
    for save_every, says in ((3, "the checkpoint of step 3 stays"), (100, "nothing was saved before")):
        run = training(tiny_spec(tiny_corpus, steps=12, log_every=1, save_every=save_every), tmp_path / says[:3])
        poison(run, 5)
        run.listener = After(4, lambda run=run: setattr(run.stop, "number", signal.SIGTERM))
        with pytest.raises(RunInterrupted, match=f"after step 5 of 12, whose weights are not finite.*; {says}\n"):
            run.run()


def test_done_means_that_there_is_a_final_checkpoint(tiny_corpus, tmp_path, monkeypatch):
    """Even if the evaluation does not see the weight that is no number."""
    monkeypatch.setattr(language, "evaluate", lambda *_: Evaluation(3.0, {}, {}))
    run = training(tiny_spec(tiny_corpus, steps=5, save_every=2), tmp_path)
    poison(run, 5)
    result = run.run()
    assert (result["state"], result["diverged_at"]) == ("diverged", 5)
    assert read_state(run.directory.checkpoint_file)["progress"]["step"] == 4


# ---- the disk


def test_a_disk_that_fills_up_within_a_large_checkpoint(tiny_corpus, tmp_path, monkeypatch):
    """torch's archive writer says of it that some offset was not reached, and nothing of a disk."""
    spec = tiny_spec(tiny_corpus, steps=4)
    directory = train(spec, tmp_path)
    before = directory.checkpoint_file.read_bytes()
    parts = training(spec, tmp_path).task.checkpoint_parts()

    class Full(io.BufferedWriter):
        left = 2_000_000

        def write(self, content: Any) -> int:
            self.left -= len(content)
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(content)

    large = torch.nn.Linear(1000, 1000)
    with monkeypatch.context() as patch:
        whole = Path.open
        patch.setattr(
            Path,
            "open",
            lambda path, *a, **k: Full(io.FileIO(path, "w")) if path.suffix == ".tmp" else whole(path, *a, **k),
        )
        with pytest.raises(StorageError, match=r"checkpoint\.pt: No space left on device"):
            save_checkpoint(directory.checkpoint_file, spec, parts, large, None, {"step": 1})
    assert directory.checkpoint_file.read_bytes() == before
    assert not list(directory.path.glob(".*.tmp"))


# ---- other machines


class Notes:
    """A listener that keeps notes, and ends the run at its n-th start or step."""

    def __init__(self, event: int) -> None:
        self.warned: list[str] = []
        self.stop_at = StopAt(event)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note):
            self.warned.append(event.text.partition(":")[0])
        if isinstance(event, RunStarted | StepReport):
            self.stop_at(event)


def test_going_on_under_something_else_is_said(tiny_corpus, tmp_path):
    """Bits are promised for one device, number of processes and threads, and torch. It stays said: in the result too.

    The first start, with two threads, ends before anything of it is in a checkpoint, and does not count.
    """
    spec = tiny_spec(tiny_corpus, steps=9, log_every=1, save_every=2)
    directory = RunDirectory.of(tmp_path, spec)
    starts, heard = ((2, 1), (1, 6), (1, 4), (2, 3), (1, 99)), []
    for threads, event in starts:
        torch.set_num_threads(threads)
        notes = Notes(event)
        with contextlib.suppress(Stopped):
            train(spec, tmp_path, listener=notes)
        heard.append(notes.warned)
    said = ["this run was begun under something else (device, threads)"]
    assert heard == [[], [], [], said, said]
    assert [entry["step"] for entry in environment(directory)] == [0, 0, 4, 6, 6]
    assert directory.result()["mixed_environment"] is True
    assert train(tiny_spec(tiny_corpus, steps=4), tmp_path).result()["mixed_environment"] is False


def environment(directory: RunDirectory) -> list[dict]:
    return json.loads(directory.environment_file.read_text())


@pytest.mark.parametrize("content", ["[{", "{}", "[1]"])
def test_a_damaged_environment_file(tiny_corpus, tmp_path, content):
    spec = tiny_spec(tiny_corpus, steps=4)
    directory = RunDirectory.of(tmp_path, spec)
    directory.create(spec)
    directory.environment_file.write_text(content)
    with pytest.raises(UserError, match=r"environment\.json is damaged") as refused:
        train(spec, tmp_path)
    assert refused.value.exit_status == 2
    directory.environment_file.unlink()
    train(spec, tmp_path)


OLD_TEXT = (
    "gates: PyTorch, CoMT's by autograd, Transponder's with a closed-form backward; loss: blocked linear cross en..."
)


@pytest.mark.parametrize(
    ("before", "now", "differs"),
    [
        (OLD_TEXT, {}, False),  # a run of an earlier version had no kernels
        (OLD_TEXT, {"swiglu": Choice(False, "as asked")}, False),
        (OLD_TEXT, {"swiglu": Choice(True, "as asked")}, True),
        (None, {}, False),  # a yet earlier one did not speak of them
        (None, {"heads": Choice(True, "as asked")}, True),
        ({"heads": "fused (1.20 times as fast)"}, {"heads": Choice(True, "1.30 times as fast")}, False),
        ({"heads": "fused (as asked)"}, {"heads": Choice(False, "there is no C++ compiler")}, True),
        ({"heads": "fused (as asked)"}, {"swiglu": Choice(True, "as asked")}, True),
        ({"heads": "reference (as asked)"}, {"swiglu": Choice(False, "as asked")}, False),
        ({"loss": "fused (liger-kernel 0.8.5)"}, {}, True),
    ],
)
def test_going_on_with_other_kernels_is_said(tiny_corpus, tmp_path, before, now, differs):
    """The operations that had kernels count; the reasons do not."""
    spec = tiny_spec(tiny_corpus, steps=4)
    directory = RunDirectory.of(tmp_path, spec)
    directory.create(spec)
    record = partial(record_environment, directory, training(spec, tmp_path).task)
    first = record(step=0, kernels={})
    if before is None:
        del first["kernels"]
    directory.environment_file.write_text(json.dumps([first | ({} if before is None else {"kernels": before})]))
    assert record(step=2, kernels=now)["differs"] == (["kernels"] if differs else [])
    assert record(step=0, kernels=now)["differs"] == []


OTHER_TILES = "swiglu none 32: 16 64 1 0"


@pytest.mark.parametrize(
    ("key", "absent", "values"),
    [
        ("device", "none", ("another",)),
        ("processes", "none", (2,)),
        ("threads", "none", (99,)),
        ("torch", "none", ("2.0",)),
        ("products", PYTORCH, ("another",)),
        ("attention", PYTORCH, ("another",)),
        ("captured", False, (False, True)),
        ("sharding", "none", ("none", "fsdp")),
        ("tiles", {}, ({}, {"swiglu": OTHER_TILES})),
        ("instructions", NATIVE, (NATIVE, "skylake-avx512")),
    ],
)
def test_all_that_decides_the_bits_is_compared(tiny_corpus, tmp_path, key, absent, values):
    """With every start since the one at step 0; what a start of an earlier version does not say was `absent`."""
    spec = tiny_spec(tiny_corpus, steps=4)
    directory = RunDirectory.of(tmp_path, spec)
    directory.create(spec)
    record = partial(record_environment, directory, training(spec, tmp_path).task, kernels={})
    first = record(step=0)
    without = {name: value for name, value in first.items() if name != key}
    for before, was in ((without, absent), *((first | {key: value}, value) for value in values)):
        directory.environment_file.write_text(json.dumps([first, before | {"step": 2}, first | {"step": 3}]))
        assert record(step=4)["differs"] == ([key] if was != first[key] else []), was


DEFAULT = (("swiglu", "none", 64), TILES["swiglu", "none"][0])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="others pretend to be none")
@pytest.mark.parametrize("fused", [True, False])
def test_what_kernels_were_compiled_for_is_recorded(tiny_corpus, tmp_path, monkeypatch, fused):
    """Their tiles where these are not the defaults, and a processor that may lack this one's instructions for bf16."""
    spec = tiny_spec(tiny_corpus, steps=4)
    directory = RunDirectory.of(tmp_path, spec)
    directory.create(spec)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx512")
    tiles = (DEFAULT, (("swiglu", "none", 32), Tile(16, 64, 1)))
    kernels = {"swiglu": Choice(fused, "as asked", tiles=tiles)}
    entry = record_environment(directory, training(spec, tmp_path).task, 0, kernels)
    assert entry["tiles"] == ({"swiglu": OTHER_TILES} if fused else {})
    assert entry["instructions"] == ("skylake-avx512" if fused else NATIVE)


def test_resuming_by_code_of_another_numerical_version_is_said(tiny_corpus, tmp_path, monkeypatch):
    spec = tiny_spec(tiny_corpus, steps=6, log_every=1, save_every=2)
    assert train(spec, tmp_path / "whole").result()["numerics"] == NUMERICS
    with pytest.raises(Stopped):
        train(spec, tmp_path / "resumed", listener=StopAt(4))
    monkeypatch.setattr(training_record, "NUMERICS", NUMERICS + 1)
    directory = train(spec, tmp_path / "resumed")
    assert [start["numerics"] for start in environment(directory)] == [NUMERICS, NUMERICS + 1]
    assert environment(directory)[-1]["differs"] == ["numerics"]
    assert directory.result()["numerics"] is None
    assert directory.result()["mixed_environment"] is True


def test_a_process_that_sees_another_checkpoint(tiny_corpus, tmp_path, monkeypatch):
    """Folders that are not shared between machines: one process would go on from step 2, another from step 4."""
    spec: RunSpec = tiny_spec(tiny_corpus, steps=8, log_every=1, save_every=4)
    with pytest.raises(Stopped):
        train(spec, tmp_path, listener=StopAt(6))
    run = training(spec, tmp_path)
    monkeypatch.setattr(World, "broadcast", lambda self, value: 2 if value == 4 else value)
    with pytest.raises(UserError, match="is of step 4 for process 0, and of step 2 for the first"):
        run.run()
