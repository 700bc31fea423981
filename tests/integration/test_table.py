"""A whole table, through the executor and through the command line: trained, skipped, gone on with, reported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dying import is_training, wait_until
from same_bits import Reason, assert_same_bits
from test_interruptions import After
from tiny_runs import StopAt, assert_same_run, tiny_spec
from worlds import train_table

from comt_cli import app
from comt_cli.campaign import executor, inline
from comt_cli.campaign.display import Display
from comt_cli.campaign.outcomes import Ending, TrainingFailed
from comt_cli.campaign.queue import RunQueue
from comt_cli.data.prepare import prepare
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.runs.shared import set_aside
from comt_cli.training.events import RunStarted
from comt_cli.training.loop import Training
from comt_cli.training.parallel import World
from comt_cli.training.processes import StopSignal


class Notes(Display):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.heard: list[tuple] = []

    def queue_started(self, queue, workers, device, processes=1):
        self.heard.append(("table", len(queue.every), len(queue.every) - len(queue.open)))

    def run_taken(self, worker, spec):
        self.spec = spec

    def run_event(self, worker, event):
        if isinstance(event, RunStarted):
            self.heard.append((self.spec.row, self.spec.seed, event.step))

    def run_ended(self, worker, ended):
        if ended.result is not None:
            self.heard.append(("finished", ended.result["state"]))
        else:
            self.heard.append((ended.ending.value, ended.reason))

    def close(self):
        self.heard.append(("closed",))


class EndAt(StopAt, Display):
    """Raises at the n-th event of a run."""

    def run_event(self, worker, event):
        self(event)


@pytest.fixture
def notes(monkeypatch):
    """`notes(display)`: what the executor has as its display from now on."""

    def listen(display: Display) -> Display:
        monkeypatch.setattr(executor, "make_display", lambda is_main: display)
        return display

    return listen


def seeds(corpus: str, *numbers: int, **train):
    return [
        tiny_spec(corpus, seed=number, **{"steps": 6, "log_every": 1, "save_every": 2} | train) for number in numbers
    ]


def test_finished_runs_are_skipped_and_unfinished_ones_go_on(tiny_corpus, tmp_path, notes):
    specs = seeds(tiny_corpus, 1, 2, 3)
    notes(Notes())
    train_table(specs[:1], tmp_path, "cpu")
    notes(EndAt(5, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train_table(specs[1:2], tmp_path, "cpu")
    second = notes(Notes())
    train_table(specs, tmp_path, "cpu")
    assert second.heard == [
        ("table", 3, 1),
        ("a-row", 2, 2),  # saved after step 2, stopped in step 4
        ("finished", "done"),
        ("a-row", 3, 0),
        ("finished", "done"),
        ("closed",),
    ]
    assert all(RunDirectory.of(tmp_path, spec).state() is RunState.done for spec in specs)


def test_nothing_is_trained_when_all_is_done(tiny_corpus, tmp_path, notes, monkeypatch):
    specs = seeds(tiny_corpus, 1) + seeds(tiny_corpus, 2, learning_rate=1e30, warmup_steps=0, log_every=1)
    train_table(specs, tmp_path, "cpu")
    assert [RunDirectory.of(tmp_path, spec).state() for spec in specs] == [RunState.done, RunState.diverged]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(Training, "run", lambda self: pytest.fail("it trains"))
    heard = notes(Notes())
    train_table(specs, tmp_path, "cpu")
    assert heard.heard == [("table", 2, 2), ("closed",)]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_changed_recipe_trains_anew_beside_the_old(tiny_corpus, tmp_path):
    old, changed, same = (seeds(tiny_corpus, 1, **more)[0] for more in ({}, {"beta2": 0.99}, {"save_every": 5}))
    assert old.id != changed.id
    assert old.id == same.id, "how often is saved changes no number"
    for spec in (old, changed, same):
        train_table([spec], tmp_path, "cpu")
    assert len(list(tmp_path.rglob("result.json"))) == 2


def test_set_aside_keeps_what_was(tiny_corpus, tmp_path):
    specs = seeds(tiny_corpus, 1, 2)
    train_table(specs[:1], tmp_path, "cpu")
    directory = RunDirectory.of(tmp_path, specs[0])
    result = directory.result_file.read_bytes()
    for number in (1, 2):
        (moved,) = set_aside(specs, tmp_path)
        assert moved == tmp_path / specs[0].relative_path.with_name(f"seed1-{specs[0].id}.replaced-{number}")
        assert not directory.path.exists()
        train_table(specs[:1], tmp_path, "cpu")
    assert (directory.path.with_name(f"{directory.path.name}.replaced-1") / "result.json").read_bytes() == result
    assert set_aside(specs[1:], tmp_path) == []


def test_a_folder_that_cannot_be_moved_aside(tiny_corpus, tmp_path, monkeypatch):
    specs = seeds(tiny_corpus, 1)
    train_table(specs, tmp_path, "cpu")

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StorageError, match=r"cannot move .* aside: Permission denied"):
        set_aside(specs, tmp_path)


def test_two_tables_that_ask_for_the_same_training_train_it_once(tiny_corpus, tmp_path, notes):
    specs = seeds(tiny_corpus, 1, 2)
    other = [spec.model_copy(update={"table": "other", "row": "its-name"}) for spec in specs]
    first = notes(Notes())
    train_table([*specs, other[0]], tmp_path, "cpu")
    assert [event for event in first.heard if event[0] == "a-row"] == [("a-row", 1, 0), ("a-row", 2, 0)]
    second = notes(Notes())
    summary = train_table(other, tmp_path, "cpu")
    assert second.heard == [("table", 2, 2), ("closed",)]
    assert [(outcome.ending, outcome.already) for outcome in summary.outcomes] == [(Ending.done, True)] * 2
    assert len(list((tmp_path / "by-id").iterdir())) == 2
    for spec in (*specs, *other):
        assert (tmp_path / spec.relative_path).resolve() == RunDirectory.of(tmp_path, spec).path.resolve()


# ---- a run that fails


def test_a_run_that_fails_does_not_stop_the_others(tiny_corpus, tmp_path, notes, monkeypatch):
    """Whatever it raises. The next time it is tried again, and nothing of the failure is left."""
    specs = seeds(tiny_corpus, 1, 2, 3)
    broken = RunDirectory.of(tmp_path, specs[0])
    broken.create(specs[0])
    broken.checkpoint_file.write_bytes(b"")
    set_up = Training._set_up
    with monkeypatch.context() as patch:

        def with_a_defect(self, held):
            if self.spec.seed == 2:
                raise RuntimeError("some defect\nin two lines")
            set_up(self, held)

        patch.setattr(Training, "_set_up", with_a_defect)
        heard = notes(Notes())
        summary = train_table(specs, tmp_path, "cpu")
    assert [outcome.ending for outcome in summary.outcomes] == [Ending.failed, Ending.failed, Ending.done]
    assert ("failed", "RuntimeError: some defect") in heard.heard
    counts, first, remedy, second = summary.lines()
    assert counts == "3 runs: 1 done, 2 failed"
    assert "is not a checkpoint" in first
    assert remedy.startswith(f"    Delete {broken.checkpoint_file} so that the run starts over")
    reason, _, mended_by = broken.error_file.read_text().partition("\n\n")
    assert reason in first
    assert mended_by.strip() == remedy.strip()  # no traceback: it is no defect
    assert broken.checkpoint_file.read_bytes() == b""
    failed = tmp_path / specs[1].relative_path
    assert second == f"  failed: comt/tiny a-row, tiny, seed 2: RuntimeError: some defect ({failed}/error.txt)"
    report = (failed / "error.txt").read_text()
    assert report.startswith("RuntimeError: some defect\n\nTraceback")
    assert "with_a_defect" in report
    with pytest.raises(TrainingFailed, match="2 of 3 runs failed") as raised:
        summary.check()
    assert raised.value.exit_status == 1
    assert raised.value.hint == f"{reason}\n  {remedy.strip()}"  # and not that the same command goes on
    broken.checkpoint_file.unlink()
    again = train_table(specs, tmp_path, "cpu")
    again.check()
    assert again.lines() == ["3 runs: 3 done (1 before)"]
    assert not (failed / "error.txt").exists()


def test_a_damaged_result_is_a_run_that_failed(tiny_corpus, tmp_path):
    specs = seeds(tiny_corpus, 1, 2)
    torn = RunDirectory.of(tmp_path, specs[0])
    torn.create(specs[0])
    torn.result_file.write_text("{")
    summary = train_table(specs, tmp_path, "cpu")
    assert [outcome.ending for outcome in summary.outcomes] == [Ending.failed, Ending.done]
    assert "result.json cannot be read" in summary.lines()[1]
    assert "Delete the run directory" in summary.lines()[2]


def test_a_full_disk_stops_the_list(tiny_corpus, tmp_path, notes):
    """It would befall the next run too."""
    specs = seeds(tiny_corpus, 1, 2)
    notes(EndAt(3, StorageError))
    with pytest.raises(StorageError) as full:
        train_table(specs, tmp_path, "cpu")
    assert full.value.exit_status == 1
    assert not RunDirectory.of(tmp_path, specs[1]).path.exists()


# ---- several processes on one list


def test_a_run_that_another_process_trains_is_left_to_it(tiny_corpus, tmp_path, notes):
    specs = seeds(tiny_corpus, 1, 2)
    busy = RunDirectory.of(tmp_path, specs[0])
    busy.create(specs[0])
    with busy.lock():
        summary = train_table(specs, tmp_path, "cpu")
    assert [outcome.ending for outcome in summary.outcomes] == [Ending.elsewhere, Ending.done]
    summary.check()
    assert summary.lines()[1].startswith(
        f"  trained elsewhere: comt/tiny a-row, tiny, seed 1: by process {os.getpid()} on "
    )


def test_a_run_that_its_owner_lets_go_of_meanwhile_is_taken_up(tiny_corpus, tmp_path, notes):
    """Put off at first, and looked at again when the list is through: its owner has died by then."""
    specs = seeds(tiny_corpus, 1, 2)
    busy = RunDirectory.of(tmp_path, specs[0])
    held = contextlib.ExitStack()
    held.enter_context(busy.lock())

    class Free(Notes):
        def run_ended(self, worker, ended):
            if ended.result is not None:
                held.close()
            super().run_ended(worker, ended)

    heard = notes(Free())
    summary = train_table(specs, tmp_path, "cpu")
    assert [event[:2] for event in heard.heard if event[0] in ("a-row", "trained elsewhere")] == [
        ("trained elsewhere", f"by {_me()}"),
        ("a-row", 2),
        ("a-row", 1),
    ]
    assert summary.lines() == ["2 runs: 2 done"]


def test_a_run_that_its_owner_ends_meanwhile_counts_as_done(tiny_corpus, tmp_path, notes):
    specs = seeds(tiny_corpus, 1, 2)
    train_table(specs[:1], tmp_path / "there", "cpu")
    busy = RunDirectory.of(tmp_path, specs[0])
    held = contextlib.ExitStack()
    held.enter_context(busy.lock())

    class End(Notes):
        def run_ended(self, worker, ended):
            if ended.result is not None:
                busy.result_file.write_bytes(RunDirectory.of(tmp_path / "there", specs[0]).result_file.read_bytes())
                held.close()

    notes(End())
    assert train_table(specs, tmp_path, "cpu").lines() == ["2 runs: 2 done (1 before)"]


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def test_a_stop_while_the_data_is_prepared(tiny_corpus, tmp_path, notes, monkeypatch):
    class Impatient(Notes):
        def preparing(self, stage, done, total):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    heard = notes(Impatient())
    with pytest.raises(RunInterrupted, match="stopped while the data was being prepared") as stopped:
        train_table(seeds(tiny_corpus, 1), tmp_path / "runs", "cpu")
    assert stopped.value.exit_status == 130
    assert heard.heard == [("closed",)]
    notes(Notes())
    train_table(seeds(tiny_corpus, 1), tmp_path / "runs", "cpu")


def test_a_batch_that_does_not_divide_is_found_before_anything_is_prepared(tiny_corpus, tmp_path, monkeypatch):
    world = World(torch.device("cpu"), 0, 3)
    monkeypatch.setattr(World, "broadcast", lambda self, value: value)
    monkeypatch.setattr(RunQueue, "prepare_data", lambda *_: pytest.fail("it prepares"))
    with pytest.raises(UserError, match="a batch of 8 rows cannot be shared evenly by 3 processes") as refused:
        inline._train_all(RunQueue(seeds(tiny_corpus, 1), tmp_path), world, Display(), StopSignal())
    assert refused.value.exit_status == 2


# ---- the command line

RECIPE = """
title: Two rows of a tiny model
paper: comt
table: micro
command: train-lm
baseline: pre-ln
seeds: [1]
settings:
  model: {{size: tiny, width: 32, ffn_width: 48, layers: 2, heads: 2}}
  data: {{corpus: "{corpus}", tokenizer: bytes, rows: pad, sequence_length: 48, validation_fraction: 0.2}}
  train: {{steps: 8, batch_size: 8, learning_rate: 5e-3, warmup_steps: 2, log_every: 2, save_every: 3}}
