"""Three processes that go on to the bit, and how a launcher's processes end. Forked: starting torch costs seconds."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from multiprocessing import util
from pathlib import Path

import pytest
import torch
import torch._dynamo  # without it DistributedDataParallel imports it, and the first of a process then leaks its group
from dying import is_training, wait_until
from test_interruptions import After
from tiny_runs import TIMES, assert_same_run, tiny_spec, train, training
from torch.nn.parallel import DistributedDataParallel
from worlds import DEPENDS_ON_PROCESSES, assert_close, run_together, train_table

from comt_cli.campaign import executor, inline
from comt_cli.campaign.executor import train_on
from comt_cli.campaign.queue import RunQueue
from comt_cli.data.prepare import prepare
from comt_cli.errors import ProcessLost, RunInterrupted, UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.training import parallel
from comt_cli.training.parallel import join_world
from comt_cli.training.processes import StopSignal


def test_three_processes_go_on_to_the_bit(tiny_corpus, tmp_path, nursery):
    """With three and more the order in which gradients are added depends on how they are grouped (with two, a + b is
    b + a), and DistributedDataParallel groups them anew after the first backward pass of every start."""
    spec = tiny_spec(tiny_corpus, steps=7, batch_size=12, micro_batch_size=2, log_every=1, save_every=100)
    prepare(spec.settings.data)
    run_together(nursery, 3, train_twice, spec, tmp_path)
    stopped, undisturbed = (RunDirectory.of(tmp_path / name, spec) for name in ("stopped", "undisturbed"))
    assert stopped.environment_file.read_text().count('"started"') == 3
    assert_same_run(stopped, undisturbed)


def train_twice(rank: int, spec: RunSpec, folder: Path) -> None:
    """One process of three: a run that is stopped twice, by a signal to the second process, and one that is not."""
    with join_world("cpu") as world:
        for name, stops in (("stopped", (2, 4, 99)), ("undisturbed", (99,))):
            for step in stops:
                stop = StopSignal()
                listener = After(step, lambda stop=stop: setattr(stop, "number", signal.SIGTERM if rank == 1 else None))
                with contextlib.suppress(RunInterrupted):
                    training(spec, folder / name, world=world, listener=listener, stop=stop).run()


def test_processes_that_share_every_run_skip_what_another_command_trains(tiny_corpus, tmp_path, nursery):
    """The first of them alone sees the lock; all must go on to the next run."""
    specs = [tiny_spec(tiny_corpus, steps=4, seed=seed) for seed in (1, 2)]
    busy, free = (RunDirectory.of(tmp_path, spec) for spec in specs)
    with busy.lock():
        run_together(nursery, 2, train_list, specs, tmp_path)
    assert (busy.result(), free.state()) == (None, RunState.done)


def train_list(rank: int, specs: list[RunSpec], runs: Path) -> None:
    train_table(specs, runs, "cpu")


MEANT = "Give all processes the same version of comt, recipe, options and data."


@pytest.mark.parametrize("differs", ["commit", "recipe", "length", "runtime", "data"])
def test_processes_that_differ_all_say_in_what(tiny_corpus, tmp_path, nursery, differs):
    run_together(nursery, 2, train_differing, differs, tiny_corpus, tmp_path)
    assert not any(tmp_path.iterdir()), "nothing was begun"


def train_differing(rank: int, differs: str, corpus: str, runs: Path) -> None:
    options = {"save_every": 77} if differs == "runtime" and rank else {}
    here = tiny_spec(corpus, steps=4, seed=1 + rank * (differs == "recipe"), **options)
    specs = [here, tiny_spec(corpus, steps=9)][: 1 + rank * (differs == "length")]
    said = {
        "commit": r"process 0 of 2 has comt .* \(commit c0\), but process 1 has comt .* \(commit c1\)",
        "recipe": r"process 0 of 2 has the run .*, seed 1 \(\w{12}\), but process 1 has the run .*, seed 2 ",
        "length": r"process 0 of 2 has (no other run|the run .*), but process 1 has the run ",
        "runtime": r"process 0 of 2 has the run .* with train.save_every=\d+, but process 1 has the run .*=77\n",
        "data": r"process 0 of 2 has the data of run \w{12}, but process 1 has the data of run ",
    }
    if differs == "commit":
        inline.git_commit = lambda: f"c{rank}"  # type: ignore[attr-defined]
    if differs == "data":
        RunQueue.prepare_data = lambda queue, *_: queue.data_prepared(  # type: ignore[method-assign,assignment]
            {here.data_fingerprint: str(rank) * 16}
        )
    with pytest.raises(UserError, match=said[differs]) as refused:
        executor.train_here(RunQueue(specs, runs), "cpu")
    assert (refused.value.hint, refused.value.exit_status) == (MEANT, 2)


def test_a_process_that_does_not_see_the_checkpoint_says_so(tiny_corpus, tmp_path, nursery):
    """Two machines that share no folder."""
    spec, stop = tiny_spec(tiny_corpus, steps=9, log_every=1), StopSignal()
    with pytest.raises(RunInterrupted):
        train(spec, tmp_path / "0", stop=stop, listener=After(2, lambda: setattr(stop, "number", signal.SIGTERM)))
    run_together(nursery, 2, resume_apart, spec, tmp_path)


def resume_apart(rank: int, spec: RunSpec, folder: Path) -> None:
    wrong = ("process 0 of 2 cannot reach another one", "process 1 found step 0 in .*, the first process step 3")[rank]
    with pytest.raises(UserError, match=wrong) as refused, join_world("cpu") as world:
        training(spec, folder / str(rank), world=world).run()
    assert refused.value.exit_status == 1 + rank


# ---- the launcher


def launch_two(behaviour: str, folder: str) -> None:
    """A launcher of two processes that do as `behaviour` says instead of training; exits as the command line would."""

    def instead(queue: RunQueue, device: object) -> None:
        time.sleep(0.3)  # in which the launcher has begun to listen
        with StopSignal() if behaviour != "deaf" else contextlib.nullcontext() as stop:
            (queue.runs / f"process{os.environ['RANK']}").write_text(str(os.getpid()))
            if behaviour == "crash":
                raise RuntimeError("some defect")
            if behaviour == "killed" and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            if behaviour in ("killed", "lost"):
                raise ProcessLost("process 0 of 2 cannot reach another one", "Look at it.")
            for _ in range(3000):
                if stop is not None and stop.number is not None:
                    time.sleep(0.2)  # long enough for the echo
                    raise RunInterrupted("stopped", None, stop.number)
                time.sleep(0.01)

    executor.START_METHOD = "fork"  # type: ignore[misc,assignment]
    os.dup2(os.open(Path(folder) / "stderr", os.O_WRONLY | os.O_CREAT), 2)
    try:
        executor.train_in_group(2, [], Path(folder), "cpu", instead)
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


@pytest.mark.parametrize(
    ("behaviour", "number", "also_to_workers", "status", "says"),
    [
        ("listen", signal.SIGINT, True, 130, "stopped"),  # a terminal's Ctrl-C is heard by all, and by workers twice
        ("listen", signal.SIGTERM, False, 143, "stopped"),
        ("deaf", signal.SIGTERM, False, 143, "stopped by a signal"),  # they had not come as far as listening
        ("crash", None, False, 1, "of 2 ended with status 1"),  # no bad input: hours may have been trained by then
        ("killed", None, False, 1, "process 1 of 2 was killed by SIGKILL"),  # and not that the other one noticed it
        ("lost", None, False, 1, "of 2 ended with status 1"),
    ],
)
def test_what_stops_workers_is_what_the_launcher_ends_with(
    tmp_path, nursery, behaviour, number, also_to_workers, status, says
):
    launcher = nursery.start(launch_two, behaviour, str(tmp_path))
    if number is not None:
        workers = workers_of(tmp_path)
        for process in (*workers * also_to_workers, launcher.pid):
            os.kill(process, number)
    launcher.join()
    assert launcher.exitcode == status
    assert says in (tmp_path / "message").read_text()
    reason = "comt: process 0 of 2 cannot reach another one\n  Look at it.\n"
    assert (reason in (tmp_path / "stderr").read_text()) is (behaviour in ("killed", "lost"))


def test_no_worker_outlives_a_killed_launcher(tmp_path, nursery):
    launcher = nursery.start(launch_two, "listen", str(tmp_path))
    workers = workers_of(tmp_path)
    assert all(is_alive(process) for process in workers)
    launcher.kill()
    launcher.join()
    wait_until(lambda: not any(is_alive(process) for process in workers), 5)


def end_beside_a_defect(error: UserError | None, folder: str) -> None:
    """A worker whose interpreter cannot be torn down, which is what torch's threads do at times."""
    util.Finalize(None, os.abort, exitpriority=0)

    def instead(queue: object, device: object) -> None:
        print("the last word", end="")
        if error is not None:
            raise error

    with (Path(folder) / "said").open("w") as sys.stdout:
        executor._member(0, 1, executor.free_port(), [], Path(folder), None, instead, multiprocessing.SimpleQueue())


