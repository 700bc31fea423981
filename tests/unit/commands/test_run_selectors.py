"""What selectors (recipe:row:column:seed, ids, paths) mean, and what is said where one means no run or several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comt_cli.commands.options import OfRuns
from comt_cli.errors import UserError
from comt_cli.runs.known import link_runs, set_aside
from comt_cli.runs.plan import RunSpec
from comt_cli.verbs.select import model_source, run_directories
from tests.shelf import ROWS, Shelf, comt, gates, shelf

__all__ = ["shelf"]


def meant(text: str, scale: str | None = None) -> str:
    """The id of the run that a verb would load."""
    return Path(model_source(text, OfRuns(scale))).resolve().name


def error(text: str, scale: str | None = None) -> str:
    with pytest.raises(UserError) as raised:
        model_source(text, OfRuns(scale))
    assert raised.value.exit_status == 2
    return str(raised.value)


def test_a_row_is_enough_where_it_has_one_finished_run(shelf: Shelf, capsys):
    gated, plain = shelf.spec("pre-ln+comt"), shelf.spec("pre-ln")
    shelf.done(gated)
    shelf.done(plain)
    shelf.begun(shelf.spec("pre-ln+comt", seed=2))
    shelf.done(shelf.spec("pre-ln+comt", seed=3))  # which is none of the recipe's
    for text in ("mine/gates:pre-ln+comt", "recipes/mine/gates.yaml:pre-ln+comt", "mine/gates:pre-ln+comt:docs-tiny:1"):
        assert meant(text) == gated.id  # with the column as the folder is called, too
    assert meant("mine/gates:pre-ln::1") == plain.id
    assert f"using runs/{plain.relative_path} for mine/gates:pre-ln::1" in capsys.readouterr().err


def test_the_scale_decides_where_several_have_finished_runs(shelf: Shelf):
    smoke, small = shelf.spec("pre-ln"), shelf.spec("pre-ln", scale="small")
    shelf.begun(small)
    shelf.done(smoke)
    assert meant("mine/gates:pre-ln") == smoke.id  # of the other scale none is done
    shelf.done(small)
    assert "selects 2 runs" in error("mine/gates:pre-ln")
    assert meant("mine/gates:pre-ln", "small") == small.id
    assert "Leave --scale out" in error("mine/gates:pre-ln", "paper")


def test_the_recipes_own_settings_come_before_those_of_tries(shelf: Shelf):
    own, tried = shelf.spec("pre-ln"), shelf.spec("pre-ln", overrides=["train.steps=20"])
    shelf.done(tried)
    assert meant("mine/gates:pre-ln") == tried.id  # there is no other
    shelf.done(own)
    assert meant("mine/gates:pre-ln") == own.id
    assert meant(tried.id[:6]) == tried.id


def test_a_run_that_another_table_trained_is_found_by_this_ones_names(shelf: Shelf):
    spec = shelf.spec("pre-ln+comt", overrides=["train.steps=20"])
    shelf.done(spec)
    twin = shelf.spec("with-gates", recipe="mine/twin", overrides=["train.steps=20"])
    assert twin.id == spec.id
    assert "there is no run of mine/twin below runs" in error("mine/twin:with-gates")
    link_runs([twin], Path("runs"))
    assert meant("mine/twin:with-gates:docs/tiny") == spec.id


def test_the_beginning_of_an_id(shelf: Shelf):
    specs = [shelf.spec(row, seed) for row in ("pre-ln", "pre-ln+comt") for seed in (1, 2)]
    for spec in specs:
        shelf.done(spec)
        assert meant(spec.id) == meant(spec.id[:8]) == spec.id
    said = error("0" * 12)
    assert "no run below runs has an id that begins with 000000000000" in said
    assert all(spec.id in said for spec in specs)


def test_a_run_that_was_set_aside_is_meant_by_its_whole_name_alone(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    shelf.done(spec)
    set_aside([spec], shelf.runs)
    assert "has no checkpoint yet" in error("mine/gates:pre-ln")
    assert "no run below runs" in error(spec.id)
    assert meant(f"{spec.id}.replaced-1") == f"{spec.id}.replaced-1"
    shelf.done(spec)
    assert meant("mine/gates:pre-ln") == meant(spec.id) == spec.id


def test_paths_and_foreign_names_are_left_alone(shelf: Shelf):
    directory = shelf.done(shelf.spec("pre-ln"))
    Path("abcdef").mkdir()
    for text in (str(directory.path), "abcdef", "owner/model", "model.gguf", "nothing/there.pt"):
        assert model_source(text, OfRuns()) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mine/gates:pre", "mine/gates has no row 'pre'\n  did you mean pre-ln?"),
        ("mine/gates:pre-ln:docs/tiny:1:9", "has too many parts"),
        ("mine/gates:pre-ln::2", "there is no run mine/gates:pre-ln::2 below runs; mine/gates has"),
        ("mine/gtes:pre-ln", "there is no recipe mine/gtes\n  did you mean mine/gates?"),
        ("table3:pre-ln", "there is no run of comt/table3 below runs"),
    ],
)
def test_what_means_nothing_is_told_with_what_there_is(shelf: Shelf, text, says):
    shelf.done(shelf.spec("pre-ln"))
    assert says in error(text)


def test_runs_of_a_recipe_that_no_name_reaches_are_found(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    shelf.done(spec)
    Path("recipes/mine/gates.yaml").unlink()
    assert meant("mine/gates:pre-ln") == spec.id
    assert len(json.loads(comt("runs", "mine/gates", "--json").stdout)) == 1


def test_several_runs_for_a_verb_that_takes_several(shelf: Shelf):
    specs = [shelf.spec("pre-ln", seed) for seed in (1, 2)]
    for spec in specs:
        shelf.done(spec)
    found = run_directories(["mine/gates:pre-ln", f"runs/by-id/{specs[0].id}/checkpoint.pt"], OfRuns())
    assert [each.path.resolve().name for each in found] == [*sorted(spec.id for spec in specs), specs[0].id]
    with pytest.raises(UserError, match="is not a run directory"):
        run_directories(["some/path"], OfRuns())


TRIED = ["train.steps=20"]


@pytest.fixture
def tried(shelf: Shelf) -> Shelf:
    """Two rows at the recipe's settings (seed 1) and with other steps (seeds 1 and 2)."""
    for row in ("pre-ln", "pre-ln+comt"):
        shelf.done(shelf.spec(row))
        for seed in (1, 2):
            shelf.done(shelf.spec(row, seed, overrides=TRIED), 200.0)
    return shelf


