"""Selectors of runs: a path, the beginning of an id, or `recipe:row:column:seed`. Torch-free.

Parts after the recipe may be left out from the end, and any of them may be empty: `table3:pre-ln`, `table3::c4/130m`.
Runs with other settings than the recipe's are those of `table3@steps-12:pre-ln`, or of `table3:pre-ln` with `--set`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import typer

from comt_cli.commands.options import OfRuns
from comt_cli.errors import UserError
from comt_cli.recipe.find import MARK, also_called, available_recipes, full_name, split_variant
from comt_cli.recipe.problems import nearest
from comt_cli.report.collect import collect
from comt_cli.report.run_list import described, settings_text
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.known import KnownRun, Place, Standing, adopt_contents, known_runs
from comt_cli.runs.plan import plan
from comt_cli.verbs.table import SelectedTable, dashed, recipes_by_name

_ID = re.compile(r"[0-9a-f]{3,12}(\.replaced-\d+)?")
_MOST_LISTED = 12


def model_source(text: str, of: OfRuns) -> str:
    """The model of a verb that takes a checkpoint: `text` as it is where it is a path, or a name of the hub's, else the
    folder of the one run that it selects, which is named on the error stream. Raises `UserError` where no run or
    several are so."""
    if (selected := _with_checkpoints(text, of)) is None:
        return text
    if len(selected.runs) > 1:
        raise _several(text, selected.runs)
    selected.tell(text)
    return str(selected.runs[0].directory.shown)


def run_directories(texts: Sequence[str], of: OfRuns) -> list[RunDirectory]:
    """The run directories of a verb that takes several: of paths, and of every run that a selector means. Raises
    `UserError` where a selector means no run, or a path is none."""
    directories = []
    for text in texts:
        if (selected := _with_checkpoints(text, of)) is not None:
            selected.tell(text)
            directories += [RunDirectory(run.directory.shown) for run in selected.runs]
        else:
            directories.append(_at(Path(text)))
    for directory in directories:
        directory.spec()
    return directories


def _at(path: Path) -> RunDirectory:
    return RunDirectory(path.parent if path.is_file() else path)


def cell_directories(text: str, of: OfRuns) -> list[RunDirectory]:
    """The run at a path, or those of the cell that a selector means, one a seed, whatever became of them: a seed that
    diverged must not be passed over. Those with the recipe's settings if there are any; others are said. Raises
    `UserError` where it means no run, or those of several cells or settings."""
    if Path(text).exists() or not is_selector(text):
        return [_at(Path(text))]
    selected = select_runs(text, of)
    chosen = [run for run in selected.planned or selected.runs if run.id not in selected.passed_over]
    current = [run for run in chosen if not run.is_replaced] or chosen
    trained = {run.spec.model_copy(update={"seed": 0}).request for run in current if run.spec is not None}
    if len(trained) > 1 or len({run.seed for run in current}) < len(current):
        raise _several(text, current)
    Selected(current, selected.planned).tell(text, each=False)
    return [run.directory for run in current]


def _several(text: str, found: Sequence[KnownRun]) -> UserError:
    return UserError(
        f"{text} could be any of {len(found)} runs\n{_listing(found, text)}",
        "Say more: recipe@settings:row:column:seed, --scale, --set, or the beginning of an id.",
    )


def is_selector(text: str) -> bool:
    """Whether `text`, which is no path, has the form of a selector, or is the name of a recipe."""
    return ":" in text or _is_recipe(text) or _is_id(text)


def _is_id(text: str) -> bool:
    return bool(_ID.fullmatch(text)) and not _is_recipe(text)


def _is_recipe(text: str) -> bool:
    return full_name(split_variant(text)[0]) in available_recipes()


@dataclass(frozen=True)
class Selected:
    """The runs that a selector means. `planned` of them have the settings that its recipe, or the selector, asks for,
    on the data that is prepared here, else on any; `usual` of these have the recipe's seeds. `passed_over` are the ids
    of points of a grid that were not chosen, and of trials."""

    runs: list[KnownRun]
    planned: Sequence[KnownRun] = ()
    usual: Sequence[KnownRun] = ()
    passed_over: frozenset[str] = frozenset()

    def tell(self, text: str, *, each: bool = True) -> None:
        """Say which runs are taken, unless `each` is false, and in which settings they differ from the selector's."""
        for run in self.runs if each else ():
            typer.echo(f"comt: {text} is {run.directory.shown}", err=True)
        others = _described([run for run in self.runs if run not in self.planned], text)
        for settings in dict.fromkeys(settings_text(row) for _, row in others):
            if settings:
                typer.echo(f"comt: {text} was trained with {settings}, unlike the recipe", err=True)


