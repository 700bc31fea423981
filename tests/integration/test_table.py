"""A whole table, through `train_table` and through the command line: trained, skipped, gone on with, reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dying import is_training, wait_until
from test_interruptions import After
from tiny_runs import StopAt, Stopped, assert_same_run, tiny_spec

from comt_cli import app
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.models.checkpoint_file import read_state
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.run_directory import RunDirectory, RunState
from comt_cli.training import table
from comt_cli.training.distribution import World
from comt_cli.training.loop import Training
from comt_cli.training.progress import Listener
from comt_cli.training.signals import StopSignal
from comt_cli.training.table import set_aside, train_table


class Notes(Listener):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple] = []

    def table_started(self, runs, done):
        self.heard.append(("table", runs, done))

    def run_started(self, spec, step):
        self.heard.append((spec.row, spec.seed, step))

    def run_finished(self, spec, result):
        self.heard.append(("finished", result["state"]))

    def close(self):
        self.heard.append(("closed",))


@pytest.fixture
def notes(monkeypatch):
    """`notes(listener)`: what `train_table` tells from now on."""

    def listen(listener: Listener) -> Listener:
        monkeypatch.setattr(table, "make_listener", lambda is_main: listener)
        return listener

    return listen


def seeds(corpus: str, *numbers: int, **train):
    return [
        tiny_spec(corpus, seed=number, **{"steps": 6, "log_every": 1, "save_every": 2} | train) for number in numbers
    ]


def test_finished_runs_are_skipped_and_unfinished_ones_go_on(tiny_corpus, tmp_path, notes):
    specs = seeds(tiny_corpus, 1, 2, 3)
    notes(Notes())
    train_table(specs[:1], tmp_path, "cpu")
    notes(StopAt(5))
    with pytest.raises(Stopped):
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
        moved = set_aside(specs, tmp_path)
        assert moved == [directory.path.with_name(f"{directory.path.name}.replaced-{number}")]
        assert not directory.path.exists()
        train_table(specs[:1], tmp_path, "cpu")
    assert (directory.path.with_name(f"{directory.path.name}.replaced-1") / "result.json").read_bytes() == result
    assert set_aside(specs[1:], tmp_path) == []


def test_a_run_in_progress_is_not_set_aside(tiny_corpus, tmp_path):
    specs = seeds(tiny_corpus, 1, 2)
    train_table(specs[:1], tmp_path, "cpu")
    busy = RunDirectory.of(tmp_path, specs[1])
    busy.create(specs[1])
    with busy.lock(), pytest.raises(UserError, match=f"is being trained by process {os.getpid()}"):
        set_aside(specs, tmp_path)
    assert all(RunDirectory.of(tmp_path, spec).path.exists() for spec in specs)


def test_a_folder_that_cannot_be_moved_aside(tiny_corpus, tmp_path, monkeypatch):
    specs = seeds(tiny_corpus, 1)
    train_table(specs, tmp_path, "cpu")

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StorageError, match=r"cannot move .* aside: Permission denied"):
        set_aside(specs, tmp_path)


@pytest.mark.parametrize(("trained", "status"), [(0, 2), (1, 1)])
def test_bad_input_has_another_status_once_something_was_trained(tiny_corpus, tmp_path, trained, status):
    """2 says that nothing was started."""
    specs = seeds(tiny_corpus, 1, 2)
    broken = RunDirectory.of(tmp_path, specs[trained])
    broken.create(specs[trained])
    broken.checkpoint_file.write_bytes(b"")
    with pytest.raises(UserError, match="is not a checkpoint") as failed:
        train_table(specs, tmp_path, "cpu")
    assert failed.value.exit_status == status
    assert failed.value.hint


def test_what_breaks_in_the_middle_of_training_is_no_bad_input(tiny_corpus, tmp_path, notes):
    notes(StopAt(3, UserError))
    with pytest.raises(UserError) as failed:
        train_table(seeds(tiny_corpus, 1), tmp_path, "cpu")
    assert failed.value.exit_status == 1


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
    monkeypatch.setattr(table, "prepare", lambda *_: pytest.fail("it prepares"))
    with pytest.raises(UserError, match="a batch of 8 rows cannot be shared evenly by 3 processes") as refused:
        table._train_all(seeds(tiny_corpus, 1), tmp_path, world, Listener(), StopSignal())
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
    files = {path.suffix: path for path in (tmp_path / "results").rglob("micro.*")}
    assert {".csv", ".md", ".tex"} <= set(files)
    results = {path.parts[-4]: json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("result.json")}
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
    assert "moved aside: runs/comt/micro/pre-ln/tiny/seed1-" in err
    assert len(list((tmp_path / "runs").rglob("result.json"))) == 2
    new, old = sorted((tmp_path / "runs" / "comt" / "micro" / "pre-ln" / "tiny").iterdir())
    assert old.name == f"{new.name}.replaced-1"
    assert_same_run(RunDirectory(new), RunDirectory(old))


def test_a_set_override_is_another_run(comt, recipe, tmp_path):
    command = ("train-lm", "--recipe", str(recipe), "--device", "cpu", "--rows", "pre-ln")
    for more in ((), ("--set", "train.steps=9")):
        assert comt(*command, *more)[0] == 0
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("result.json")]
    assert sorted(result["steps"] for result in results) == [8, 9]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--device", "tpu9"), "--device tpu9"),
        (("--device", "xpu"), "this program does not use xpu"),
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
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "comt_cli", *arguments], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    folder = tmp_path / "runs/comt/micro/pre-ln/tiny"
    wait_until(lambda: folder.is_dir() and any(is_training(RunDirectory(path)) for path in folder.iterdir()))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "comt: stopped after step" in err
    assert "The same command goes on from there." in err
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
    assert all(torch.equal(weight, whole["model"][name]) for name, weight in again["model"].items())


def stop_after(spec: RunSpec, directory: RunDirectory, step: int) -> dict:
    """Train until a signal comes after a logged step; the checkpoint it leaves."""
    stop = StopSignal()
    listener = After(step, lambda: setattr(stop, "number", 15))
    data = table.prepare(spec.settings.data)
    with pytest.raises(RunInterrupted):
        Training(spec, directory, data, World(torch.device("cpu")), listener, stop).run()
    return read_state(directory.checkpoint_file)
