"""Which runs a selector means: a path, the beginning of an id, or `recipe:row:column:seed`. Torch-free.

Parts after the recipe may be left out from the end, and any of them may be empty: `table3:pre-ln`, `table3::c4/130m`.
Runs with other settings than the recipe's are those of `table3@steps-12:pre-ln`, or of `table3:pre-ln` with `--set`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import typer

from comt_cli.commands.options import OfRuns
from comt_cli.errors import UserError
from comt_cli.recipe.find import also_called, available_recipes, full_name, split_variant
from comt_cli.recipe.problems import nearest
from comt_cli.report.collect import ENDED, collect
from comt_cli.report.run_list import described, settings_text
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.known import KnownRun, Place, Standing, adopt_contents, known_runs
from comt_cli.runs.plan import plan
from comt_cli.tasks import FIRST
from comt_cli.verbs.table import SelectedTable, dashed, recipes_by_name
from comt_cli.words import plural

_ID = re.compile(r"[0-9a-f]{3,12}(\.replaced-\d+)?")
_MOST_LISTED = 12
_FORM = "A run is recipe:row:column:seed."


def model_source(text: str, of: OfRuns) -> str:
    """What a verb that takes a checkpoint loads: `text` as it is where it is a path, or a name of the hub's, else the
    folder of the one run that it selects, which is named on the error stream. Raises `UserError` where no run or
    several are so."""
    if (found := _with_checkpoints(text, of)) is None:
        return text
    if len(found.runs) > 1:
        raise _several(text, found.runs)
    found.tell(text)
    return str(found.runs[0].directory.shown)


def run_directories(texts: Sequence[str], of: OfRuns) -> list[RunDirectory]:
    """The run directories of a verb that takes several: of paths, and of every run that a selector means. Raises
    `UserError` where a selector means no run, or a path is none."""
    directories = []
    for text in texts:
        if (found := _with_checkpoints(text, of)) is not None:
            found.tell(text)
            directories += [RunDirectory(run.directory.shown) for run in found.runs]
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
    selection = select_runs(text, of)
    chosen = [run for run in selection.planned or selection.runs if run.id not in selection.passed_over]
    current = [run for run in chosen if not run.is_replaced] or chosen
    trained = {run.spec.model_copy(update={"seed": 0}).request for run in current if run.spec is not None}
    if len(trained) > 1 or len({run.seed for run in current}) < len(current):
        raise _several(text, current)
    replace(selection, runs=current).tell(text, each=False)
    return [run.directory for run in current]


def _several(text: str, found: Sequence[KnownRun]) -> UserError:
    return UserError(
        f"{text} could be any of {len(found)} runs\n{_listing(found, text)}",
        "Say more: recipe@settings:row:column:seed, --scale, --set, or the beginning of an id.",
    )


def _with_checkpoints(text: str, of: OfRuns) -> SelectedRuns | None:
    """The runs of a selector whose weights can be loaded, the likeliest alone; None where `text` is no selector. Those
    that are done come before the others, and those that the recipe, as it is, would train before those of other
    settings or seeds. Of a grid, those that its table shows."""
    if Path(text).exists() or not is_selector(text):
        return None
    selection = select_runs(text, of)
    done = [run for run in selection.runs if run.has_checkpoint and (_is_id(text) or not run.is_replaced)]
    if not done:
        raise UserError(f"{text} has saved no checkpoint yet\n{_listing(selection.runs, text)}", "Train it first.")
    usable = done
    done = [run for run in done if run.standing is Standing.done] or done
    done = [run for run in done if run in selection.planned] or done
    done = [run for run in done if run in selection.usual] or done
    done = [run for run in done if run.id not in selection.passed_over] or done
    if any(run.id in selection.waited_for for run in done):
        listed = [run for run in usable if run.id in selection.waited_for]
        seeds = sorted({seed for run in done for seed in selection.waited_for.get(run.id, ())})
        raise UserError(
            f"{text} could be any of {plural(len(listed), 'run')} of a grid: nothing is chosen before all runs of the "
            f"cell have ended\n{_listing(listed, text)}",
            f"Say which: the beginning of its id.\n  Of its cell --seeds {','.join(map(str, seeds))} has not ended.",
        )
    return replace(selection, runs=done)


def is_selector(text: str) -> bool:
    """Whether `text`, which is no path, has the form of a selector, or is the name of a recipe."""
    return ":" in text or _is_recipe(text) or _is_id(text)


def _is_id(text: str) -> bool:
    return bool(_ID.fullmatch(text)) and not _is_recipe(text)


def _is_recipe(text: str) -> bool:
    return full_name(split_variant(text)[0]) in available_recipes()


@dataclass(frozen=True)
class SelectedRuns:
    """The runs that a selector means, as they are there. `planned` of them have the settings that its recipe, or the
    selector, asks for, on the data that is prepared here, else on any; `usual` of these have the recipe's seeds. Of a
    grid, `passed_over` are those of points that were not chosen, and trials; `waited_for` those of cells whose choice
    is open, with the seeds of the cell that have runs to end."""

    runs: list[KnownRun]
    planned: list[KnownRun]
    passed_over: frozenset[str] = frozenset()
    waited_for: dict[str, list[int]] = field(default_factory=dict)
    usual: list[KnownRun] = field(default_factory=list)

    def tell(self, text: str, *, each: bool = True) -> None:
        """Say which runs are taken, unless `each` is false, and in which settings they differ from what the selector
        says, or the recipe where it says none."""
        for run in self.runs if each else ():
            typer.echo(f"comt: {text} is {run.directory.shown}", err=True)
        others = _described([run for run in self.runs if run not in self.planned], text)
        for settings in dict.fromkeys(settings_text(row) for _, row in others):
            if settings:
                typer.echo(f"comt: {text} was trained with {settings}, unlike the recipe", err=True)


def select_runs(text: str, of: OfRuns) -> SelectedRuns:
    """Every run that `text`, which is no path, means; those set aside too. With changed settings, in the selector or by
    `--set`, those of the table with just these. Raises `UserError` where there is none; says what there is."""
    if _is_id(text):
        return SelectedRuns(_by_id(text, of.runs), [])
    table = SelectedTable.called(text, of.runs, of.scale, of.set_ or ())
    wanted = _Wanted.parsed(text)
    matching = [run for run in table.known if any(wanted.fits(place, run.seed) for place in table.places(run))]
    found = table.having([run for run in matching if of.scale in (None, run.label("scale"))])
    if not found:
        raise _nothing(text, wanted, table, matching, of)
    exactly = [run for run in found if run.id in table.planned]
    planned = exactly or [run for run in found if table.plans(run) is not None]
    specs = [(run, table.plans(run)) for run in planned]
    usual = [run for run, spec in specs if spec is not None and spec.seed in table.seeds(spec.scale)]
    return SelectedRuns(found, planned, *_of_grids(table, of.runs), usual)


def _of_grids(table: SelectedTable, runs: Path) -> tuple[frozenset[str], dict[str, list[int]]]:
    """`SelectedRuns.passed_over` and `waited_for`, as the table shows them with the seeds of its recipe."""
    passed_over: set[str] = set()
    waited_for: dict[str, list[int]] = {}
    for scale, loaded in table.scales.items():
        if (grid := loaded.grids.get(scale)) is None:
            continue
        try:
            specs = adopt_contents(plan(loaded, scale), runs, ambiguous=True)
        except UserError:  # its data cannot be identified here
            continue
        if grid.seeds:  # no table shows a trial; what is left of the plan is at the recipe's values
            passed_over |= {spec.id for spec in specs if spec.seed in grid.seeds}
            continue
        for cell in collect(specs, runs, choose_by=grid.metric).cells.values():
            left = sorted({run.spec.seed for run in cell.every if run.state not in ENDED})
            for run in cell.every:
                if run.chosen is None:
                    waited_for[run.spec.id] = left
                elif not run.chosen:
                    passed_over.add(run.spec.id)
    return frozenset(passed_over), waited_for


def runs_of_table(text: str, runs: Path) -> list[tuple[KnownRun, Place]]:
    """The runs that a recipe, or a selector, means, whatever they were trained with, each with its place there. Raises
    `UserError` where there is neither such a recipe nor a run of its table, or it has no such row or column."""
    table, wanted = SelectedTable.called(text, runs, None), _Wanted.parsed(text)
    _check_names(text, wanted, table)
    found = table.having(table.known)
    return [(run, place) for run in found for place in table.places(run) if wanted.fits(place, run.seed)]


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
        if len(parts) > 3:
            raise UserError(f"{text} has too many parts", _FORM)
        row, column, seed = (*parts, "", "", "")[:3]
        if not re.fullmatch("[0-9]{0,10}", seed):
            raise UserError(f"{text}: the seed {seed!r} is no whole number", _FORM)
        return cls(row, column, seed)

    def fits(self, place: Place, seed: int | None) -> bool:
        """Whether a run that stands there is meant."""
        names = ((self.row, place.row), (self.column, place.column))
        is_there = all(not name or dashed(name) == dashed(there) for name, there in names)
        return is_there and (not self.seed or int(self.seed) == seed)


def _nothing(text: str, wanted: _Wanted, table: SelectedTable, others: Sequence[KnownRun], of: OfRuns) -> UserError:
    """Why a selector means no run: the scale is wrong, or nothing of it was trained. Raises it where a name is."""
    _check_names(text, wanted, table)
    if others:
        of_scale = of.scale is None or any(run.label("scale") == of.scale for run in others)
        missing = f"with {', '.join(table.overrides)}" if of_scale else f"of scale {of.scale}"
        said = f"{text} has no run {missing}; there are others\n{_listing(others, text)}"
        return UserError(said, f"Leave --{'set' if of_scale else 'scale'} out, or give theirs.")
    there = [run for run in table.known if table.places(run)]
    verb = next((run.label("command") for run in there), FIRST)
    recipe = table.name
    if table.loaded is not None:
        verb, recipe = table.loaded.recipe.command, table.loaded.file
    hint = f"comt {verb} --recipe {recipe} trains them, --runs DIR looks elsewhere."
    if there:
        return UserError(f"no run below {of.runs} is {text}; of {table.name} there are\n{_listing(there, text)}", hint)
    return UserError(f"no run of {table.name} is below {of.runs}", hint + _namesakes_of(text))


def _check_names(text: str, wanted: _Wanted, table: SelectedTable) -> None:
    """Raise `UserError` where a selector names a row or a column that neither the recipe nor a run of its table has."""
    places = [place for run in table.known for place in table.places(run)]
    rows = [*table.names[0], *(place.row for place in places)]
    columns = [*table.names[1], *(place.column for place in places)]
    for what, name, valid in (("row", wanted.row, rows), ("column", wanted.column, columns)):
        if name and dashed(name) not in map(dashed, valid):
            hint = nearest(name, dict.fromkeys(valid)) + _namesakes_of(text)
            raise UserError(f"{text}: {table.name} has no {what} {name!r}", hint)


def _namesakes_of(text: str) -> str:
    """A line of a hint with the other recipes that a selector's name might have meant; "" where there is none."""
    others = also_called(text.partition(":")[0])
    return "" if others is None else f"\n  {others}"