@pytest.mark.parametrize(("error", "status"), [(None, 0), (RunInterrupted("stopped", None, signal.SIGTERM), 143)])
def test_what_torch_leaves_behind_cannot_fail_a_run_that_is_saved(tmp_path, nursery, error, status):
    worker = nursery.start(end_beside_a_defect, error, str(tmp_path))
    worker.join()
    assert worker.exitcode == status
    assert (tmp_path / "said").read_text() == "the last word"


DRIFT = 1e-4
RAGGED = {"steps": 40, "log_every": 10, "save_every": 1000, "micro_batch_size": 2, "evaluation_batch_size": 5}


def test_two_processes_train_as_one_and_stop_and_go_on(tiny_corpus, tmp_path, monkeypatch, only_nursery):
    """Two launches, whose processes are forked from the nursery and need not import torch. The first ends a short run
    and is told to stop in a long one; the second ends that. Both accumulate two micro-batches a process; 18 validation
    rows do not divide into 2 x 5.
    """
    monkeypatch.setattr(executor, "START_METHOD", "forkserver")
    short = tiny_spec(tiny_corpus, **RAGGED | {"steps": 5, "log_every": 1, "evaluate_every": 2, "optimizer": "muon"})
    long = tiny_spec(tiny_corpus, **RAGGED)
    alone = [train(spec, tmp_path / "alone") for spec in (short, long)]
    together = [RunDirectory.of(tmp_path / "two", spec) for spec in (short, long)]

    def terminate() -> None:
        wait_until(lambda: is_training(together[1]), 120)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=terminate)
    thread.start()
    with pytest.raises(RunInterrupted, match="stopped after step") as stopped:
        train_on(2, [short, long], tmp_path / "two", "cpu")
    thread.join()
    assert stopped.value.exit_status == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert [directory.state() for directory in together] == [RunState.done, RunState.unfinished]
    assert 1 <= read_state(together[1].checkpoint_file)["progress"]["step"] < 40
    train_on(2, [short, long], tmp_path / "two", "cpu")

    assert_close_runs(alone[0], together[0], drift=DRIFT)
    # Stopped and gone on with: the same steps, tokens and rates, and losses that had time to drift.
    assert_close_runs(alone[1], together[1], drift=2e-2)


