"""One tiny corpus for all runs."""

from __future__ import annotations

import pytest
from tiny_runs import write_corpus


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("tiny") / "texts")


@pytest.fixture(autouse=True)
def tiny_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMT_CACHE", str(tmp_path_factory.getbasetemp() / "tiny-cache"))
