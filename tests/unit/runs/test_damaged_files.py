"""Files that are damaged, foreign, or no files at all: each is told in one line with its name, and read no further."""

from __future__ import annotations

import os
import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_on import plan_on

from comt_cli.campaign.slurm import JOB_FILE, job_of, log_folder
from comt_cli.errors import StorageError, UserError
from comt_cli.files import Unreadable, read_bytes, read_json, read_text, write_json
from comt_cli.recipe.load import load_recipe
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.directory import RunDirectory

DAMAGED_JSON = {
    "no JSON": (b"{", "is not JSON"),
    "not UTF-8": (b'{"a": "\xff"}', "is not UTF-8 text (line 1)"),
    "nested beyond Python's stack": (b"[" * 100_000, "is not JSON"),
    "more digits than Python reads": (b"[-" + b"9" * 5000 + b"]", "is not JSON"),
}


@pytest.mark.parametrize("damage", DAMAGED_JSON)
def test_damaged_json_is_told(tmp_path, damage):
    path = tmp_path / "some.json"
    content, said = DAMAGED_JSON[damage]
    path.write_bytes(content)
    with pytest.raises(Unreadable, match=re.escape(said)):
        read_json(path)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_what_is_written_is_read_back(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "value.json"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return
    try:
        write_json(path, value)
    except (ValueError, UnicodeEncodeError):  # infinities within, half of a surrogate pair: refused when written
        return
    assert read_json(path) == value


def test_what_is_no_file_is_refused_at_once(tmp_path):
    pipe, folder, link = tmp_path / "pipe", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to("/dev/zero")
    for path, kind in ((pipe, "a pipe"), (folder, "a folder"), (link, "a device")):
        with pytest.raises(Unreadable, match=f"it is {kind}, not a file"):
            read_bytes(path)
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "nothing")


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as handle:
        handle.truncate(1 << 40)  # it takes no room
    with pytest.raises(Unreadable, match="it has 1,099,511,627,776 bytes"):
        read_bytes(path)
    with pytest.raises(RecipeError, match="1,099,511,627,776 bytes"):
        load_recipe(path, {})


# ---- a run directory


@pytest.fixture
def directory(tmp_path, small, load) -> RunDirectory:
    spec = plan_on(load(small), "smoke", lambda _: ("print", "content"), rows="gated")[0]
    made = RunDirectory.of(tmp_path / "runs", spec)
    made.create(spec)
    return made


@pytest.mark.parametrize("damage", DAMAGED_JSON)
def test_every_damaged_file_of_a_run_is_named(directory, damage):
    content, _ = DAMAGED_JSON[damage]
    job = log_folder(directory.path.parents[1], directory.spec().request) / JOB_FILE
    job.parent.mkdir(parents=True)
    for file, read in (
        (job, partial(job_of, directory.path.parents[1], directory.spec())),
        (directory.result_file, directory.result),
        (directory.spec_file, directory.spec),
        (directory.metrics_file, directory.metrics),
    ):
        for damaged in (content + b"\n", b"[2]\n"):
            file.write_bytes(damaged)
            with pytest.raises(UserError, match=re.escape(file.name)) as told:
                read()
        assert "JSON object" in told.value.message or file is job
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(UserError, match="it is a pipe, not a file"):
            read()
        file.unlink()


def test_a_result_that_does_not_say_how_the_run_ended(directory):
    for content in ({}, {"state": None}, {"state": "unfinished"}, {"state": ["done"]}):
        write_json(directory.result_file, content)
        with pytest.raises(UserError, match=r"result\.json"):
            directory.state()


def test_a_lock_that_leads_elsewhere_is_not_written_to(directory, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    directory.lock_file.symlink_to(precious)
    with pytest.raises(StorageError, match="symbolic link"), directory.lock():
        pass
    assert precious.read_text() == "mine"