def assert_close_runs(alone: RunDirectory, together: RunDirectory, drift: float) -> None:
    mine, others = alone.metrics(), together.metrics()
    assert_close(others, mine, drift, but=(*DEPENDS_ON_PROCESSES, "gradient_norm"))
    assert_close(others[:1], mine[:1], 1e-5)  # of the initial weights: nothing can have drifted there
    result, single = together.result(), alone.result()
    for key in ("loss", "bits_per_byte"):
        assert result[key] == pytest.approx(single[key], rel=drift), key
    # Of 18 rows one process makes batches of 5, 5, 5, 3; two make 5, 5 and then 4, 4.
    assert result["evaluation"]["batches"] == single["evaluation"]["batches"] == 4
    assert (single["processes"], result["processes"]) == (1, 2)
    assert result.keys() == single.keys()
    differ = {key for key in result if result[key] != single[key]}
    assert differ <= TIMES | {
        "loss", "perplexity", "bits_per_byte", "galore_perplexity", "train_loss", "last_finite_loss", "evaluation",
        "processes",
    }  # fmt: skip
    states = [read_state(directory.checkpoint_file)["model"] for directory in (alone, together)]
    assert states[0].keys() == states[1].keys(), "no prefix of a wrapper"


# ---- how processes come and go, without torch in them


