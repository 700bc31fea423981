"""The run directory: whole or absent, one writer at a time, readable after any crash; damaged files are named; what
tables share is stored once, linked from each, and moved aside with its links."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import pickle
import re
import signal
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_on import plan_on

from comt_cli.campaign.slurm.jobs import JOB_FILE, job_of, log_folder
from comt_cli.errors import StorageError, UserError
from comt_cli.files import atomic_file, read_json, write_json
from comt_cli.runs.directory import BeingTrained, RunDirectory, RunState, read_lines
from comt_cli.runs.known import link_runs, set_aside
from comt_cli.runs.plan import SPEC_VERSION, RunSpec


@pytest.fixture
def spec(small, load) -> RunSpec:
    return plan_on(load(small), "smoke", lambda _: ("print", "content"), rows="gated")[0]


@pytest.fixture
def directory(tmp_path, spec) -> RunDirectory:
    made = RunDirectory.of(tmp_path / "runs", spec)
    made.create(spec)
    return made


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


def test_a_spec_whose_id_is_another_today(directory, monkeypatch):
    """It can be read and would pass for a run of today, which was trained otherwise."""
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


# ---- damaged files

DAMAGED_JSON = (b"{", b'{"a": "\xff"}', b"[" * 100_000, b"[-" + b"9" * 5000 + b"]", b"[2]")
"""No JSON, no UTF-8, nested beyond Python's stack, more digits than Python reads, no object."""


def _fail(handle):
    handle.write("half of the new")
    handle.flush()
    raise OSError(28, "No space left on device")


def test_a_write_that_fails_midway_leaves_the_old_file(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, {"old": 1})
    with pytest.raises(StorageError, match="No space left"), atomic_file(path, "w") as handle:
        _fail(handle)
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"new": float("nan")})
    assert read_json(path) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]  # and no rubbish beside it


def test_every_damaged_file_of_a_run_is_named(directory):
    for content in ({}, {"state": None}, {"state": "unfinished"}, {"state": ["done"]}):
        write_json(directory.result_file, content)
        with pytest.raises(UserError, match=r"result\.json"):
            directory.state()
    directory.result_file.unlink()
    job = log_folder(directory.path.parents[1], directory.spec().request) / JOB_FILE
    job.parent.mkdir(parents=True)
    for file, read in (
        (job, partial(job_of, directory.path.parents[1], directory.spec())),
        (directory.result_file, directory.result),
        (directory.spec_file, directory.spec),
        (directory.metrics_file, directory.metrics),
    ):
        for damaged in DAMAGED_JSON:
            file.write_bytes(damaged + b"\n")
            with pytest.raises(UserError, match=re.escape(file.name)) as told:
                read()
        assert "JSON object" in told.value.message or file is job
        file.unlink()
        os.mkfifo(file)  # who opens it waits for somebody to write into it
        with pytest.raises(UserError, match="it is a pipe or a device, not a file"):
            read()
        file.unlink()


def test_a_lock_that_leads_elsewhere_is_not_written_to(directory, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    directory.lock_file.symlink_to(precious)
    with pytest.raises(StorageError, match="symbolic link"), directory.lock():
        pass
    assert precious.read_text() == "mine"


# ---- runs that tables share


@pytest.fixture
def twin(spec: RunSpec) -> RunSpec:
    """The same training in another table, under another name."""
    return spec.model_copy(update={"paper": "other", "table": "table7", "row": "with-gates"})


def finished(spec: RunSpec, runs: Path) -> RunDirectory:
    directory = RunDirectory.of(runs, spec)
    directory.create(spec)
    write_json(directory.result_file, {"state": "done"})
    return directory


def dangling(runs: Path) -> list[Path]:
    return [path for path in runs.rglob("*") if path.is_symlink() and not path.exists()]


def test_a_run_is_stored_once_and_linked_from_each_table(spec, twin, tmp_path):
    runs = tmp_path / "runs"
    link_runs([spec, twin], runs)
    assert not runs.exists()  # links are made of runs that are there
    directory = RunDirectory.of(runs, spec)
    assert directory.shown == directory.path  # no link yet
    finished(spec, runs)
    assert directory.path == runs / "by-id" / spec.id
    assert directory.shown == runs / spec.relative_path
    assert RunDirectory.of(runs, twin).shown == directory.path
    link_runs([spec, twin], runs)
    assert RunDirectory.of(runs, twin).shown == runs / twin.relative_path
    moved = runs.rename(tmp_path / "elsewhere")
    for each in (spec, twin):
        assert (moved / each.relative_path).readlink() == Path("../../../../by-id") / spec.id
        assert (moved / each.relative_path / "result.json").exists()


def test_a_link_that_leads_elsewhere_is_mended_and_what_is_no_link_stays(spec, twin, tmp_path):
    directory = finished(spec, tmp_path)
    label = tmp_path / spec.relative_path
    label.unlink()
    label.symlink_to("nowhere")
    link_runs([spec], tmp_path)
    assert label.resolve() == directory.path.resolve()
    copied = tmp_path / twin.relative_path
    copied.mkdir(parents=True)
    (copied / "notes.txt").touch()
    link_runs([twin], tmp_path)
    assert (copied / "notes.txt").exists()
    assert RunDirectory.of(tmp_path, twin).shown == directory.path


def test_what_is_moved_aside_takes_the_links_of_all_tables_with_it(spec, twin, tmp_path):
    for number in (1, 2):
        finished(spec, tmp_path)
        link_runs([twin], tmp_path)
        moved = set_aside([twin, spec], tmp_path)  # one training, though named twice
        assert moved == [tmp_path / twin.relative_path.with_name(f"{twin.relative_path.name}.replaced-{number}")]
        assert (moved[0] / "result.json").exists()
        assert dangling(tmp_path) == []
        for each in (spec, twin):
            assert not (tmp_path / each.relative_path).is_symlink()
    assert len(list((tmp_path / "by-id").iterdir())) == 2
    assert set_aside([spec], tmp_path) == []


def test_a_run_in_progress_is_not_moved(spec, tmp_path):
    other = spec.model_copy(update={"seed": 99})
    finished(other, tmp_path)
    busy = finished(spec, tmp_path)
    with busy.lock(), pytest.raises(UserError, match=f"{spec.relative_path} is being trained by process {os.getpid()}"):
        set_aside([other, spec], tmp_path)
    assert RunDirectory.of(tmp_path, other).path.exists()
