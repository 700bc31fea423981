"""Three processes that go on to the bit, and how a launcher's processes end. Forked: starting torch costs seconds."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import util
from pathlib import Path

import pytest
import torch
from dying import wait_until
from test_interruptions import After
from tiny_runs import assert_same_run, tiny_spec
from worlds import train_table

from comt_cli.campaign import executor, group
from comt_cli.campaign.queue import RunQueue
from comt_cli.data.prepare import prepare
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.training import processes
from comt_cli.training.loop import Training
from comt_cli.training.parallel import join_world
from comt_cli.training.processes import StopSignal


def test_three_processes_go_on_to_the_bit(tiny_corpus, tmp_path, nursery):
    """With three and more the order in which gradients are added depends on how they are grouped (with two, a + b is
    b + a), and DistributedDataParallel groups them anew after the first backward pass of every start."""
    spec = tiny_spec(tiny_corpus, steps=7, batch_size=12, micro_batch_size=2, log_every=1, save_every=100)
    prepare(spec.settings.data)
    arguments = (3, group.free_port(), spec.model_dump_json(), str(tmp_path), os.environ["COMT_CACHE"])
    started = [nursery.start(train_twice, rank, *arguments) for rank in range(3)]
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0, 0, 0]
    stopped, undisturbed = (RunDirectory.of(tmp_path / name, spec) for name in ("stopped", "undisturbed"))
    assert stopped.environment_file.read_text().count('"started"') == 3
    assert_same_run(stopped, undisturbed)


def train_twice(rank: int, size: int, port: int, spec_json: str, folder: str, cache: str) -> None:
    """One process of three: a run that is stopped twice, by a signal to the second process, and one that is not."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["COMT_CACHE"] = cache
    spec = RunSpec.model_validate_json(spec_json)
    dataset = prepare(spec.settings.data)
    with join_world("cpu") as world:
        for name, stops in (("stopped", (2, 4, 99)), ("undisturbed", (99,))):
            for step in stops:
                stop = StopSignal()
                listener = After(step, lambda stop=stop: setattr(stop, "number", signal.SIGTERM if rank == 1 else None))
                with contextlib.suppress(RunInterrupted):
                    Training(spec, RunDirectory.of(Path(folder) / name, spec), dataset, world, listener, stop).run()


def test_processes_that_share_every_run_skip_what_another_command_trains(tiny_corpus, tmp_path, nursery):
    """The first of them alone sees the lock; all must go on to the next run."""
    specs = [tiny_spec(tiny_corpus, steps=4, seed=seed) for seed in (1, 2)]
    prepare(specs[0].settings.data)
    arguments = (group.free_port(), [spec.model_dump_json() for spec in specs], str(tmp_path))
    busy, free = (RunDirectory.of(tmp_path, spec) for spec in specs)
    with busy.lock():
        started = [nursery.start(train_list, rank, *arguments, os.environ["COMT_CACHE"]) for rank in range(2)]
        for process in started:
            process.join()
    assert [process.exitcode for process in started] == [0, 0]
    assert (busy.result(), free.state()) == (None, RunState.done)