def test_the_name_of_settings_selects_their_runs(tried: Shelf, capsys):
    wanted = tried.spec("pre-ln", 2, overrides=TRIED).id
    assert meant("mine/gates@steps-20:pre-ln::2") == wanted
    assert "unlike the recipe" not in capsys.readouterr().err
    assert meant("mine/gates:pre-ln::2") == wanted  # no other has the seed, which is said
    assert "mine/gates:pre-ln::2 was trained with train.steps=20, unlike the recipe" in capsys.readouterr().err
    assert meant("mine/gates:pre-ln") == tried.spec("pre-ln").id
    assert "unlike the recipe" not in capsys.readouterr().err
    said = error("mine/gates@steps-21:pre-ln")
    assert "no run of mine/gates has settings called steps-21\n  Known names: mine/gates@steps-20." in said


def test_cells_of_changed_settings_are_compared_over_their_seeds(tried: Shelf):
    result = comt("compare", "mine/gates@steps-20:pre-ln", "mine/gates@steps-20:pre-ln+comt")
    assert result.exit_code == 0, result.exception
    assert result.stdout.splitlines()[0] == "A: mine/gates, pre-ln at docs/tiny; seeds 1-2; scale smoke"
    Path("runs", tried.spec("pre-ln").relative_path).unlink()
    for path in Path("runs/by-id").glob(f"{tried.spec('pre-ln').id}*"):
        path.rename(path.with_name("gone"))
    assert "train.steps=20, unlike the recipe" in comt("compare", "mine/gates:pre-ln", "mine/gates:pre-ln+comt").stderr


def test_a_row_that_was_added_is_known_by_its_runs(shelf: Shelf):
    added = shelf.spec("mine-too", also={"mine-too": "sandwich-ln"})
    for spec in (added, shelf.spec("pre-ln")):
        shelf.done(spec)
    assert meant("mine/gates:mine-too") == added.id
    assert comt("compare", "mine/gates:pre-ln", "mine/gates:mine-too").exit_code == 0
    assert "1 run: 1 done" in comt("rm", "mine/gates:mine-too", "--dry-run").output


@pytest.fixture
def gridded(shelf: Shelf) -> Shelf:
    """`mine/gates` with a grid of two points, and `mine/twin` without one."""
    grid = {"settings": {"train.learning_rate": [3e-4, 1e-3]}, "metric": "bits_per_byte"}
    Path("recipes/mine/gates.yaml").write_text(gates("gates", ROWS, sweep=grid), encoding="utf-8")
    return shelf


def points(shelf: Shelf, seed: int) -> list[RunSpec]:
    """The run of pre-ln and docs/tiny at each point."""
    found = shelf.specs(rows="pre-ln", columns="docs/tiny", seeds=str(seed))
    assert [spec.point["train.learning_rate"] for spec in found] == [3e-4, 1e-3]
    return found


def finish(shelf: Shelf) -> None:
    """All runs of pre-ln and docs/tiny: the second point is the better one by what decides."""
    for seed in (1, 2):
        for spec, decides, shown in zip(points(shelf, seed), (2.5, 2.0), (90.0, 100.0), strict=True):
            shelf.done(spec, shown, bits_per_byte=decides)


def test_a_selector_means_the_run_of_the_chosen_point(gridded: Shelf):
    finish(gridded)
    other, chosen = points(gridded, 2)
    assert meant("mine/gates:pre-ln:docs/tiny:2") == chosen.id
    assert meant(other.id[:8]) == other.id
    folders = run_directories(["mine/gates:pre-ln"], OfRuns())
    assert {folder.path.resolve().name for folder in folders} == {points(gridded, seed)[1].id for seed in (1, 2)}


def test_show_counts_every_run_of_a_grid_with_its_point(gridded: Shelf):
    part = ("--columns", "docs/tiny", "--rows", "pre-ln", "--json")
    rows, alone = (json.loads(comt("show", f"mine/{name}", *part).stdout) for name in ("gates", "twin"))
    assert len(rows) == 2 * len(alone) == 2 * 2
    assert sum(row["flops"] for row in rows) == 2 * sum(row["flops"] for row in alone)
    assert {row["grid"]["train.learning_rate"] for row in rows} == {3e-4, 1e-3}
