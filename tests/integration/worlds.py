"""Several processes as torchrun would start them, forked from the nursery: starting torch anew costs seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from dying import Nursery

from comt_cli.training.many import launch


def run_together(nursery: Nursery, size: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(rank, *arguments)` in `size` processes that know of each other, and wait until all have ended well."""
    port, cache = launch._free_port(), os.environ["COMT_CACHE"]
    processes = [nursery.start(_work, work, rank, size, port, cache, arguments) for rank in range(size)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * size


def _work(work: Callable[..., None], rank: int, size: int, port: int, cache: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "COMT_CACHE": cache}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    work(rank, *arguments)
