"""Selectors of runs: a path, the start of an id, the name of a run, or `recipe:row:column:seed`. Torch-free.

Parts after the recipe may be empty or left out at the end: `table3:pre-ln`, `table3::c4/130m`. A selector such as
`table3@steps-12:pre-ln` selects runs with changed settings.
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
    """The model for a verb that takes a checkpoint: `text` itself if it is a path or a hub name, else the folder of the
    selected run, which is printed on the error stream. Raises `UserError` unless exactly one run is selected."""
    if _is_path(text, of.runs):
        return text
    found = _with_checkpoints(text, of)
    if len(found) > 1:
        raise _several(text, found)
    _announce(text, found)
    return str(found[0].run.directory.shown)


def run_directories(texts: Sequence[str], of: OfRuns) -> list[RunDirectory]:
    """The run directories for a verb that takes several: paths, and all runs that a selector means. Raises `UserError`
    if a selector means no run, or a path is no run directory."""
    directories = []
    for text in texts:
        if _is_path(text, of.runs):
            directories.append(_at(Path(text)))
            continue
        found = _with_checkpoints(text, of)
        _announce(text, found)
        directories += [RunDirectory(each.run.directory.shown) for each in found]
    for directory in directories:
        directory.spec()
    return directories


def cell_directories(text: str, of: OfRuns) -> list[RunDirectory]:
    """The run at a path, or the runs of the cell that a selector means, one per seed, in any state: a diverged seed
    must not be left out. Only runs with the recipe's settings, if there are any; other settings are printed. Raises
    `UserError` if no run is selected, or runs of several cells or settings."""
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
    _announce(text, chosen, each=False)
    return [run.directory for run in runs]


def _at(path: Path) -> RunDirectory:
    return RunDirectory(path.parent if path.is_file() else path)


def _is_path(text: str, runs: Path) -> bool:
    return Path(text).exists() or not is_selector(text, runs)


def is_selector(text: str, runs: Path) -> bool:
    """Whether `text`, which is no path, has the form of a selector, or names a recipe or a run."""
    return ":" in text or is_recipe(text) or _is_id(text, runs)


def _is_id(text: str, runs: Path) -> bool:
    """Whether it may be the start of an id, or names a run."""
    if ":" in text or is_recipe(text):
        return False
    return bool(_ID.fullmatch(text)) or any(run.given_name == text for run in known_runs(runs))


def is_recipe(text: str) -> bool:
    """Whether it names a recipe, or a table with changed settings."""
    return full_name(split_variant(text)[0]) in available_recipes()


def name_run(run: KnownRun, name: str, runs: Path) -> None:
    """Give a run a name that selects it; "" removes the name. Raises `UserError` if the name means something else, or
    if another run below `runs` has it."""
    means_else = Path(name).exists() or is_recipe(name) or _ID.fullmatch(name)
    if name and (means_else or not _GIVEN_NAME.fullmatch(name)):
        hint = "Use at most 32 letters, digits and . _ + - that are not a path, a recipe or an id."
        raise UserError(f"{name!r} cannot be the name of a run: it was not named", hint)
    for other in known_runs(runs):
        if name and other.given_name == name and other.id != run.id:
            hint = f"comt runs {name} shows it; comt runs {other.id} --name '' removes the name."
            raise UserError(f"the run {other.id} is called {name} already", hint)
    write_text(run.directory.name_file, f"{name}\n")


class Found(NamedTuple):
    """A run that a selector means.

    `is_planned`: it has the settings of its recipe or of the selector, on the data prepared here, if there is any.
    `is_usual`: it has one of the recipe's seeds. `is_passed_over`: its configuration of a grid was not chosen."""

    run: KnownRun
    is_planned: bool = False
    is_usual: bool = False
    is_passed_over: bool = False


def _with_checkpoints(text: str, of: OfRuns) -> list[Found]:
    """The best matching runs of a selector that have a checkpoint. Runs that are done come before others, runs with the
    recipe's settings and seeds before others, and chosen configurations of a grid before others."""
    found = select_runs(text, of)
    is_id = _is_id(text, of.runs)
    loadable = [each for each in found if each.run.has_checkpoint and (is_id or not each.run.is_replaced)]
    if not loadable:
        raise UserError(f"{text} has no checkpoint yet\n{_listing(found, text)}", "Train it first.")

    def rank(each: Found) -> tuple[bool, ...]:
        return each.run.standing is not Standing.done, not each.is_planned, not each.is_usual, each.is_passed_over

    best = min(map(rank, loadable))
    return [each for each in loadable if rank(each) == best]


def _announce(text: str, found: Sequence[Found], *, each: bool = True) -> None:
    """Print the selected runs (if `each`), and the settings in which they differ from the recipe."""
    for one in found if each else ():
        typer.echo(f"comt: using {one.run.directory.shown} for {text}", err=True)
    others = _described([one for one in found if not one.is_planned], text)
    for settings in dict.fromkeys(settings_text(row) for _, row in others):
        if settings:
            typer.echo(f"comt: {text} was trained with {settings}, unlike the recipe", err=True)


def _several(text: str, found: Sequence[Found]) -> UserError:
    return UserError(
        f"{text} selects {len(found)} runs\n{_listing(found, text)}",
        "Select one: recipe@settings:row:column:seed, --scale, a name, or the start of an id.",
    )


