"""Several processes as torchrun would start them, forked from the nursery: starting torch anew costs seconds."""

from __future__ import annotations

import faulthandler
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dying import Nursery

from comt_cli.campaign import launch
from comt_cli.campaign.endings import endings

LINES = 25
"""Of what each process said last, shown where one failed."""


def run_together(nursery: Nursery, size: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(rank, *arguments)` in `size` processes that know of each other, and wait until all have ended well."""
    port, cache = launch._free_port(), os.environ["COMT_CACHE"]
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / f"stderr of process {rank}" for rank in range(size)]
        processes = [
            nursery.start(_work, work, rank, size, port, cache, str(said[rank]), arguments) for rank in range(size)
        ]
        failed = launch._join(processes)
        codes = [process.exitcode for process in processes]
        if codes != [0] * size:
            pytest.fail(f"{endings(codes, failed)}\n" + "\n".join(_shown(path) for path in said), pytrace=False)


def _shown(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else ["(it had not begun)"]
    return "\n".join([f"--- {path.name}", *lines[-LINES:]])


def _work(
    work: Callable[..., None], rank: int, size: int, port: int, cache: str, said: str, arguments: tuple[Any, ...]
) -> None:
    with Path(said).open("wb") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable(file=2)
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "COMT_CACHE": cache}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    work(rank, *arguments)
