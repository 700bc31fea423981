"""Several processes as torchrun would start them, forked from the nursery: starting torch anew costs seconds."""

from __future__ import annotations

import faulthandler
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from dying import Nursery
from tiny_runs import training
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.campaign import executor
from comt_cli.campaign.queue import RunQueue, Summary
from comt_cli.errors import UserError
from comt_cli.runs.plan import RunSpec
from comt_cli.training.parallel import join_world

FIRST, LAST = 15, 10
"""How many lines of what each process said are shown where one failed: a fault in native code names itself in the
first, an exception in the last."""

DEPENDS_ON_PROCESSES = ("validation_galore_perplexity",)
STUCK_SECONDS = 100.0
"""After which processes that wait for each other say where they do, and end: before the test itself times out."""


def comt(*arguments: str, status: int = 0) -> str:
    """Standard output of a command, in this process; of one that is refused, its message."""
    result = CliRunner().invoke(app, list(arguments))
    if status:  # the program prints it without a traceback
        assert isinstance(result.exception, UserError), result.exception
        assert result.exception.exit_status == status
        return str(result.exception)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def train_table(specs: Sequence[RunSpec], runs: Path, device: str | None) -> Summary:
    """Train runs in this process, one after the other."""
    queue = RunQueue(specs, runs)
    executor.train_here(queue, device)
    return queue.summary()


def train_together(rank: int, spec_json: str, runs: str) -> None:
    """Train a run with the other processes."""
    with join_world("cpu") as world:
        training(RunSpec.model_validate_json(spec_json), Path(runs), world=world).run()


def run_together(nursery: Nursery, size: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(rank, *arguments)` in `size` processes that know of each other, and wait until all have ended well."""
    port, cache = executor.free_port(), os.environ["COMT_CACHE"]
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / f"stderr of process {rank}" for rank in range(size)]
        processes = [
            nursery.start(_work, work, rank, size, port, cache, str(said[rank]), arguments) for rank in range(size)
        ]
        failed = executor.join(processes)
        codes = [process.exitcode for process in processes]
        if any(codes):
            # The first to fail at the end: the others are its victims, and only the end of a long log may be kept.
            order = [*(rank for rank in range(size) if rank not in failed), *reversed(failed)]
            shown = "\n".join(_shown(said[rank]) for rank in order)
            pytest.fail(f"{shown}\nexit codes: {codes}", pytrace=False)


def assert_close(
    lines: list[dict[str, Any]], expected: list[dict[str, Any]], tolerance: float, but: tuple[str, ...] = ()
) -> None:
    """Lines of metrics.jsonl of two ways to train one run."""
    for mine, other in zip(lines, expected, strict=True):
        assert mine.keys() == other.keys()
        for key, value in other.items():
            if key in but:
                continue
            exact = key in ("step", "tokens", "learning_rate", "targets")
            assert mine[key] == (value if exact else pytest.approx(value, rel=tolerance)), (key, other["step"])


def _shown(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else ["(it had not begun)"]
    if len(lines) > FIRST + LAST:
        lines[FIRST:-LAST] = [f"({len(lines) - FIRST - LAST} lines more)"]
    return "\n".join([f"--- {path.name}", *lines])


def _work(
    work: Callable[..., None], rank: int, size: int, port: int, cache: str, said: str, arguments: tuple[Any, ...]
) -> None:
    with Path(said).open("wb") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable(file=2)
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True, file=2)
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "COMT_CACHE": cache}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    work(rank, *arguments)