def select_runs(text: str, of: OfRuns) -> list[Found]:
    """All runs that `text`, which is no path, means, including those moved aside. Raises `UserError` with a list of
    similar runs if there is none."""
    if _is_id(text, of.runs):
        return _by_id(text, of.runs)
    table, matching = _matching(text, of)
    found = [run for run in _once(matching) if of.scale in (None, run.label("scale"))]
    if not found:
        others = _once(matching)
        hint = "Train it first, or give the folder of its runs: --runs DIR."
        if others:
            hint = "Leave --scale out, or use the scale of one of these runs."
        there = [Found(run) for run in others or table.known if table.places(run)]
        if not there:
            raise UserError(f"there is no run of {table.name} below {of.runs}", hint)
        listed = f"{table.name} has\n{_listing(there, text)}"
        raise UserError(f"there is no run {text} below {of.runs}; {listed}", hint)
    is_here = any(run.id in table.planned for run in found)
    planned = [run for run in found if (run.id in table.planned if is_here else table.plans(run))]
    return [
        Found(run, bool(table.variant) or run in planned, table.has_seed(run), run.id in table.passed_over)
        for run in found
    ]


def listed_runs(selectors: Sequence[str], of: OfRuns) -> list[tuple[KnownRun, Place]]:
    """The runs that recipes, selectors, ids or names mean, with any settings; all runs without selectors. Each comes
    with its place in a table, in the order of `comt runs`. Raises `UserError` if there is no such recipe, row, column
    or run."""
    found = [] if selectors else [(run, run.home) for run in known_runs(of.runs)]
    for text in selectors:
        is_id = _is_id(text, of.runs)
        found += [(one.run, one.run.home) for one in _by_id(text, of.runs)] if is_id else _matching(text, of)[1]
    return sorted({each for each in found if of.scale in (None, each[0].label("scale"))}, key=in_order)


def _once(found: Iterable[tuple[KnownRun, Place]]) -> list[KnownRun]:
    return list({run.name: run for run, _ in found}.values())


def _matching(text: str, of: OfRuns) -> tuple[SelectedTable, list[tuple[KnownRun, Place]]]:
    """The table that a selector names, and its matching runs of all scales, each with its place in the table. Raises
    `UserError` if there is no such table, row or column."""
    parts = text.split(":")[1:]
    row, column, seed = (*parts, "", "", "")[:3]
    if len(parts) > 3 or not re.fullmatch("[0-9]{0,10}", seed):
        wrong = "has too many parts" if len(parts) > 3 else f"has a seed {seed!r} that is not a whole number"
        raise UserError(f"{text} {wrong}", "Write recipe:row:column:seed, for example table3:pre-ln::1.")
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
        raise UserError(message, "Give more digits of the id.")
    if not found:
        there = f"\n{_listing(every, text)}" if every else ""
        raise UserError(f"no run below {runs} has an id that begins with {text}{there}", "comt runs lists all runs.")
    return found


def _listing(found: Sequence[Found], text: str) -> str:
    """One line per run: folder, selector, scale, settings that differ from the recipe, state and time."""
    lines = []
    for run, row in _described(found[:_MOST_LISTED], text):
        name = ":".join((run.home.recipe, run.home.row, run.home.column, str(run.seed)))
        when = row["written"].replace("T", " ")[:16]
        facts = ", ".join(filter(None, [run.label("scale"), settings_text(row), str(run.standing)]))
        lines.append(f"  {run.name}  {name}  {facts}, {when}")
    if len(found) > _MOST_LISTED:
        lines.append(f"  ... and {len(found) - _MOST_LISTED} more (comt runs lists them)")
    return "\n".join(lines)


def _described(found: Sequence[Found], text: str) -> list[tuple[KnownRun, dict[str, Any]]]:
    """Runs with their rows of `comt runs`; a run's configuration of a grid is among its settings."""
    runs = {each.run.name: each.run for each in found}
    rows = described([(run, run.home) for run in runs.values()], recipes_by_name([text.partition(":")[0]]))
    for row in rows:
        spec = runs[row["name"]].spec
        row["settings"] = {**(row["settings"] or {}), **(spec.point if spec is not None else {})}
    return [(runs[row["name"]], row) for row in rows]


def recipes_by_name(named: Iterable[str] = ()) -> RecipeOf:
    """A function that reads recipes by `paper/table`, each once: the `named` ones and all that have a name."""
    paths = dict(available_recipes())
    for name in named:
        with contextlib.suppress(UserError):  # the recipe was removed, its runs were not
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
    """A name as in the folders of links."""
    return name.replace("/", "-")


class SelectedTable:
    """The table `name` of a selector, with its recipe and the known runs. The recipe is None if it cannot be found any
    more. Runs of a table with changed settings, `table3@steps-12`, belong to that table alone. Raises `UserError` if
    there is neither a recipe nor a run, or no run has such settings."""

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
                hint = f"Known names: {', '.join(sorted(tables))}." if tables else "comt runs lists all runs."
                raise UserError(f"no run of {self.name} has settings called {self.variant}", hint)

    @cached_property
    def planned(self) -> dict[str, RunSpec]:
        """The runs that the recipe plans, by id and by request, for all seeds of known runs except seeds of trials."""
        found: dict[str, RunSpec] = {}
        for scale, loaded in self.scales.items():
            trials = loaded.grids[scale].seeds if scale in loaded.grids else ()
            seeds = {run.seed for run in self.known if run.seed is not None}
            with contextlib.suppress(UserError):  # its data cannot be identified, so no run was trained on it here
                specs = [
                    spec for spec in plan(loaded, scale, seeds=sorted(seeds - {*trials})) if spec.seed not in trials
                ]
                found |= {name: spec for spec in specs for name in (spec.id, spec.request)}
        return found

    @cached_property
    def passed_over(self) -> set[str]:
        """Ids of the runs at configurations of a grid that were not chosen."""
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
        """The planned run that `run` is; None if it is of another table or has other settings."""
        return self.planned.get(run.id) or (self.planned.get(run.spec.request) if run.spec is not None else None)

    def places(self, run: KnownRun) -> list[Place]:
        """Places of `run` in this table. Names of links are replaced by the recipe's, if it has them."""
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
