"""Runs so small that a test can train them, and processes that end with the test that started them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
from dying import Nursery
from tiny_runs import one_thread, tiny_cache, tiny_corpus

from comt_cli.campaign import workers

__all__ = ["one_thread", "tiny_cache", "tiny_corpus"]


@pytest.fixture(scope="session")
def only_nursery() -> Nursery:
    return Nursery()


@pytest.fixture(scope="session", autouse=True)
def server_of_these_tests(only_nursery: Nursery) -> None:
    """All of them fork from the nursery's server, whichever needs one first."""


@pytest.fixture
def nursery(only_nursery: Nursery) -> Iterator[Nursery]:
    yield only_nursery
    only_nursery.end_all()


@pytest.fixture
def quick_workers(only_nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers are forked from the nursery's server, whatever their device is called, and none is left in the end.
    Nobody sits out the second after which a pool, or a command that waits for another, looks again."""
    monkeypatch.setattr(workers, "context_for", lambda devices: multiprocessing.get_context("forkserver"))
    monkeypatch.setattr(workers, "TICK_SECONDS", 0.05)
    yield
    assert multiprocessing.active_children() == []