@pytest.mark.slow
def test_processes_do_not_wait_for_ever_for_one_that_failed(nursery, monkeypatch):
    monkeypatch.setattr(executor, "GRACE_SECONDS", 0.2)
    workers = [nursery.start(time.sleep, 600), nursery.start(sys.exit, 3)]
    executor.join(workers)
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL, 3]


# ---- under torchrun


@pytest.fixture
def torchrun(monkeypatch):
    """The environment of one of torchrun's processes."""

    def set_environment(rank: int, size: int) -> None:
        port = executor.free_port()
        for key, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}.items():
            monkeypatch.setenv(key, str(value))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")

    return set_environment


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_a_network_that_outlives_its_group_does_not_wait_for_its_threads(torchrun):
    """It held Python's lock meanwhile, for which they may wait: one in thirty interrupted runs never ended."""
    torchrun(0, 1)
    before = gloo_threads()
    with join_world("cpu"):
        network = DistributedDataParallel(torch.nn.Linear(2, 2))
        network(torch.ones(1, 2)).sum().backward()
    begun = gloo_threads() - before
    assert begun
    del network
    gc.collect()
    assert gloo_threads() >= begun


def gloo_threads() -> set[str]:
    """Threads that carry out collectives."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found |= {thread.name} if (thread / "comm").read_text().startswith("pt_gloo") else set()
    return found


@pytest.mark.parametrize(("rank", "reason"), [(0, "1/2 clients joined"), (1, "127.0.0.1")])
def test_a_process_whose_others_do_not_start_says_so(torchrun, monkeypatch, rank, reason):
    monkeypatch.setattr(parallel, "PATIENCE", timedelta(seconds=1))
    torchrun(rank, 2)
    wrong = rf"process {rank} of 2 cannot reach another one: .*({reason})"
    with pytest.raises(ProcessLost, match=wrong) as lost, join_world("cpu"):
        pass
    assert lost.value.exit_status == 1


def test_gpus_that_contradict_torchrun(torchrun, tiny_corpus, tmp_path):
    torchrun(1, 4)
    with pytest.raises(UserError, match="--gpus 2 was given, but torchrun started 4 processes"):
        train_on(2, [tiny_spec(tiny_corpus, steps=4)], tmp_path, "cpu")


@pytest.mark.parametrize(("backend", "variable"), [("cpu", "GLOO_SOCKET_IFNAME"), ("cuda", "NCCL_SOCKET_IFNAME")])
def test_the_cause_that_nccl_names_is_told(torchrun, monkeypatch, backend, variable):
    def failing(*given, **options):
        raise torch.distributed.DistBackendError(
            "NCCL error in: x.cpp:1, system error\nncclSystemError: it failed.\nLast error:\nno interface eth7\n"
        )

    monkeypatch.setattr(parallel, "pick_device", lambda *given: torch.device(backend))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", failing)
    torchrun(0, 1)
    with pytest.raises(ProcessLost, match=r"another one: NCCL .* error: no interface eth7\n") as lost, join_world(None):
        pass
    assert f"and {variable}. What" in str(lost.value.hint)


def test_frames_of_a_backend_s_error_are_left_out(torchrun, monkeypatch):
    said = "[1] is setting up NCCL communicator, but got error: Timeout\nframe #0: x\n. This may indicate a crash"

    def failing(*given, **options):
        raise torch.distributed.DistBackendError(said)

    monkeypatch.setattr(torch.distributed, "init_process_group", failing)
    torchrun(0, 1)
    with pytest.raises(ProcessLost, match=r"but got error: Timeout\n"), join_world(None):
        pass
