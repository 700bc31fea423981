"""Files that are damaged, foreign, or no files at all: each is told in one line with its name, and read no further."""

from __future__ import annotations

import contextlib
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_on import plan_on

from comt_cli.campaign.outcomes import result_text
from comt_cli.campaign.slurm_queue import JOB_FILE, job_of, log_folder, note_job
from comt_cli.errors import StorageError, UserError
from comt_cli.files import Unreadable, open_own, parse_json, read_bytes, read_json, read_text, write_json
from comt_cli.recipe.load import load_recipe
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.directory import RunDirectory, RunState, read_lines
from comt_cli.tasks import task_of

DAMAGED_JSON = {
    "no JSON": (b"{", "is not JSON"),
    "not UTF-8": (b'{"a": "\xff"}', "is not UTF-8 text (line 1)"),
    "nested beyond Python's stack": (b"[" * 100_000, "is nested too deeply"),
    "a number beyond all bounds": (b'{"state": ' + b"9" * 4000 + b"}", "holds a whole number of 4,000 digits"),
    "more digits than Python reads": (b"[-" + b"9" * 5000 + b"]", "holds a whole number of 5,001 digits"),
}


@pytest.mark.parametrize("damage", DAMAGED_JSON)
def test_damaged_json_is_told(tmp_path, damage):
    path = tmp_path / "some.json"
    content, said = DAMAGED_JSON[damage]
    path.write_bytes(content)
    with pytest.raises(Unreadable, match=re.escape(said)):
        read_json(path)


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "of-windows.json"
    path.write_text('{"a": "\ufeff"}', encoding="utf-8-sig")
    assert read_json(path) == {"a": "\ufeff"}, "only the first is a mark"
    assert read_text(path) == '{"a": "\ufeff"}'


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


@given(st.text())
def test_any_text_is_json_or_said_not_to_be(text):
    with contextlib.suppress(Unreadable):
        parse_json(text)


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


def test_own_files_are_no_links_and_no_pipes(tmp_path):
    """A stranger's folder must not lead what is written into a file of the user's."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "link").symlink_to(precious)
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("link", "symbolic link"), ("pipe", "a pipe, not a file")):
        with pytest.raises(OSError, match=said):
            open_own(tmp_path / name, os.O_WRONLY | os.O_APPEND)
    assert precious.read_text() == "mine"


# ---- a run directory


@pytest.fixture
def directory(tmp_path, small, load) -> RunDirectory:
    spec = plan_on(load(small), "smoke", lambda _: ("print", "content"), rows="gated")[0]
    made = RunDirectory.of(tmp_path / "runs", spec)
    made.create(spec)
    return made


def test_a_result_that_does_not_say_how_the_run_ended(directory):
    for content in ({}, {"state": None}, {"state": "unfinished"}, {"state": ["done"]}):
        write_json(directory.result_file, content)
        with pytest.raises(UserError, match=r"result\.json"):
            directory.state()


@pytest.mark.parametrize("damage", DAMAGED_JSON)
def test_every_damaged_file_of_a_run_is_named(directory, damage):
    content, said = DAMAGED_JSON[damage]
    for file, read in (
        (directory.result_file, directory.result),
        (directory.spec_file, directory.spec),
        (directory.metrics_file, directory.metrics),
    ):
        file.write_bytes(content + b"\n")
        with pytest.raises(UserError, match=re.escape(file.name)) as told:
            read()
        assert said.removesuffix(" (line 1)") in told.value.message
        file.unlink()


def test_a_line_that_is_no_object_is_told(directory):
    directory.metrics_file.write_text('{"step": 1}\n[2]\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is not a JSON object"):
        read_lines(directory.metrics_file)


def test_a_pipe_for_a_result_does_not_block(directory):
    os.mkfifo(directory.result_file)
    with pytest.raises(UserError, match=r"result\.json cannot be read: it is a pipe, not a file"):
        directory.state()


def test_a_lock_that_is_a_folder(directory):
    directory.lock_file.mkdir()
    assert directory.state() is RunState.unfinished  # reading is not hindered
    with pytest.raises(StorageError, match="cannot lock"), directory.lock():
        pass


def test_a_lock_that_leads_elsewhere_is_not_written_to(directory, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    directory.lock_file.symlink_to(precious)
    with pytest.raises(StorageError, match="symbolic link"), directory.lock():
        pass
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("content", [b"[]", b'{"job": 3}', b"[" * 100_000, b"\xff"])
def test_a_damaged_note_of_a_job(directory, content, tmp_path):
    spec, runs = directory.spec(), tmp_path / "runs"
    log_folder(runs, spec.request).mkdir(parents=True)
    note_job(runs, spec, "17")
    assert job_of(runs, spec).number == "17"
    (log_folder(runs, spec.request) / JOB_FILE).write_bytes(content)
    with pytest.raises(UserError, match=JOB_FILE):
        job_of(runs, spec)


# ---- recipes that cannot be salvaged


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "change",
    [("paper: mine", "paper: ../../x"), ("title: A small table\n", ""), ("seeds: [1, 2]", "seeds: x"),
     ("command: train-lm", "command: []"), ("    description: quick", "    description: 7")],
    ids=str,
)  # fmt: skip
def test_a_recipe_without_a_usable_name_is_told_and_ends(small, load, change):
    with pytest.raises(RecipeError) as told:
        load(small.replace(*change))
    assert len(told.value.problems) == 1


def test_a_result_without_its_numbers_is_put_in_words():
    task = task_of("train-lm")
    assert "beyond range" in result_text(task, {"state": "done", "perplexity": "high", "train_seconds": True})
    assert "?" in result_text(task, {"state": "diverged"})
    said = result_text(task, {"state": "done", "perplexity": 2.5, "train_seconds": 3, "tokens_per_second": 1e4})
    assert "2.50, 3 s, 10,000 tok/s" in said


def test_a_table_of_too_many_cells_is_refused_at_once(small, load):
    rows = "".join(f"  r{number}: {{method: pre-ln, in_paper: false}}\n" for number in range(200))
    columns = "".join(f"  c{number}: {{}}\n" for number in range(100))
    with pytest.raises(RecipeError, match=r"columns: 203 rows x 102 columns"):
        load(small.replace("columns:\n", rows + "columns:\n" + columns, 1))


@pytest.mark.parametrize(
    "override",
    ["model.width=1000000000000000000", "model.layers=100000", "data.sequence_length=1" + "0" * 30,
     "train.steps=1" + "0" * 400, "data.vocabulary=100000000"],
)  # fmt: skip
def test_sizes_beyond_every_machine_are_refused(small, load, override):
    with pytest.raises(RecipeError):
        load(small, override)
