"""What a job does, without Slurm: submitit's own local executor stores it, signals it, and starts it again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from submitit import LocalExecutor
from tiny_runs import assert_same_run, tiny_spec, train

from comt_cli.campaign.slurm import TrainJob
from comt_cli.runs.directory import RunDirectory


@pytest.mark.slow
def test_a_job_that_is_warned_saves_is_started_again_and_ends_as_one_never_stopped(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec, runs = tiny_spec(tiny_corpus, steps=160, log_every=5, save_every=60), tmp_path / "runs"
    executor = LocalExecutor(tmp_path / "jobs", max_num_timeout=2)
    executor.update_parameters(timeout_min=5, stderr_to_stdout=True)
    job = executor.submit(TrainJob(), spec.model_dump(mode="json"), str(runs), "cpu", 1, ["tensorboard"])
    directory = RunDirectory.of(runs, spec)
    try:
        wait_for(directory.metrics, job.paths.stdout)
        _process, pid, *_where = directory.owner().split()
        os.kill(int(pid), signal.SIGUSR2)
        wait_for(directory.result, job.paths.stdout)
        assert job.result() is None  # it ended well
        assert job._process.wait(60) == 0
    finally:
        job.cancel()
        job._process.wait(60)
    log = job.paths.stdout.read_text(encoding="utf-8")
    assert "of 160; everything is saved" in log
    assert "(1 remaining timeouts)" in log
    assert "resumed after step" in log
    assert len(list((directory.path / "tensorboard").iterdir())) == 2
    assert_same_run(directory, train(spec, tmp_path / "undisturbed"))


def wait_for(happened, log: Path) -> None:
    end = time.monotonic() + 150
    while not happened():
        assert time.monotonic() < end, log.read_text(encoding="utf-8")
        time.sleep(0.05)
