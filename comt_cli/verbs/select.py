"""Selectors of runs: a path, the beginning of an id, a name that a run was given, or `recipe:row:column:seed`.
Torch-free.

Parts after the recipe may be left out from the end, and any of them may be empty: `table3:pre-ln`, `table3::c4/130m`.
Runs with other settings than the recipe's are those of `table3@steps-12:pre-ln`.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import typer

from comt_cli.commands.options import OfRuns
from comt_cli.errors import UserError
from comt_cli.files import write_text
from comt_cli.methods import catalogue
from comt_cli.recipe.find import MARK, also_called, available_recipes, find_recipe, full_name, place_of, split_variant
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.recipe.problems import nearest
from comt_cli.report.collect import collect
from comt_cli.report.run_list import RecipeOf, described, in_order, settings_text
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.known import KnownRun, Place, Standing, adopt_contents, known_runs
from comt_cli.runs.plan import RunSpec, plan

_ID = re.compile(r"[0-9a-f]{3,12}(\.replaced-\d+)?")
_GIVEN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,31}")
_MOST_LISTED = 12


def model_source(text: str, of: OfRuns) -> str:
    """The model of a verb that takes a checkpoint: `text` as it is where it is a path, or a name of the hub's, else the
    folder of the one run that it selects, which is named on the error stream. Raises `UserError` where no run or
    several are so."""
    if _is_path(text, of.runs):
        return text
    found = _with_checkpoints(text, of)
    if len(found) > 1:
        raise _several(text, found)
    _tell(text, found)
    return str(found[0].run.directory.shown)


def run_directories(texts: Sequence[str], of: OfRuns) -> list[RunDirectory]:
    """The run directories of a verb that takes several: of paths, and of every run that a selector means. Raises
    `UserError` where a selector means no run, or a path is none."""
    directories = []
    for text in texts:
        if _is_path(text, of.runs):
            directories.append(_at(Path(text)))
            continue
        found = _with_checkpoints(text, of)
        _tell(text, found)
        directories += [RunDirectory(each.run.directory.shown) for each in found]
    for directory in directories:
        directory.spec()
    return directories


def cell_directories(text: str, of: OfRuns) -> list[RunDirectory]:
    """The run at a path, or those of the cell that a selector means, one a seed, whatever became of them: a seed that
    diverged must not be passed over. Those with the recipe's settings if there are any; others are said. Raises
    `UserError` where it means no run, or those of several cells or settings."""
    if _is_path(text, of.runs):
        return [_at(Path(text))]
    found = select_runs(text, of)
    chosen = [each for each in found if each.is_planned] or found
    chosen = [each for each in chosen if not each.is_passed_over]
    chosen = [each for each in chosen if not each.run.is_replaced] or chosen
    runs = [each.run for each in chosen]
    trained = {run.spec.model_copy(update={"seed": 0}).request for run in runs if run.spec is not None}
    if len(trained) > 1 or len({run.seed for run in runs}) < len(runs):
        raise _several(text, chosen)
    _tell(text, chosen, each=False)
    return [run.directory for run in runs]


def _at(path: Path) -> RunDirectory:
    return RunDirectory(path.parent if path.is_file() else path)


def _is_path(text: str, runs: Path) -> bool:
    return Path(text).exists() or not is_selector(text, runs)


def is_selector(text: str, runs: Path) -> bool:
    """Whether `text`, which is no path, has the form of a selector, or is the name of a recipe or of a run."""
    return ":" in text or is_recipe(text) or _is_id(text, runs)


def _is_id(text: str, runs: Path) -> bool:
    """Whether it can be the beginning of an id, or is the name of a run."""
    if ":" in text or is_recipe(text):
        return False
    return bool(_ID.fullmatch(text)) or any(run.given_name == text for run in known_runs(runs))


def is_recipe(text: str) -> bool:
    """Whether it is the name of a recipe, or of a table of changed settings."""
    return full_name(split_variant(text)[0]) in available_recipes()


def name_run(run: KnownRun, name: str, runs: Path) -> None:
    """Give a run a name that selects it; "" takes it away. Raises `UserError` where the name would mean something else,
    or another run below `runs` has it."""
    means_else = Path(name).exists() or is_recipe(name) or _ID.fullmatch(name)
    if name and (means_else or not _GIVEN_NAME.fullmatch(name)):
        hint = "Choose one of letters, digits and . _ + - (32 at most), unlike a path, a recipe or an id."
        raise UserError(f"{name!r} cannot be the name of a run: it was not named", hint)
    for other in known_runs(runs):
        if name and other.given_name == name and other.id != run.id:
            hint = f"comt runs {name} shows it; comt runs {other.id} --name '' takes the name away."
            raise UserError(f"the run {other.id} is called {name} already", hint)
    write_text(run.directory.name_file, f"{name}\n")


class Found(NamedTuple):
    """A run that a selector means. It is planned where it has the settings that its recipe, or the selector, asks for,
    on the data that is prepared here, else on any; usual where it has one of the recipe's seeds; passed over where it
    is of a point of a grid that was not chosen."""

    run: KnownRun
    is_planned: bool = False
    is_usual: bool = False
    is_passed_over: bool = False


def _with_checkpoints(text: str, of: OfRuns) -> list[Found]:
    """The runs of a selector whose weights can be loaded, the likeliest alone: those that are done come before the
    others, and those that the recipe, as it is, would train before those of other settings or seeds. Of a grid, those
    that its table shows."""
    found = select_runs(text, of)
    is_id = _is_id(text, of.runs)
    loadable = [each for each in found if each.run.has_checkpoint and (is_id or not each.run.is_replaced)]
    if not loadable:
        raise UserError(f"{text} has saved no checkpoint yet\n{_listing(found, text)}", "Train it first.")

    def rank(each: Found) -> tuple[bool, ...]:
        return each.run.standing is not Standing.done, not each.is_planned, not each.is_usual, each.is_passed_over

    best = min(map(rank, loadable))
    return [each for each in loadable if rank(each) == best]


def _tell(text: str, found: Sequence[Found], *, each: bool = True) -> None:
    """Say which runs are taken, unless `each` is false, and in which settings they differ from the selector's."""
    for one in found if each else ():
        typer.echo(f"comt: {text} is {one.run.directory.shown}", err=True)
    others = _described([one for one in found if not one.is_planned], text)
    for settings in dict.fromkeys(settings_text(row) for _, row in others):
        if settings:
            typer.echo(f"comt: {text} was trained with {settings}, unlike the recipe", err=True)