def train_list(rank: int, port: int, specs: list[str], runs: str, cache: str) -> None:
    """One process of two."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["COMT_CACHE"] = cache
    train_table([RunSpec.model_validate_json(spec) for spec in specs], Path(runs), "cpu")


# ---- the launcher


def launch_two(behaviour: str, folder: str) -> None:
    """A launcher of two processes that do as `behaviour` says instead of training; exits as the command line would."""

    def instead(queue: RunQueue, device: object) -> None:
        time.sleep(0.3)  # in which the launcher has begun to listen
        with StopSignal() if behaviour != "deaf" else contextlib.nullcontext() as stop:
            (queue.runs / f"process{os.environ['RANK']}").write_text(str(os.getpid()))
            if behaviour == "crash":
                raise RuntimeError("some defect")
            for _ in range(3000):
                if stop is not None and stop.number is not None:
                    time.sleep(0.2)  # long enough for the echo
                    raise RunInterrupted("stopped", None, stop.number)
                time.sleep(0.01)

    group.START_METHOD = "fork"  # type: ignore[misc,assignment]
    try:
        group.train_in_group(2, [], Path(folder), "cpu", instead)
    except UserError as error:
        (Path(folder) / "message").write_text(str(error))
        raise SystemExit(error.exit_status) from None


def workers_of(folder: Path) -> list[int]:
    files = [folder / "process0", folder / "process1"]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("also_to_workers", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_reaches_the_workers(tmp_path, nursery, number, also_to_workers):
    """A terminal's Ctrl-C is heard by all, and by the workers twice."""
    launcher = nursery.start(launch_two, "listen", str(tmp_path))
    for process in workers_of(tmp_path) if also_to_workers else []:
        os.kill(process, number)
    workers_of(tmp_path)
    os.kill(launcher.pid, number)
    launcher.join()
    assert launcher.exitcode == 128 + number
    assert (tmp_path / "message").read_text() == "stopped"


def test_no_worker_outlives_a_killed_launcher(tmp_path, nursery):
    launcher = nursery.start(launch_two, "listen", str(tmp_path))
    workers = workers_of(tmp_path)
    assert all(is_alive(process) for process in workers)
    launcher.kill()
    launcher.join()
    wait_until(lambda: not any(is_alive(process) for process in workers), 5)


def test_a_worker_whose_launcher_is_dead_already_ends(monkeypatch):
    class Dead:
        def is_alive(self) -> bool:
            return False

        pid = os.getppid()

    monkeypatch.setattr(processes.multiprocessing, "parent_process", Dead)
    monkeypatch.setattr(processes.ctypes, "CDLL", lambda name: type("C", (), {"prctl": lambda *_: 0}))
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    processes.die_with_parent()
    assert ended == [1]


def test_a_worker_that_crashes_is_no_bad_input(tmp_path, nursery):
    """Hours may have been trained by then: status 1, where 2 says that nothing was started."""
    launcher = nursery.start(launch_two, "crash", str(tmp_path))
    launcher.join()
    assert launcher.exitcode == 1
    assert "of 2 ended with status 1" in (tmp_path / "message").read_text()


def test_a_signal_that_kills_workers_is_an_interruption(tmp_path, nursery):
    """They had not come as far as listening."""
    launcher = nursery.start(launch_two, "deaf", str(tmp_path))
    workers_of(tmp_path)
    os.kill(launcher.pid, signal.SIGTERM)
    launcher.join()
    assert launcher.exitcode == 143
    assert "stopped by a signal" in (tmp_path / "message").read_text()


def end_beside_a_defect(error: UserError | None, folder: str) -> None:
    """A worker whose interpreter cannot be torn down, which is what torch's threads do at times."""
    util.Finalize(None, os.abort, exitpriority=0)

    def instead(queue: object, device: object) -> None:
        print("the last word", end="")
        if error is not None:
            raise error

    with (Path(folder) / "said").open("w") as sys.stdout:
        group._member(0, 1, group.free_port(), [], Path(folder), None, instead, multiprocessing.SimpleQueue())


@pytest.mark.parametrize(("error", "status"), [(None, 0), (RunInterrupted("stopped", None, signal.SIGTERM), 143)])
def test_what_torch_leaves_behind_cannot_fail_a_run_that_is_saved(tmp_path, nursery, error, status):
    worker = nursery.start(end_beside_a_defect, error, str(tmp_path))
    worker.join()
    assert worker.exitcode == status
    assert (tmp_path / "said").read_text() == "the last word"


def test_one_device_for_several_processes(tmp_path):
    with pytest.raises(UserError, match="--device cuda:1 names one device for 4 processes") as refused:
        executor.train_on(4, [], tmp_path, "cuda:1")
    assert "CUDA_VISIBLE_DEVICES" in str(refused.value.hint)
    assert refused.value.exit_status == 2
