"""Files that are damaged, foreign, or no files at all: each is told in one line with its name, and read no further."""

from __future__ import annotations

import os
import re
from functools import partial

import pytest
from planning_on import plan_on

from comt_cli.campaign.slurm import JOB_FILE, job_of, log_folder
from comt_cli.errors import StorageError, UserError
from comt_cli.files import atomic_file, read_json, write_json
from comt_cli.runs.directory import RunDirectory

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


# ---- a run directory


@pytest.fixture
def directory(tmp_path, small, load) -> RunDirectory:
    spec = plan_on(load(small), "smoke", lambda _: ("print", "content"), rows="gated")[0]
    made = RunDirectory.of(tmp_path / "runs", spec)
    made.create(spec)
    return made


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
