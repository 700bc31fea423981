"""Fixtures of tests that train tiny runs: one corpus, one cache and one thread for all. A conftest imports them."""

from __future__ import annotations

from collections.abc import Iterator

import isolation
import pytest
import torch
from tiny_runs import write_corpus


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("tiny") / "texts")


@pytest.fixture(autouse=True)
def tiny_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's, in which kernels are compiled once for all workers: a cache of each worker's own costs 20 s."""
    monkeypatch.setenv("COMT_CACHE", str(isolation.cache_folder()))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bits are the same for the same number of threads, and runs in other processes have one. On a busy machine two
    threads that wait for each other after every tiny operation take a hundred times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
