from __future__ import annotations

import os

import pytest

from comt_cli.data.prepare import prepare
from comt_cli.data.text.settings import DataSettings
from comt_cli.files import cache_folder

SESSIONS = cache_folder()
"""The session's cache folder, in which the embedded corpus is prepared once for all of pytest's workers."""


@pytest.fixture(autouse=True)
def no_flush_to_disk(monkeypatch):
    """Flushing matters when the power goes out, which no test here does; on a busy disk it is most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMT_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def python_docs_pack():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMT_CACHE", str(SESSIONS))
        return prepare(DataSettings(vocabulary=2048, sequence_length=128))


@pytest.fixture
def with_shared_cache(python_docs_pack, monkeypatch):
    """Run in the cache where python-docs is prepared (`python_docs_pack`). Not for tests that damage it."""
    monkeypatch.setenv("COMT_CACHE", str(SESSIONS))
