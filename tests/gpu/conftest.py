"""Tests that need a CUDA device, and one tiny corpus for all runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product on the device

import torch
from tiny_runs import tiny_corpus

__all__ = ["tiny_corpus"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(needs_gpu)


@pytest.fixture(autouse=True)
def tiny_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMT_CACHE", str(tmp_path_factory.getbasetemp() / "tiny-cache"))
