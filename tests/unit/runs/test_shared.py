"""Runs that tables share: stored once, linked from each, moved aside with their links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from planning_on import plan_on

from comt_cli.errors import UserError
from comt_cli.files import write_json
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.runs.shared import link_runs, set_aside


@pytest.fixture
def spec(small, load) -> RunSpec:
    return plan_on(load(small), "smoke", lambda _: ("print", "content"), rows="gated")[0]


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
