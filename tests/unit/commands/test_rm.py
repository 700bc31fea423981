"""`comt rm`: what it deletes, what it never deletes, and what it says before."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import comt_cli.verbs.runs
from comt_cli.errors import UserError
from comt_cli.files import read_json
from comt_cli.runs.directory import BeingTrained, RunDirectory
from comt_cli.runs.known import known_runs, link_runs, remove_runs, set_aside
from comt_cli.runs.plan import CHANGED
from tests.shelf import Shelf, comt, shelf, tree

__all__ = ["shelf"]


def ids(runs: Path) -> set[str]:
    return {run.name for run in known_runs(runs)}


@pytest.fixture
def three(shelf: Shelf) -> list[str]:
    specs = [shelf.spec("pre-ln", 1), shelf.spec("pre-ln", 2), shelf.spec("pre-ln+comt", 1)]
    for spec in specs:
        shelf.done(spec)
    return [spec.id for spec in specs]


def test_a_selector_deletes_every_run_that_it_means_with_its_links(shelf: Shelf, three):
    link_runs([shelf.spec("pre-ln", 1, recipe="mine/twin")], shelf.runs)
    result = comt("rm", "mine/gates:pre-ln", "--yes")
    assert result.exit_code == 0
    assert ids(shelf.runs) == {three[2]}
    assert [path for path in shelf.runs.rglob("*") if path.is_symlink() and not path.exists()] == []
    assert not (shelf.runs / "mine/twin").exists()  # nothing was left in it
    assert "2 runs: 2 done" in result.output
    assert "that took 2 min to train; 3 links to them from mine/gates and mine/twin." in " ".join(result.output.split())
    assert result.output.splitlines()[-1].startswith("deleted 2 runs, ")


def test_the_folder_of_changed_settings_goes_with_its_last_link(shelf: Shelf, three):
    for seed in (1, 2):
        shelf.done(shelf.spec("pre-ln", seed, overrides=["train.steps=20"]))
    folder = shelf.runs / "mine/gates@steps-20"
    assert comt("rm", "mine/gates@steps-20:pre-ln::1", "--yes").exit_code == 0
    assert read_json(folder / CHANGED) == {"train.steps": 20}
    assert "1 run: 1 done" in comt("rm", "mine/gates@steps-20", "--yes").output
    assert not folder.exists()
    assert ids(shelf.runs) == set(three)


def test_nothing_is_deleted_by_looking_nor_without_being_asked(shelf: Shelf, three):
    before = tree(shelf.runs)
    assert comt("rm", "mine/gates", "--dry-run").exit_code == 0
    refused = comt("rm", "mine/gates").exception
    assert isinstance(refused, UserError)
    assert refused.exit_status == 2
    assert tree(shelf.runs) == before


@pytest.mark.parametrize(("answer", "status", "left"), [("\n", 1, 3), ("y\n", 0, 1)])
def test_it_asks(shelf: Shelf, three, monkeypatch, answer, status, left):
    stdin = type("Stdin", (), {"isatty": staticmethod(lambda: True)})
    monkeypatch.setattr(comt_cli.verbs.runs, "sys", type("Terminal", (), {"stdin": stdin}))
    result = comt("rm", "mine/gates:pre-ln", answer=answer)
    assert (result.exit_code, len(ids(shelf.runs))) == (status, left)


def _hold(path: Path, held, release) -> None:
    with RunDirectory(path).lock():
        held.set()
        release.wait(60)


def test_a_run_that_is_being_trained_is_not_deleted_nor_any_other(shelf: Shelf, three):
    running = shelf.begun(shelf.spec("a/b"))
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(running.path, held, release))
    process.start()
    try:
        assert held.wait(60)
        before = ids(shelf.runs)
        result = comt("rm", "mine/gates", "--yes")
        assert isinstance(result.exception, UserError)
        assert f"is being trained by process {process.pid}" in str(result.exception)
        with pytest.raises(BeingTrained):  # one that began after it was looked at
            remove_runs(known_runs(shelf.runs), shelf.runs)
        assert ids(shelf.runs) == before
    finally:
        release.set()
        process.join()


def test_replaced_runs(shelf: Shelf, three):
    specs = [shelf.spec("pre-ln", 1), shelf.spec("pre-ln+comt", 1)]
    set_aside(specs, shelf.runs)
    shelf.done(specs[0])
    refused = comt("rm", "mine/gates:pre-ln+comt", "--yes").exception  # only one that was set aside
    assert isinstance(refused, UserError)
    assert refused.hint == "comt runs --state replaced lists replaced runs; comt rm --replaced deletes them."
    assert comt("rm", "mine/gates:pre-ln+comt", "--replaced", "--yes").exit_code == 0
    assert ids(shelf.runs) == {three[0], three[1], f"{three[0]}.replaced-1"}
    assert comt("rm", "--replaced", "--yes").exit_code == 0
    assert ids(shelf.runs) == {three[0], three[1]}
    assert comt("rm", "--replaced", "--yes").output == "There are no replaced runs below runs.\n"
    set_aside([specs[0]], shelf.runs)
    assert comt("rm", f"{three[0]}.replaced-1", "--yes").exit_code == 0
    assert ids(shelf.runs) == {three[1]}


@pytest.mark.parametrize("path", [".", "runs/by-id", "keep", "outside.link", "0123456789ab"])
def test_what_is_no_run_is_never_deleted(shelf: Shelf, three, path):
    Path("keep").mkdir()
    Path("keep/checkpoint.pt").touch()
    Path("outside.link").symlink_to("keep")
    (shelf.runs / "by-id" / "0123456789ab").symlink_to(Path("keep").resolve())
    before = tree(Path())
    assert isinstance(comt("rm", path, "--yes").exception, UserError)
    assert tree(Path()) == before


def test_what_an_earlier_call_was_stopped_at_is_no_run_and_goes_with_the_next(shelf: Shelf, three, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stopped)
        with pytest.raises(KeyboardInterrupt):
            remove_runs(known_runs(shelf.runs)[:1], shelf.runs)
    assert len(ids(shelf.runs)) == 2
    assert [path for path in shelf.runs.rglob("*") if path.is_symlink() and not path.exists()] == []
    remove_runs(known_runs(shelf.runs)[:1], shelf.runs)
    assert len(list((shelf.runs / "by-id").iterdir())) == 1


@settings(max_examples=15)
@given(st.data())
def test_what_is_not_chosen_stays_to_the_byte(data):
    """Whatever is chosen: the tree afterwards is the tree before, without these runs, their links, and folders that
    held nothing else."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        shelf = Shelf(Path(folder), patch)
        recipes = ("mine/gates", "mine/twin")
        specs = [spec for recipe in recipes for spec in shelf.specs(recipe, rows="pre-ln", columns="docs/tiny")]
        specs += shelf.specs(rows="a/b", columns="docs/tiny")
        for spec in specs:
            shelf.done(spec)
        set_aside(data.draw(st.lists(st.sampled_from(specs), unique_by=lambda spec: spec.id)), shelf.runs)
        Path("runs/mine/gates/notes.txt").write_text("kept", encoding="utf-8")
        known = known_runs(shelf.runs)
        chosen = data.draw(st.lists(st.sampled_from(known), unique_by=lambda run: run.name))
        before = tree(Path())
        remove_runs(chosen, shelf.runs)
        gone = {f"runs/by-id/{run.name}" for run in chosen} | {str(link) for run in chosen for link in run.links}
        left = {path: content for path, content in before.items()
                if not any(path == each or path.startswith(f"{each}/") for each in gone)}  # fmt: skip
        after = tree(Path())
        assert _files(left) == _files(after)
        assert set(after) <= set(left)


def _files(there: dict[str, str]) -> dict[str, str]:
    return {path: content for path, content in there.items() if content != "/"}
