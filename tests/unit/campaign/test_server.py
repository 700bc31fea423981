"""How many runs are trained at once, where and with how many threads; and the server that workers are forked from."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from tiny_runs import tiny_spec

from comt_cli.campaign import processes
from comt_cli.campaign.processes import Workers, plan_workers, usable_cores
from comt_cli.errors import UserError
from comt_cli.runs.known import shared_runs

FORKING = """
import json, os, sys
from pathlib import Path
from comt_cli.campaign.processes import context_for, start_server
from comt_cli.runs.plan import RunSpec

def look(queue):
    server = Path(f"/proc/{os.getppid()}")
    names = ("torch", "torch._dynamo", "comt_cli.training.loop")
    queue.put((len(list((server / "task").iterdir())), [name in sys.modules for name in names]))

if __name__ == "__main__":
    start_server([RunSpec.model_validate_json(sys.stdin.read())])
    context = context_for(["cpu"])
    queue = context.SimpleQueue()
    process = context.Process(target=look, args=(queue,))
    process.start()
    print(json.dumps(queue.get()))
    process.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are not forked")
def test_torch_is_imported_once_by_a_server_of_one_thread(tiny_corpus, tmp_path):
    """A process that forks must have no other thread, whose locks would stay shut in what it forks."""
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, script], input=tiny_spec(tiny_corpus).model_dump_json(),
        env=environment, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert json.loads(done.stdout) == [1, [True, True, True]]


@pytest.fixture
def runs(tiny_corpus):
    return lambda number: shared_runs(tiny_spec(tiny_corpus, seed=seed) for seed in range(1, number + 1))


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processes, "usable_cores", lambda: 8)


@pytest.mark.parametrize(
    ("number", "said", "workers", "threads"),
    [
        (20, None, 8, 1),
        (3, None, 3, 2),
        (1, None, 1, None),  # in this process, as it is
        (20, 4, 4, 2),
        (20, 16, 16, 1),
    ],
)
def test_the_cpus_cores_are_shared(runs, number, said, workers, threads):
    assert plan_workers("cpu", said, runs(number)) == Workers(("cpu",) * workers, threads)


@pytest.mark.parametrize(("said", "workers"), [("1", 8), ("4", 2), ("64", 1)])
def test_threads_that_were_said_stay(runs, monkeypatch, said, workers):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert plan_workers("cpu", None, runs(20)) == Workers(("cpu",) * workers, None)


def test_memory_bounds_what_is_started_by_default(runs, monkeypatch):
    monkeypatch.setattr(processes, "_memory_bytes", lambda: int(2.5 * processes.PROCESS_BYTES / processes.MEMORY_SHARE))
    assert len(plan_workers("cpu", None, runs(20)).devices) == 2
    assert len(plan_workers("cpu", 5, runs(20)).devices) == 5, "who says it knows it"
    monkeypatch.setattr(processes, "_memory_bytes", lambda: 1000)
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


def test_cores_are_those_of_the_container(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    for text, cores in (("max 100000", 64), ("250000 100000", 2), ("10000 100000", 1), ("", 64), ("rubbish", 64)):
        monkeypatch.setattr(processes, "_cgroup", lambda name, text=text: text)
        assert usable_cores() == cores
