"""`--gpus 2 --device cpu`: two processes that train one model, compared with one process.

Tolerance: the same float32 numbers summed in another order, here 2 x 4 rows instead of 8. Each loss starts some 1e-7
apart (relative); Adam's division makes of a rounding difference in a tiny gradient a difference of up to the learning
rate in that weight, so losses drift apart over the steps, to some 1e-5 after ten.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
import torch._dynamo  # without it DistributedDataParallel imports it, and the first of a process then leaks its group
from dying import is_training, wait_until
from tiny_runs import TIMES, tiny_spec, train
from torch.nn.parallel import DistributedDataParallel

from comt_cli.campaign import group
from comt_cli.campaign.executor import train_on
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.training.parallel import World, join_world, share_of_batch
from comt_cli.training.processes import launched_by_torchrun

DRIFT = 1e-4
EXACT = ("step", "tokens", "learning_rate")
RAGGED = {
    "kernels": "fused",
    "steps": 80,
    "log_every": 10,
    "save_every": 1000,
    "micro_batch_size": 2,
    "evaluation_batch_size": 5,
}


def test_two_processes_train_as_one_and_stop_and_go_on(tiny_corpus, tmp_path, monkeypatch, only_nursery):
    """Two launches in all, since each costs seconds. The first ends a short run and is told to stop in a long one; the
    second, whose processes are forked from the nursery and need not import torch, ends that. Both accumulate two
    micro-batches a process; 18 validation rows do not divide into 2 x 5.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    short = tiny_spec(tiny_corpus, **RAGGED | {"steps": 5, "log_every": 1, "evaluate_every": 2})
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
    assert 1 <= read_state(together[1].checkpoint_file)["progress"]["step"] < 80
    monkeypatch.setattr(group, "START_METHOD", "forkserver")
    train_on(2, [short, long], tmp_path / "two", "cpu")

    assert_close_runs(alone[0], together[0], drift=DRIFT)
    # Stopped and gone on with: the same steps, tokens and rates, and losses that had time to drift.
    assert_close_runs(alone[1], together[1], drift=2e-2)


def assert_close_runs(alone: RunDirectory, together: RunDirectory, drift: float) -> None:
    mine, others = alone.metrics(), together.metrics()
    for first, second in zip(mine, others, strict=True):
        assert first.keys() == second.keys()
        assert [first.get(key) for key in EXACT] == [second.get(key) for key in EXACT]
        for key in {"loss", "validation_loss", "validation_perplexity"} & first.keys():
            # Step 1 sees the initial weights: nothing can have drifted there.
            assert second[key] == pytest.approx(first[key], rel=1e-6 if first["step"] == 1 else drift), first["step"]
    assert others[0]["gradient_norm"] == pytest.approx(mine[0]["gradient_norm"], rel=1e-5)
    result, single = together.result(), alone.result()
    for key in ("loss", "bits_per_byte"):
        assert result[key] == pytest.approx(single[key], rel=drift), key
    assert result["evaluation"]["tokens"] == single["evaluation"]["tokens"]
    assert result["evaluation"]["batch_size"] == single["evaluation"]["batch_size"] == 5
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


def test_a_batch_that_does_not_divide(tiny_corpus):
    spec = tiny_spec(tiny_corpus, steps=5)
    with pytest.raises(UserError, match="a batch of 8 rows cannot be shared evenly by 3 processes") as refused:
        share_of_batch(spec.settings.train.batch_size, World(torch.device("cpu"), 1, 3))
    assert refused.value.exit_status == 2
    assert "stays as the recipe says" in str(refused.value.hint)
    assert [share_of_batch(8, World(torch.device("cpu"), 0, size)) for size in (1, 2, 4, 8)] == [8, 4, 2, 1]


# ---- how processes come and go, without torch in them


def fail_at_once() -> None:
    raise SystemExit(3)


def hang() -> None:
    import time

    time.sleep(600)


@pytest.mark.slow
def test_processes_do_not_wait_for_ever_for_one_that_failed(nursery, monkeypatch):
    monkeypatch.setattr(group, "GRACE_SECONDS", 0.2)
    workers = [nursery.start(hang), nursery.start(fail_at_once)]
    group.join(workers)
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL, 3]


# ---- under torchrun


@pytest.fixture
def torchrun(monkeypatch):
    """The environment of one of torchrun's processes."""

    def set_environment(rank: int, size: int) -> None:
        port = group.free_port()
        for key, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}.items():
            monkeypatch.setenv(key, str(value))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")

    return set_environment


@pytest.mark.slow
def test_a_world_of_torchrun_with_one_process(torchrun, tiny_corpus, tmp_path):
    """gloo, DDP's environment and all, in this process; equal to a run without, to rounding: DDP keeps gradients
    elsewhere in memory."""
    spec = tiny_spec(tiny_corpus, steps=4)
    alone = train(spec, tmp_path / "alone")
    torchrun(0, 1)
    assert launched_by_torchrun()
    with join_world("cpu") as world:
        assert (world.rank, world.size, world.is_main) == (0, 1, True)
        assert torch.distributed.is_initialized()
    assert not torch.distributed.is_initialized()
    train_on(1, [spec], tmp_path / "runs", "cpu")
    for mine, other in zip(RunDirectory.of(tmp_path / "runs", spec).metrics(), alone.metrics(), strict=True):
        assert mine == pytest.approx(other, rel=1e-5)


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
    """Those that carry out collectives."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found |= {thread.name} if (thread / "comm").read_text().startswith("pt_gloo") else set()
    return found


def test_gpus_that_contradict_torchrun(torchrun, tiny_corpus, tmp_path):
    torchrun(1, 4)
    with pytest.raises(UserError, match="--gpus 2, but torchrun started 4 processes"):
        train_on(2, [tiny_spec(tiny_corpus, steps=4)], tmp_path, "cpu")