rows:
  pre-ln: {{method: pre-ln, paper: {{tiny: 20.0}}}}
  pre-ln+comt: {{method: comt, paper: {{tiny: 18.0}}}}
  wild:
    method: post-ln
    in_paper: false
    settings: {{train: {{learning_rate: 1e+30, warmup_steps: 0}}}}
columns:
  tiny: {{}}
scales:
  smoke: {{description: A tiny model}}
"""


@pytest.fixture
def recipe(tiny_corpus: str, tmp_path: Path) -> Path:
    path = tmp_path / "micro.yaml"
    path.write_text(RECIPE.format(corpus=tiny_corpus), encoding="utf-8")
    return path


@pytest.fixture
def comt(recipe, tmp_path, monkeypatch, capsys):
    """`comt(verb, *options)` in this process: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["comt", *arguments])
        try:
            app.main()
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_train_then_report_then_again(comt, recipe, tmp_path, monkeypatch):
    command = ("train-lm", "--recipe", str(recipe), "--device", "cpu")
    status, out, err = comt(*command)
    assert status == 0
    assert "pre-ln+comt, tiny, seed 1: 8 steps" in err
    assert "diverged at step 2" in err
    files = {path.suffix: path for path in (tmp_path / "runs" / "results").rglob("micro.*")}
    assert {".csv", ".md", ".tex"} <= set(files)
    ended = (tmp_path / "runs/own/micro").glob("*/*/seed1-*/result.json")
    results = {path.parts[-4]: json.loads(path.read_text()) for path in ended}
    assert set(results) == {"pre-ln", "pre-ln+comt", "wild"}
    for text in (out, files[".md"].read_text()):
        assert f"{results['pre-ln']['perplexity']:.2f}" in text
        assert f"{results['pre-ln+comt']['perplexity']:.2f}" in text
        assert "diverged" in text
    before = files[".csv"].read_bytes()
    assert comt("report", str(recipe))[:2] == (0, out)
    monkeypatch.setattr(Training, "run", lambda self: pytest.fail("it trains"))
    status, again, err = comt(*command)
    assert (status, again) == (0, out)
    assert "3 of 3 runs are finished already" in err
    assert files[".csv"].read_bytes() == before
    status, plan, _ = comt("show", str(recipe), "--json")
    assert [row["state"] for row in json.loads(plan)] == ["done", "done", "diverged"]