def _several(text: str, found: Sequence[Found]) -> UserError:
    return UserError(
        f"{text} could be any of {len(found)} runs\n{_listing(found, text)}",
        "Say more: recipe@settings:row:column:seed, --scale, a name, or the beginning of an id.",
    )


def select_runs(text: str, of: OfRuns) -> list[Found]:
    """Every run that `text`, which is no path, means; those set aside too. Raises `UserError` where there is none; says
    what there is."""
    if _is_id(text, of.runs):
        return _by_id(text, of.runs)
    table, matching = _matching(text, of)
    found = [run for run in _once(matching) if of.scale in (None, run.label("scale"))]
    if not found:
        others = _once(matching)
        hint = "Leave --scale out, or give that of these runs." if others else "--runs DIR looks elsewhere."
        there = [Found(run) for run in others or table.known if table.places(run)]
        if not there:
            raise UserError(f"no run of {table.name} is below {of.runs}", hint)
        listed = f"of {table.name} there are\n{_listing(there, text)}"
        raise UserError(f"no run below {of.runs} is {text}; {listed}", hint)
    is_here = any(run.id in table.planned for run in found)
    planned = [run for run in found if (run.id in table.planned if is_here else table.plans(run))]
    return [
        Found(run, bool(table.variant) or run in planned, table.has_seed(run), run.id in table.passed_over)
        for run in found
    ]


def listed_runs(selectors: Sequence[str], of: OfRuns) -> list[tuple[KnownRun, Place]]:
    """The runs that recipes, selectors, ids or names mean, whatever they were trained with, or all, each in its place
    in a table, in the order of `comt runs`. Raises `UserError` where there is no such recipe, row, column or run."""
    found = [] if selectors else [(run, run.home) for run in known_runs(of.runs)]
    for text in selectors:
        is_id = _is_id(text, of.runs)
        found += [(one.run, one.run.home) for one in _by_id(text, of.runs)] if is_id else _matching(text, of)[1]
    return sorted({each for each in found if of.scale in (None, each[0].label("scale"))}, key=in_order)


