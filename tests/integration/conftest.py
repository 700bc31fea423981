"""Runs so small that a test can train them, and processes that end with the test that started them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dying import Nursery
from tiny_fixtures import one_thread, tiny_cache, tiny_corpus

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