def test_dry_run_starts_nothing(comt, recipe, tmp_path):
    status, out, _ = comt("train-lm", "--recipe", str(recipe), "--dry-run", "--device", "cpu")
    assert status == 0
    assert "3 runs, 3 to do" in out
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "results").exists()


def test_fresh_trains_anew_and_keeps_the_old(comt, recipe, tmp_path):
    command = ("train-lm", "--recipe", str(recipe), "--device", "cpu", "--rows", "pre-ln")
    assert comt(*command)[0] == 0
    status, _, err = comt(*command, "--fresh")
    assert status == 0
    assert "moved aside: runs/own/micro/pre-ln/tiny/seed1-" in err
    assert len(list((tmp_path / "runs").rglob("result.json"))) == 2
    new, old = sorted((tmp_path / "runs" / "own" / "micro" / "pre-ln" / "tiny").iterdir())
    assert old.name == f"{new.name}.replaced-1"
    assert_same_run(RunDirectory(new), RunDirectory(old))


def test_a_set_override_is_another_run(comt, recipe, tmp_path):
    command = ("train-lm", "--recipe", str(recipe), "--device", "cpu", "--rows", "pre-ln")
    for more in ((), ("--set", "train.steps=9")):
        assert comt(*command, *more, "--overwrite")[0] == 0
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("result.json")]
    assert sorted(result["steps"] for result in results) == [8, 9]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--device", "tpu9"), "--device tpu9"),
        (("--device", "xpu"), "Use cuda, cuda:1, mps or cpu."),
        (("--device", "cuda:99"), "CUDA devices are visible here"),
        (("--seeds", "x"), "seeds are whole numbers"),
    ],
)
def test_what_cannot_be_is_an_error_with_status_2(comt, recipe, tmp_path, options, says):
    status, _, err = comt("train-lm", "--recipe", str(recipe), *options)
    assert status == 2
    assert says in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_sigterm_to_the_real_command(recipe, tmp_path, tiny_corpus, monkeypatch):
    """From a shell's point of view: status 143, words instead of a traceback, and the same command finishes the run."""
    arguments = [
        "train-lm",
        "--recipe",
        str(recipe),
        "--device",
        "cpu",
        "--rows",
        "pre-ln",
        "--set",
        "train.steps=4000",
        "--set",
        "train.kernels=reference",  # as below: which kernels are chosen of themselves depends on what was measured
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "comt_cli", *arguments], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    folder = tmp_path / "runs/own/micro@steps-4000/pre-ln/tiny"
    try:
        wait_until(lambda: folder.is_dir() and any(is_training(RunDirectory(path)) for path in folder.iterdir()))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143
    assert "comt: stopped after step" in err
    assert "The same command resumes from there." in err
    assert "Traceback" not in err
    directory = RunDirectory(next(folder.iterdir()))
    stopped_at = json.loads(directory.metrics_file.read_text().splitlines()[-1])["step"]
    assert 1 <= stopped_at < 4000
    assert directory.state() is RunState.unfinished
    assert directory.checkpoint_file.exists()
    # It went on here for a step and in another folder from the start: both stand at the same bits.
    monkeypatch.chdir(tmp_path)
    spec = directory.spec()
    again = stop_after(spec, directory, stopped_at + 2)
    whole = stop_after(spec, RunDirectory.of(tmp_path / "whole", spec), stopped_at + 2)
    assert (
        directory.metrics_file.read_bytes() == (tmp_path / "whole" / spec.relative_path / "metrics.jsonl").read_bytes()
    )
    assert again["progress"]["step"] == whole["progress"]["step"] > stopped_at
    assert_same_bits(again["model"], whole["model"], Reason.SAME_RUN, "the weights")


def stop_after(spec: RunSpec, directory: RunDirectory, step: int) -> dict:
    """Train until a signal comes after a logged step; the checkpoint it leaves."""
    stop = StopSignal()
    listener = After(step, lambda: setattr(stop, "number", 15))
    data = prepare(spec.settings.data)
    with pytest.raises(RunInterrupted):
        Training(spec, directory, data, World(torch.device("cpu")), listener, stop).run()
    return read_state(directory.checkpoint_file)