def _listing(found: Sequence[KnownRun], text: str) -> str:
    """A line for each run: its folder's name, the selector of its place, scale, settings that are not the recipe's,
    state, and time."""
    lines = []
    for run, row in _described(found[:_MOST_LISTED], text):
        seed = "?" if run.seed is None else run.seed
        name = f"{run.home.recipe}:{run.home.row}:{run.home.column}:{seed}"
        when = row["written"].replace("T", " ")[:16]
        said = ", ".join(filter(None, [run.label("scale"), settings_text(row), str(run.standing)]))
        lines.append(f"  {run.name}  {name}  {said}, {when}")
    if len(found) > _MOST_LISTED:
        lines.append(f"  ... and {len(found) - _MOST_LISTED} more (comt runs lists them)")
    return "\n".join(lines)


def _described(found: Sequence[KnownRun], text: str) -> list[tuple[KnownRun, dict[str, Any]]]:
    """Runs with what `comt runs` says of them, the point of a grid that they were trained at among the settings."""
    runs, recipe_of = {run.name: run for run in found}, recipes_by_name([text.partition(":")[0]], {})
    rows = {row["name"]: row for row in described([(run, run.home) for run in found], recipe_of)}
    for name, row in rows.items():
        spec = runs[name].spec
        row["settings"] = {**(row["settings"] or {}), **(spec.point if spec is not None else {})}
    return [(runs[name], row) for name, row in rows.items()]
