"""`--slurm` on a real Slurm of one node: runs as an array, twice submitted, warned of its time limit, requeued. Without
one, arrays on the fake Slurm, whose tasks a test starts; and submitit's own local executor, which stores a job, signals
it, and starts it again."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from dying import wait_until
from fake_slurm import FakeSlurm
from one_node_slurm import Cluster, one_node_slurm
from submitit import LocalExecutor
from tiny_runs import assert_same_run, tiny_spec, train
from worlds import DEPENDS_ON_PROCESSES, assert_close

from comt_cli.campaign.slurm.jobs import job_standings
from comt_cli.campaign.slurm.site import Site
from comt_cli.campaign.slurm.submission import TrainJob, submit
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec

pytestmark = pytest.mark.timeout(400)
SITE = Site(time=5, partition="short", requeues=3)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with one_node_slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def cluster(node: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Jobs have the environment of who submits them, as on any cluster."""
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    return node


def words(runs: Path, spec: RunSpec) -> str:
    return job_standings([spec], runs)[spec.request].words


def test_a_run_is_trained_by_one_job_and_goes_on_after_the_time_limits_warning(cluster, tiny_corpus, tmp_path):
    runs = tmp_path / "runs of slurm"
    long = tiny_spec(tiny_corpus, steps=500, log_every=5, save_every=200)
    same = long.model_copy(update={"table": "another", "row": "another-row"})
    short = tiny_spec(tiny_corpus, seed=2)
    first = list(submit([long, same, short], runs, "cpu", SITE))
    assert [(each.spec, each.is_new) for each in first] == [(long, True), (short, True)]
    directory, number = RunDirectory.of(runs, long), first[0].job.number
    assert [each.job.number for each in first] == [number, f"{number.removesuffix('0')}1"]

    # While they are queued or running nothing is submitted again.
    again = list(submit([long, same, short], runs, "cpu", SITE))
    assert [each.is_new for each in again] == [False, False]
    assert again[0].job.number == number

    cluster.wait("the job trains", lambda: len(directory.metrics()) > 0)
    assert words(runs, long) == f"running (job {number} on {os.uname().nodename.partition('.')[0]})"
    # What Slurm does by itself some minutes before the limit.
    cluster.ask("scancel", "--signal=USR2", number)
    cluster.wait("the job is requeued", lambda: words(runs, long) == f"queued (job {number})")
    log = first[0].job.log.read_text(encoding="utf-8")
    assert "of 500; everything is saved" in log
    assert directory.state() is RunState.unfinished
    cluster.wait("both runs end", lambda: directory.result_file.exists() and RunDirectory.of(runs, short).result())

    starts = json.loads(directory.environment_file.read_text(encoding="utf-8"))
    assert [start["step"] > 0 for start in starts] == [False, True]
    assert_same_run(directory, train(long, tmp_path / "undisturbed"))
    assert RunDirectory.of(runs, same).shown.is_symlink()

    done = list(submit([long, short], runs, "cpu", SITE))
    assert [(each.state, each.job, each.is_new) for each in done] == [(RunState.done, None, False)] * 2