def _with_checkpoints(text: str, of: OfRuns) -> Selected | None:
    """The runs of a selector whose weights can be loaded, the likeliest alone; None where `text` is no selector. Those
    that are done come before the others, and those that the recipe, as it is, would train before those of other
    settings or seeds. Of a grid, those that its table shows."""
    if Path(text).exists() or not is_selector(text):
        return None
    selected = select_runs(text, of)
    loadable = [run for run in selected.runs if run.has_checkpoint and (_is_id(text) or not run.is_replaced)]
    if not loadable:
        raise UserError(f"{text} has saved no checkpoint yet\n{_listing(selected.runs, text)}", "Train it first.")

    def rank(run: KnownRun) -> tuple[bool, ...]:
        unplanned, unusual = run not in selected.planned, run not in selected.usual
        return run.standing is not Standing.done, unplanned, unusual, run.id in selected.passed_over

    best = min(map(rank, loadable))
    return Selected([run for run in loadable if rank(run) == best], selected.planned)


def select_runs(text: str, of: OfRuns) -> Selected:
    """Every run that `text`, which is no path, means; those set aside too. With changed settings, in the selector or by
    `--set`, those of the table with just these. Raises `UserError` where there is none; says what there is."""
    if _is_id(text):
        return Selected(_by_id(text, of.runs))
    try:
        table = SelectedTable.called(text, of.runs, of.scale, of.set_ or ())
    except UserError:
        found = [run for run, _ in _by_table(text, of.runs) if of.scale in (None, run.label("scale"))]
        if not found or of.set_:
            raise
        return Selected(list({run.name: run for run in found}.values()))
    wanted = _Wanted.parsed(text)
    matching = [run for run in table.known if any(wanted.fits(place, run.seed) for place in table.places(run))]
    found = table.having([run for run in matching if of.scale in (None, run.label("scale"))])
    if not found:
        raise _nothing(text, wanted, table, matching, of)
    planned = [run for run in found if run.id in table.planned] or [run for run in found if table.plans(run)]
    specs = [(run, table.plans(run)) for run in planned]
    usual = [run for run, spec in specs if spec is not None and spec.seed in table.seeds(spec.scale)]
    return Selected(found, planned, usual, _passed_over(table, of.runs))


def _passed_over(table: SelectedTable, runs: Path) -> frozenset[str]:
    found: set[str] = set()
    for scale, loaded in table.scales.items():
        if (grid := loaded.grids.get(scale)) is None:
            continue
        try:
            specs = adopt_contents(plan(loaded, scale), runs, ambiguous=True)
        except UserError:  # its data cannot be identified here
            continue
        if grid.seeds:  # no table shows a trial; what is left of the plan is at the recipe's values
            found |= {spec.id for spec in specs if spec.seed in grid.seeds}
        else:
            every = collect(specs, runs, choose_by=grid.metric).runs()
            found |= {run.spec.id for run in every if run.chosen is False}
    return frozenset(found)


def runs_of_table(text: str, runs: Path) -> list[tuple[KnownRun, Place]]:
    """The runs that a recipe, or a selector, means, whatever they were trained with, each with its place there. Raises
    `UserError` where there is no such recipe, or it has no such row or column."""
    try:
        table, wanted = SelectedTable.called(text, runs, None), _Wanted.parsed(text)
    except UserError:
        if known := _by_table(text, runs):
            return known
        raise
    _check_names(text, wanted, table)
    found = table.having(table.known)
    return [(run, place) for run in found for place in table.places(run) if wanted.fits(place, run.seed)]


def _by_table(text: str, runs: Path) -> list[tuple[KnownRun, Place]]:
    """The runs of a table whose recipe no name can reach, such as `own/mine`, each with its place there."""
    name, variant = split_variant(text.partition(":")[0])
    table, wanted = full_name(name), _Wanted.parsed(text)
    return [
        (run, place)
        for run in known_runs(runs)
        for place in (run.home, *run.elsewhere)
        if place.recipe == table and wanted.fits(place, run.seed)
        if not variant or f"{table}{MARK}{variant}" in run.variants
    ]