def _once(found: Iterable[tuple[KnownRun, Place]]) -> list[KnownRun]:
    return list({run.name: run for run, _ in found}.values())


def _matching(text: str, of: OfRuns) -> tuple[SelectedTable, list[tuple[KnownRun, Place]]]:
    """The table that a selector names, and its runs of every scale, each with its place there. Raises `UserError` where
    there is no such table, or neither the recipe nor a run has the row or the column."""
    parts = text.split(":")[1:]
    row, column, seed = (*parts, "", "", "")[:3]
    if len(parts) > 3 or not re.fullmatch("[0-9]{0,10}", seed):
        wrong = "has too many parts" if len(parts) > 3 else f"has a seed {seed!r} that is no whole number"
        raise UserError(f"{text} {wrong}", "A run is recipe:row:column:seed.")
    table = SelectedTable(text.partition(":")[0], of)
    every = [(run, place) for run in table.known for place in table.places(run)]
    rows = [*table.rows, *(place.row for _, place in every)]
    columns = [*table.columns, *(place.column for _, place in every)]
    for what, name, valid in (("row", row, rows), ("column", column, columns)):
        if name and dashed(name) not in map(dashed, valid):
            hints = nearest(name, dict.fromkeys(valid)), also_called(split_variant(text.partition(":")[0])[0])
            raise UserError(f"{text}: {table.name} has no {what} {name!r}", "\n  ".join(filter(None, hints)))
    return table, [
        (run, place)
        for run, place in every
        if (not row or dashed(row) == dashed(place.row))
        and (not column or dashed(column) == dashed(place.column))
        and (not seed or int(seed) == run.seed)
    ]


def _by_id(text: str, runs: Path) -> list[Found]:
    every = [Found(run) for run in known_runs(runs)]
    found = [each for each in every if text in (each.run.name, each.run.given_name)]
    found = found or [each for each in every if each.run.name.startswith(text) and not each.run.is_replaced]
    if len(found) > 1:
        message = f"{len(found)} runs have ids that begin with {text}\n{_listing(found, text)}"
        raise UserError(message, "Give more of the id.")
    if not found:
        there = f"\n{_listing(every, text)}" if every else ""
        raise UserError(f"no run below {runs} has an id that begins with {text}{there}", "comt runs lists them all.")
    return found


def _listing(found: Sequence[Found], text: str) -> str:
    """A line for each run: its folder's name, the selector of its place, scale, settings that are not the recipe's,
    state, and time."""
    lines = []
    for run, row in _described(found[:_MOST_LISTED], text):
        name = ":".join((run.home.recipe, run.home.row, run.home.column, str(run.seed)))
        when = row["written"].replace("T", " ")[:16]
        said = ", ".join(filter(None, [run.label("scale"), settings_text(row), str(run.standing)]))
        lines.append(f"  {run.name}  {name}  {said}, {when}")
    if len(found) > _MOST_LISTED:
        lines.append(f"  ... and {len(found) - _MOST_LISTED} more (comt runs lists them)")
    return "\n".join(lines)


def _described(found: Sequence[Found], text: str) -> list[tuple[KnownRun, dict[str, Any]]]:
    """Runs with what `comt runs` says of them, the point of a grid that they were trained at among the settings."""
    runs = {each.run.name: each.run for each in found}
    rows = described([(run, run.home) for run in runs.values()], recipes_by_name([text.partition(":")[0]]))
    for row in rows:
        spec = runs[row["name"]].spec
        row["settings"] = {**(row["settings"] or {}), **(spec.point if spec is not None else {})}
    return [(runs[row["name"]], row) for row in rows]


def recipes_by_name(named: Iterable[str] = ()) -> RecipeOf:
    """A function that reads recipes by `paper/table`, each once: those that are `named`, and those that every name can
    reach."""
    paths = dict(available_recipes())
    for name in named:
        with contextlib.suppress(UserError):  # its runs are there, and it is gone
            path = find_recipe(split_variant(name)[0])
            paths["/".join(place_of(path))] = path

    @functools.cache
    def load(name: str, overrides: tuple[str, ...], scale: str | None) -> LoadedRecipe | None:
        try:
            return load_recipe(paths[name], catalogue(), overrides, scale)
        except (KeyError, UserError):
            return None

    return lambda name, overrides, scale: load(name, tuple(overrides), scale if overrides else None)