@pytest.mark.slow
def test_a_job_that_is_warned_saves_is_started_again_and_ends_as_one_never_stopped(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec, runs = tiny_spec(tiny_corpus, steps=160, log_every=5, save_every=60), tmp_path / "runs"
    executor = LocalExecutor(tmp_path / "jobs", max_num_timeout=2)
    executor.update_parameters(timeout_min=5, stderr_to_stdout=True)
    job = executor.submit(TrainJob(), spec.model_dump(mode="json"), str(runs), "cpu", ["tensorboard"])
    directory = RunDirectory.of(runs, spec)
    try:
        wait_until(lambda: bool(directory.metrics()), 150)
        _process, pid, *_where = directory.owner().split()
        os.kill(int(pid), signal.SIGUSR2)
        wait_until(lambda: directory.result() is not None, 150)
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


@pytest.mark.slow
def test_the_rest_of_an_array_ends_while_a_node_fails_whose_task_goes_on(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    slurm, runs = FakeSlurm(tmp_path / "slurm", monkeypatch), tmp_path / "runs"
    every = {"log_every": 5, "save_every": 10}
    table = [tiny_spec(tiny_corpus, method=method, steps=60, **every) for method in ("pre-ln", "post-ln")]
    table.insert(1, tiny_spec(tiny_corpus, steps=2000, **every))
    assert [each.job.number for each in submit(table, runs, "cpu", SITE)] == ["1_0", "1_1", "1_2"]
    first, fails, last = (RunDirectory.of(runs, spec) for spec in table)
    tasks = [slurm.start(f"1_{task}") for task in range(3)]
    try:
        wait_until(fails.checkpoint_file.exists, 150)
        os.killpg(tasks[1].pid, signal.SIGKILL)
        slurm.put("1_1", "PENDING")  # as Slurm does where a job may be requeued
        assert words(runs, table[1]) == "queued (job 1_1)"
        assert [tasks[task].wait(150) for task in (0, 2)] == [0, 0]
        assert [each.state() for each in (first, fails, last)] == [RunState.done, RunState.unfinished, RunState.done]
        tasks.append(slurm.start("1_1"))
        assert tasks[-1].wait(150) == 0
    finally:
        for task in tasks:
            if task.poll() is None:
                os.killpg(task.pid, signal.SIGKILL)
                task.wait()
    starts = json.loads(fails.environment_file.read_text(encoding="utf-8"))
    assert [start["step"] > 0 for start in starts] == [False, True]
    assert_same_run(fails, train(table[1], tmp_path / "undisturbed"))
    log = job_standings([table[1]], runs)[table[1].request]
    assert log.words == "running (job 1_1 on node7)"


def begin_at_a_free_port(slurm: FakeSlurm) -> str:
    """The number of the next job, from which its processes take their port: another one's tests may run here, too."""
    for number in itertools.count(os.getpid()):
        with contextlib.suppress(OSError), socket.create_server(("", 10_000 + number % 20_000)):
            break
    slurm.begin_at(number)
    return str(number)


@pytest.mark.slow
def test_a_run_on_two_nodes_is_that_of_two_processes(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    slurm, runs = FakeSlurm(tmp_path / "slurm", monkeypatch), tmp_path / "runs"
    number = begin_at_a_free_port(slurm)
    spec = tiny_spec(tiny_corpus, steps=8, log_every=1)
    (submitted,) = submit([spec], runs, "cpu", Site(time=5, nodes=2, gpus=1))
    assert slurm.start(number, processes=2).wait(150) == 0, submitted.job.log.read_text(encoding="utf-8")
    directory, alone = RunDirectory.of(runs, spec), train(spec, tmp_path / "alone")
    assert directory.result()["processes"] == 2
    assert_close(directory.metrics(), alone.metrics(), 1e-5, but=DEPENDS_ON_PROCESSES)
    assert submitted.job.log.read_text(encoding="utf-8").count("validation perplexity") == 1


def processes_of(job: subprocess.Popen[bytes]) -> dict[str, int]:
    """The processes of a job's run, by their number in it."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = (path / "environ").read_bytes().decode(errors="replace").split("\0")
            number = [word.partition("=")[2] for word in words if word.startswith("SLURM_PROCID=")]
            if number and os.getsid(int(path.name)) == job.pid and b"submitit" in (path / "cmdline").read_bytes():
                found[number[0]] = int(path.name)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_two_processes_that_are_warned_save_ask_for_the_queue_once_and_go_on(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    slurm, runs = FakeSlurm(tmp_path / "slurm", monkeypatch), tmp_path / "runs"
    number = begin_at_a_free_port(slurm)
    spec = tiny_spec(tiny_corpus, steps=200, log_every=1, save_every=1000)
    (submitted,) = submit([spec], runs, "cpu", Site(time=5, nodes=2, gpus=1))
    directory, job = RunDirectory.of(runs, spec), slurm.start(number, processes=2)
    try:
        wait_until(lambda: bool(directory.metrics()), 150)
        warned = processes_of(job)
        assert sorted(warned) == ["0", "1"]
        for pid in warned.values():  # Slurm signals them all, and not the script
            os.kill(pid, signal.SIGUSR2)
        assert job.wait(60) == 255, "as submitit ends the first, which has requeued the job"
        log = submitted.job.log.read_text(encoding="utf-8")
        assert slurm.requeued() == [number], log
        assert log.count("of 200; everything is saved") == 1
        assert "since I am a slave (procid=1)" in log
        assert (directory.state(), directory.checkpoint_file.exists()) == (RunState.unfinished, True)
        job = slurm.start(number, processes=2)
        assert job.wait(150) == 0, submitted.job.log.read_text(encoding="utf-8")
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    starts = json.loads(directory.environment_file.read_text(encoding="utf-8"))
    assert [start["step"] > 0 for start in starts] == [False, True]
    assert [line["step"] for line in directory.metrics()] == [*range(1, 201), 200], "the last evaluation has its own"
    assert slurm.requeued() == [number]
