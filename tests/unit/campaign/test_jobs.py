"""How many runs are trained at once, where, and with how many threads."""

from __future__ import annotations

import os

import pytest
import torch
from tiny_runs import tiny_spec

from comt_cli.campaign import jobs
from comt_cli.campaign.jobs import Workers, plan_workers, runs_at_once, usable_cores
from comt_cli.errors import UserError
from comt_cli.runs.shared import shared_runs


@pytest.fixture
def runs(tiny_corpus):
    return lambda number: shared_runs(tiny_spec(tiny_corpus, seed=seed) for seed in range(1, number + 1))


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(jobs, "usable_cores", lambda: 8)


@pytest.mark.parametrize(
    ("number", "said", "workers", "threads"),
    [
        (20, None, 8, 1),
        (3, None, 3, 2),
        (1, None, 1, None),  # in this process, as it is
        (20, 4, 4, 2),
        (20, 16, 16, 1),
        (3, 1, 1, None),
    ],
)
def test_the_cpus_cores_are_shared(runs, number, said, workers, threads):
    assert plan_workers("cpu", said, runs(number)) == Workers(("cpu",) * workers, threads)


@pytest.mark.parametrize(("said", "workers"), [("1", 8), ("4", 2), ("64", 1), ("\N{SUPERSCRIPT TWO}", 8)])
def test_threads_that_were_said_stay(runs, monkeypatch, said, workers):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert plan_workers("cpu", None, runs(20)) == Workers(("cpu",) * workers, None)


def test_memory_bounds_what_is_started_by_default(runs, monkeypatch):
    monkeypatch.setattr(jobs, "_memory_bytes", lambda: int(2.5 * jobs.PROCESS_BYTES / jobs.MEMORY_SHARE))
    assert len(plan_workers("cpu", None, runs(20)).devices) == 2
    assert len(plan_workers("cpu", 5, runs(20)).devices) == 5, "who says it knows it"
    monkeypatch.setattr(jobs, "_memory_bytes", lambda: 1000)
    assert len(plan_workers("cpu", None, runs(20)).devices) == 1


def test_a_run_for_each_gpu(runs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert plan_workers(None, None, runs(5)) == Workers(("cuda:0", "cuda:1"))
    assert plan_workers("cuda", None, runs(1)) == Workers(("cuda:0",))
    assert plan_workers("cuda", 3, runs(5)) == Workers(("cuda:0", "cuda:1", "cuda:0"))
    assert plan_workers("cuda:1", None, runs(5)) == Workers(("cuda:1",))
    assert plan_workers("cuda:1", 2, runs(5)) == Workers(("cuda:1", "cuda:1"))
    with pytest.raises(UserError, match="cuda:2: 2 CUDA devices"):
        plan_workers("cuda:2", None, runs(5))


def test_no_more_processes_than_runs_and_none_of_a_slip_of_the_hand(runs, monkeypatch):
    assert len(plan_workers("cpu", 10**12, runs(5)).devices) == 5
    assert runs_at_once("cpu", 1, 10**12, runs(5)) == (5, 1)
    assert runs_at_once("cuda", 2, 10**12, runs(5)) == (5, None)
    monkeypatch.setattr(jobs, "_memory_bytes", lambda: 4 * jobs.PROCESS_BYTES)
    assert len(plan_workers("cpu", 16, runs(17)).devices) == 16
    with pytest.raises(UserError, match=r"--jobs 17: .* would take about 10 GiB, and this machine has 2"):
        plan_workers("cpu", 10**12, runs(17))


def test_cores_are_those_of_the_container(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    for text, cores in (("max 100000", 64), ("250000 100000", 2), ("10000 100000", 1), ("", 64), ("rubbish", 64)):
        monkeypatch.setattr(jobs, "_cgroup", lambda name, text=text: text)
        assert usable_cores() == cores
