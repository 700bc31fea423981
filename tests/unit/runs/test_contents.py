"""Runs on a machine that has not prepared their data: they say which data it was."""

from __future__ import annotations

import json
import os

import pytest

from comt_cli.campaign.queue import RunQueue
from comt_cli.errors import UserError
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.known import Standing, adopt_contents, known_runs
from tests.tiny_runs import PICTURES, image_spec


def spec(content: str | None, seed: int = 1):
    return image_spec(seed=seed).with_content(content)


def write_run(runs, content: str, seed: int = 1, result: str = '{"state": "done"}'):
    directory = RunDirectory.of(runs, spec(content, seed))
    directory.create(spec(content, seed))
    directory.result_file.write_text(result, encoding="utf-8")
    return directory


def test_what_is_not_prepared_here_is_what_the_runs_were_trained_on(tmp_path):
    assert adopt_contents([spec(None)], tmp_path) == [spec(None)]  # there are no runs to say so
    other = spec("two").model_copy(update={"data_fingerprint": f"not-{PICTURES}"})
    RunDirectory.of(tmp_path, other).create(other)  # on other settings
    write_run(tmp_path, "one")
    assert adopt_contents([spec(None), spec(None, seed=2)], tmp_path) == [spec("one"), spec("one", seed=2)]
    assert adopt_contents([spec("two")], tmp_path) == [spec("two")]  # what is prepared here counts


def test_runs_on_different_content_cannot_stand_in_one_column(tmp_path):
    for content, seed in (("one", 1), ("two", 1), ("two", 2)):
        write_run(tmp_path, content, seed)
    with pytest.raises(UserError, match=r"on glyphs10 in .* by data_content: two \(2 runs\), one \(1 run\)"):
        adopt_contents([spec(None), spec(None, seed=2)], tmp_path)
    assert adopt_contents([spec(None)], tmp_path, ambiguous=True) == [spec(None)]


def test_only_what_was_asked_for_and_trained_counts(tmp_path):
    """A run of another table, and a folder that was made and then refused its data, are in nobody's way."""
    write_run(tmp_path, "one")
    write_run(tmp_path, "two", seed=7)
    RunDirectory.of(tmp_path, spec("two")).create(spec("two"))
    assert adopt_contents([spec(None)], tmp_path) == [spec("one")]


def test_a_damaged_or_set_aside_run_says_nothing(tmp_path):
    write_run(tmp_path, "one").path.rename(tmp_path / "by-id" / f"{spec('one').id}.replaced-1")
    write_run(tmp_path, "two").spec_file.write_text("[" * 100_000, encoding="utf-8")
    lists = json.dumps({"data_fingerprint": [], "data_content": "three"})
    write_run(tmp_path, "three").spec_file.write_text(lists, encoding="utf-8")
    pipe = write_run(tmp_path, "four").spec_file
    pipe.unlink()
    os.mkfifo(pipe)  # who opens it waits for somebody to write into it
    assert adopt_contents([spec(None)], tmp_path) == [spec(None)]
    assert [run.standing for run in known_runs(tmp_path) if not run.is_replaced] == [Standing.unreadable] * 3
    assert sorted(run.label("data_content") for run in known_runs(tmp_path)) == ["?", "?", "one", "three"]


def test_a_queue_learns_what_was_prepared(tmp_path):
    """Runs that were thought to be done are open where the data came out otherwise, and the other way round."""
    write_run(tmp_path, "one")
    queue = RunQueue([spec(None), spec(None, seed=2)], tmp_path)
    assert [shared.spec for shared in queue.open] == [spec("one", seed=2)]
    queue.data_prepared({PICTURES: "two"})
    assert [shared.spec for shared in queue.open] == [spec("two"), spec("two", seed=2)]
    queue.data_prepared({PICTURES: "one"})
    assert [shared.spec for shared in queue.open] == [spec("one", seed=2)]
    assert [outcome.already for outcome in queue.summary().outcomes] == [True, False]