def dashed(name: str) -> str:
    """A name as the folder of a link is called."""
    return name.replace("/", "-")


class SelectedTable:
    """The table `name` of a selector: its recipe, None where no name can reach it any more, such as `own/mine`; and the
    runs there are, of which those of a table of changed settings, `table3@steps-12`, stand in that alone. Raises
    `UserError` where there is neither a recipe nor a run, or nothing has such settings."""

    def __init__(self, name: str, of: OfRuns) -> None:
        recipe, self.variant = split_variant(name)
        self.name, self.runs, self.known = full_name(recipe), of.runs, known_runs(of.runs)
        self.loaded: LoadedRecipe | None = None
        self.scales: dict[str, LoadedRecipe] = {}
        self.rows: list[str] = []
        self.columns: list[str] = []
        try:
            self.loaded = load_recipe(find_recipe(recipe), catalogue())
        except UserError:
            if not any(map(self.places, self.known)):
                raise
        else:
            self.name, scales = self.loaded.name, self.loaded.recipe.scales
            self.scales = {each: self.loaded for each in scales if of.scale in (None, each)}
            columns_at, self.rows = self.loaded.recipe.columns_at, list(self.loaded.recipe.rows)
            self.columns = list(dict.fromkeys(column for each in scales for column in columns_at(each)))
        if self.variant:
            tables = {each for run in self.known for each in run.variants if each.startswith(f"{self.name}{MARK}")}
            self.known = [run for run in self.known if f"{self.name}{MARK}{self.variant}" in run.variants]
            if not self.known:
                hint = f"There are {', '.join(sorted(tables))}." if tables else "comt runs lists all runs."
                raise UserError(f"no run of {self.name} has settings called {self.variant}", hint)

    @cached_property
    def planned(self) -> dict[str, RunSpec]:
        """By id, and by request, what the recipe asks for, with the seeds that runs have, but those of trials."""
        found: dict[str, RunSpec] = {}
        for scale, loaded in self.scales.items():
            trials = loaded.grids[scale].seeds if scale in loaded.grids else ()
            seeds = {run.seed for run in self.known if run.seed is not None}
            with contextlib.suppress(UserError):  # its data cannot be identified: nothing was trained on it here either
                specs = [
                    spec for spec in plan(loaded, scale, seeds=sorted(seeds - {*trials})) if spec.seed not in trials
                ]
                found |= {name: spec for spec in specs for name in (spec.id, spec.request)}
        return found

    @cached_property
    def passed_over(self) -> set[str]:
        """Ids of the runs of a grid at points that were not chosen."""
        found: set[str] = set()
        for scale, loaded in self.scales.items():
            grid = loaded.grids.get(scale)
            with contextlib.suppress(UserError):  # as above
                if grid is not None and not grid.seeds:
                    specs = adopt_contents(plan(loaded, scale), self.runs, ambiguous=True)
                    every = collect(specs, self.runs, choose_by=grid.metric).runs()
                    found |= {run.spec.id for run in every if run.chosen is False}
        return found

    def has_seed(self, run: KnownRun) -> bool:
        """Whether the recipe has the seed of `run` at its scale."""
        loaded, scale = self.loaded, run.label("scale")
        recipe = loaded.recipe if loaded is not None and scale in loaded.recipe.scales else None
        return recipe is not None and run.seed in (recipe.scales[scale].seeds or recipe.seeds)

    def plans(self, run: KnownRun) -> RunSpec | None:
        """The run of this table that `run` is; None where it is none, or of other settings."""
        return self.planned.get(run.id) or (self.planned.get(run.spec.request) if run.spec is not None else None)

    def places(self, run: KnownRun) -> list[Place]:
        """Places of `run` in this table. Of a link the names are the recipe's, if it has them."""
        paper, _, table = self.name.partition("/")
        rows, columns = ({dashed(name): name for name in names} for names in (self.rows, self.columns))
        found = [run.home] if run.home.recipe == self.name else []
        for place in run.elsewhere:
            if (place.paper, place.table) == (dashed(paper), dashed(table)):
                names = rows.get(place.row, place.row), columns.get(place.column, place.column)
                found.append(Place(paper, table, *names))
        if (spec := self.plans(run)) is not None:
            found.append(Place(paper, table, spec.row, spec.column))
        return list(dict.fromkeys(found))