def _by_id(text: str, runs: Path) -> list[KnownRun]:
    every = known_runs(runs)
    found = [run for run in every if run.name == text]
    found = found or [run for run in every if run.name.startswith(text) and not run.is_replaced]
    if len(found) > 1:
        message = f"{len(found)} runs have ids that begin with {text}\n{_listing(found, text)}"
        raise UserError(message, "Give more of the id.")
    if not found:
        there = f"\n{_listing(every, text)}" if every else ""
        raise UserError(f"no run below {runs} has an id that begins with {text}{there}", "comt runs lists them all.")
    return found


class _Wanted(NamedTuple):
    """The parts of a selector after its recipe, "" where they are left out."""

    row: str
    column: str
    seed: str

    @classmethod
    def parsed(cls, text: str) -> _Wanted:
        """Raises `UserError` where it has too many parts, or the seed is no number."""
        parts = text.split(":")[1:]
        row, column, seed = (*parts, "", "", "")[:3]
        if len(parts) > 3 or not re.fullmatch("[0-9]{0,10}", seed):
            wrong = "has too many parts" if len(parts) > 3 else f"has a seed {seed!r} that is no whole number"
            raise UserError(f"{text} {wrong}", "A run is recipe:row:column:seed.")
        return cls(row, column, seed)

    def fits(self, place: Place, seed: int | None) -> bool:
        """Whether a run that stands there is meant."""
        names = ((self.row, place.row), (self.column, place.column))
        is_there = all(not name or dashed(name) == dashed(there) for name, there in names)
        return is_there and (not self.seed or int(self.seed) == seed)


def _nothing(text: str, wanted: _Wanted, table: SelectedTable, others: Sequence[KnownRun], of: OfRuns) -> UserError:
    """Why a selector means no run, with those of other scales or settings, or of its table. Raises it where it names
    what is not there."""
    _check_names(text, wanted, table)
    loaded, there = table.loaded, others or [run for run in table.known if table.places(run)]
    hint = f"comt {loaded.recipe.command} --recipe {loaded.file} trains them, --runs DIR looks elsewhere."
    if others:
        hint = "Leave --scale and --set out, or give those of these runs."
    if not there:
        return UserError(f"no run of {loaded.name} is below {of.runs}", hint + _namesakes_of(text))
    return UserError(f"no run below {of.runs} is {text}; of {loaded.name} there are\n{_listing(there, text)}", hint)


def _check_names(text: str, wanted: _Wanted, table: SelectedTable) -> None:
    """Raise `UserError` where a selector names a row or a column that neither the recipe nor a run of its table has."""
    places = [place for run in table.known for place in table.places(run)]
    rows = [*table.names[0], *(place.row for place in places)]
    columns = [*table.names[1], *(place.column for place in places)]
    for what, name, valid in (("row", wanted.row, rows), ("column", wanted.column, columns)):
        if name and dashed(name) not in map(dashed, valid):
            hint = nearest(name, dict.fromkeys(valid)) + _namesakes_of(text)
            raise UserError(f"{text}: {table.loaded.name} has no {what} {name!r}", hint)


def _namesakes_of(text: str) -> str:
    """A line of a hint with the other recipes that a selector's name might have meant; "" where there is none."""
    others = also_called(text.partition(":")[0])
    return "" if others is None else f"\n  {others}"


def _listing(found: Sequence[KnownRun], text: str) -> str:
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


def _described(found: Sequence[KnownRun], text: str) -> list[tuple[KnownRun, dict[str, Any]]]:
    """Runs with what `comt runs` says of them, the point of a grid that they were trained at among the settings."""
    runs, recipe_of = {run.name: run for run in found}, recipes_by_name([text.partition(":")[0]])
    rows = described([(run, run.home) for run in found], recipe_of)
    for row in rows:
        spec = runs[row["name"]].spec
        row["settings"] = {**(row["settings"] or {}), **(spec.point if spec is not None else {})}
    return [(runs[row["name"]], row) for row in rows]
