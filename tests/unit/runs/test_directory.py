"""The run directory and the files in it: whole or absent, one writer at a time, readable after any crash."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import pickle
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_on import plan_on

from comt_cli.errors import UserError
from comt_cli.files import write_json
from comt_cli.runs.directory import BeingTrained, RunDirectory, RunState, read_lines
from comt_cli.runs.plan import SPEC_VERSION, RunSpec


@pytest.fixture
def spec(small, load) -> RunSpec:
    return plan_on(load(small), "smoke", lambda _: ("print", "content"), rows="gated")[0]


def hold_lock(path: str, pipe) -> None:
    with RunDirectory(Path(path)).lock():
        pipe.send("locked")
        pipe.recv()


@contextlib.contextmanager
def other_process_holding(directory: RunDirectory):
    context = multiprocessing.get_context("spawn")  # so that no handle is shared with this process
    here, there = context.Pipe()
    process = context.Process(target=hold_lock, args=(str(directory.path), there))
    process.start()
    assert here.recv() == "locked"
    try:
        yield process
    finally:
        process.kill()
        process.join()


def test_states(tmp_path, spec):
    directory = RunDirectory.of(tmp_path, spec)
    assert directory.path == tmp_path / "by-id" / spec.id
    directory.path.mkdir(parents=True)
    assert directory.state() == RunState.missing  # a folder without a spec is no run
    directory.create(spec)
    assert directory.state() == RunState.unfinished
    assert directory.spec() == spec
    assert directory.spec().id == spec.id == json.loads(directory.spec_file.read_text())["id"]
    with directory.lock():
        assert directory.state() == RunState.running
    assert directory.state() == RunState.unfinished
    directory.note_error("RuntimeError: a defect", "Traceback\n")
    assert directory.error() == "RuntimeError: a defect"
    directory.create(spec)  # another attempt
    assert (directory.result(), directory.error()) == (None, None)
    for state in ("done", "diverged"):
        write_json(directory.result_file, {"state": state, "perplexity": 12.5})
        assert (directory.state().value, directory.result()) == (state, {"state": state, "perplexity": 12.5})


def test_a_second_process_is_refused_and_told_who_is_first(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.spec_file.write_text("{}")
    with other_process_holding(directory) as owner:
        assert directory.state() == RunState.running
        with pytest.raises(BeingTrained, match=f"is being trained by process {owner.pid} on ") as refused:
            directory.lock().__enter__()
        assert pickle.loads(pickle.dumps(refused.value)).owner == directory.owner()
        os.kill(owner.pid, signal.SIGKILL)  # however its owner dies
        owner.join()
        assert directory.state() == RunState.unfinished
        assert directory.owner() is None  # though the file still names it
        with directory.lock():
            assert directory.lock_file.read_text().startswith(f"process {os.getpid()} on ")


def test_a_folder_that_is_moved_aside_while_another_waits_for_its_lock(tmp_path, monkeypatch):
    """The lock of the moved folder must not be taken for that of the new one."""
    directory = RunDirectory(tmp_path / "run")
    real, moved = fcntl.flock, tmp_path / "moved"

    def slow(handle, how):
        if not moved.exists():
            directory.path.rename(moved)
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with directory.lock():
        assert directory.lock_file.read_text().startswith(f"process {os.getpid()} on ")
        assert RunDirectory(moved).lock_file.read_text() == ""


def test_a_spec_whose_id_is_another_today(tmp_path, spec, monkeypatch):
    """It can be read and would pass for a run of today, which was trained otherwise."""
    directory = RunDirectory.of(tmp_path, spec)
    directory.create(spec)
    monkeypatch.setattr("comt_cli.runs.plan.SPEC_VERSION", SPEC_VERSION + 1)
    with pytest.raises(UserError, match=directory.path.name):
        directory.spec()


@given(st.lists(st.dictionaries(st.text(), st.text(), max_size=2), max_size=3), st.data())
def test_a_file_cut_anywhere_gives_its_whole_lines(tmp_path_factory, lines, data):
    content = "".join(f"{json.dumps(line)}\n" for line in lines)
    cut = data.draw(st.integers(0, len(content)))
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    path.write_text(content[:cut])
    assert read_lines(path) == lines[: content[:cut].count("\n")]
