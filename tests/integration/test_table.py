"""A whole table, through the executor and through the command line: trained, skipped, gone on with, reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dying import is_training, wait_until
from tiny_recipe import quick_recipe
from tiny_runs import assert_same_run, stopped_at, tiny_spec, train
from worlds import train_table

from comt_cli import app
from comt_cli.campaign import executor
from comt_cli.campaign.display import Display
from comt_cli.campaign.queue import Ending, TrainingFailed
from comt_cli.errors import RunInterrupted
from comt_cli.exchange.checkpoint import read_state
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.training.loop import Training


def seeds(corpus: str, *numbers: int) -> list[RunSpec]:
    return [tiny_spec(corpus, seed=number, steps=6, log_every=1, save_every=2) for number in numbers]


def starts(runs: Path, spec: RunSpec) -> list[int]:
    """After which steps the run was started."""
    return [start["step"] for start in json.loads(RunDirectory.of(runs, spec).environment_file.read_text())]


def test_finished_runs_are_skipped_and_unfinished_ones_go_on(tiny_corpus, tmp_path):
    specs = seeds(tiny_corpus, 1, 2, 3)
    train(specs[0], tmp_path)
    stopped_at([5], specs[1], tmp_path)
    assert train_table(specs, tmp_path, "cpu").lines() == ["3 runs: 3 done (1 before)"]
    assert [starts(tmp_path, spec) for spec in specs] == [[0], [0, 2], [0]]  # saved after step 2, stopped in step 4


def test_a_stop_while_the_data_is_prepared(tiny_corpus, tmp_path, monkeypatch):
    class Impatient(Display):
        def preparing(self, stage, done, total):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(executor, "make_display", lambda is_main: Impatient())
    with pytest.raises(RunInterrupted, match="while preparing the data") as stopped:
        train_table(seeds(tiny_corpus, 1), tmp_path / "runs", "cpu")
    assert stopped.value.exit_status == 130
    assert not (tmp_path / "runs").exists()


# ---- a run that fails


def test_a_run_that_fails_does_not_stop_the_others(tiny_corpus, tmp_path, monkeypatch):
    """Whatever it raises. The next time it is tried again, and nothing of the failure is left."""
    specs = seeds(tiny_corpus, 1, 2, 3, 4)
    broken, torn = (RunDirectory.of(tmp_path, specs[place]) for place in (0, 3))
    broken.create(specs[0])
    torn.create(specs[3])
    broken.checkpoint_file.write_bytes(b"")
    torn.result_file.write_text("{")
    set_up = Training._set_up
    with monkeypatch.context() as patch:

        def with_a_defect(self, held):
            if self.spec.seed == 2:
                raise RuntimeError("some defect\nin two lines")
            set_up(self, held)

        patch.setattr(Training, "_set_up", with_a_defect)
        summary = train_table(specs, tmp_path, "cpu")
    assert [outcome.ending.name for outcome in summary.outcomes] == ["failed", "failed", "done", "failed"]
    assert summary.lines()[0] == "4 runs: 1 done, 3 failed"
    assert "is not a checkpoint" in broken.error_file.read_text()
    assert "Traceback" not in broken.error_file.read_text()  # it is no defect
    assert broken.checkpoint_file.read_bytes() == b""
    failed = tmp_path / specs[1].relative_path
    assert "with_a_defect" in (failed / "error.txt").read_text()
    with pytest.raises(TrainingFailed, match="3 of 4 runs failed") as raised:
        summary.check()
    assert raised.value.exit_status == 1
    broken.checkpoint_file.unlink()
    torn.result_file.unlink()
    again = train_table(specs, tmp_path, "cpu")
    again.check()
    assert again.lines() == ["4 runs: 4 done (1 before)"]
    assert not (failed / "error.txt").exists()


# ---- the command line


@pytest.fixture
def recipe(tiny_corpus: str, tmp_path: Path) -> Path:
    wild = {"method": "post-ln", "settings": {"train": {"learning_rate": 1e30, "warmup_steps": 0}}}
    rows = {"pre-ln": "pre-ln", "pre-ln+comt": "comt", "wild": wild}
    train = {"steps": 8, "learning_rate": 5e-3, "warmup_steps": 2, "log_every": 2, "save_every": 3}
    path = tmp_path / "micro.yaml"
    path.write_text(quick_recipe("micro", tiny_corpus, rows, train), encoding="utf-8")
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
    status, again, _ = comt("report", str(recipe))
    assert (status, again.rstrip()) == (0, out.rstrip())
    monkeypatch.setattr(Training, "run", lambda self: pytest.fail("it trains"))
    status, again, err = comt(*command)
    assert (status, again) == (0, out)
    assert "3 of 3 runs were finished before" in err
    assert files[".csv"].read_bytes() == before
    status, plan, _ = comt("show", str(recipe), "--json")
    assert [row["state"] for row in json.loads(plan)] == ["done", "done", "diverged"]


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


def test_sigterm_to_the_real_command(recipe, tmp_path):
    """From a shell's point of view: status 143, words instead of a traceback, and all is saved."""
    sets = ["--set", "train.steps=4000"]
    arguments = ["train-lm", "--recipe", str(recipe), "--device", "cpu", "--rows", "pre-ln", *sets]
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
    assert "Traceback" not in err
    directory = RunDirectory(next(folder.iterdir()))
    stopped_at = json.loads(directory.metrics_file.read_text().splitlines()[-1])["step"]
    assert 1 <= stopped_at < 4000
    assert directory.state() is RunState.unfinished
    assert read_state(directory.checkpoint_file)["progress"]["step"] >= stopped_at


def test_two_tables_that_ask_for_the_same_training_train_it_once(tiny_corpus, tmp_path):
    specs = seeds(tiny_corpus, 1, 2)
    other = [spec.model_copy(update={"table": "other", "row": "its-name"}) for spec in specs]
    train_table([*specs, other[0]], tmp_path, "cpu")
    summary = train_table(other, tmp_path, "cpu")
    assert [(outcome.ending, outcome.already) for outcome in summary.outcomes] == [(Ending.done, True)] * 2
    assert len(list((tmp_path / "by-id").iterdir())) == 2
    for spec in (*specs, *other):
        assert starts(tmp_path, spec) == [0]
        assert (tmp_path / spec.relative_path).resolve() == RunDirectory.of(tmp_path, spec).path.resolve()
