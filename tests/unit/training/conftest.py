"""One tiny corpus for all runs, and one thread: see tests/integration/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tiny_runs import write_corpus


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("tiny") / "texts")


@pytest.fixture(autouse=True)
def tiny_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMT_CACHE", str(tmp_path_factory.getbasetemp() / "tiny-cache"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
