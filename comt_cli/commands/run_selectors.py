"""Which runs a selector means: a path, the beginning of an id, or `recipe:row:column:seed`. Torch-free.

Parts after the recipe may be left out from the end, and any of them may be empty: `table3:pre-ln`, `table3::c4/130m`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from comt_cli.errors import UserError
from comt_cli.recipe.find import also_called, available_recipes, find_recipe, full_name, namesakes
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.recipe.problems import nearest
from comt_cli.runs.known import KnownRun, Place, Standing, known_runs
from comt_cli.runs.plan import RunSpec, point_in_words
from comt_cli.tasks import FIRST
from comt_cli.words import plural

_ID = re.compile(r"[0-9a-f]{3,12}(\.replaced-\d+)?")
_MOST_LISTED = 12


def model_source(text: str, runs: Path, scale: str | None = None) -> str:
    """What a verb that takes a checkpoint loads: `text` as it is where it is a path, or a name of the hub's, else the
    folder of the one run that it selects, which is named on the error stream.

    Raises:
        UserError: it is a selector, and no run or several are so; lists those that it may mean.
    """
    chosen = _with_checkpoints(text, runs, scale)
    if chosen is None:
        return text
    if len(chosen) > 1:
        raise UserError(
            f"{text} could be any of {len(chosen)} runs\n{_listing(chosen)}",
            "Say more: recipe:row:column:seed, --scale, or the beginning of an id.",
        )
    _tell(text, chosen)
    return str(chosen[0].directory.shown)


def run_folders(texts: Sequence[str], runs: Path, scale: str | None = None) -> list[Path]:
    """The run directories of a verb that takes several: paths as they are, and every run that a selector means.

    Raises:
        UserError: a selector means no run.
    """
    folders = []
    for text in texts:
        chosen = _with_checkpoints(text, runs, scale)
        if chosen is not None:
            _tell(text, chosen)
        folders += [Path(text)] if chosen is None else [run.directory.shown for run in chosen]
    return folders


def _tell(text: str, chosen: Iterable[KnownRun]) -> None:
    import typer

    for run in chosen:
        typer.echo(f"comt: {text} is {run.directory.shown}", err=True)


def _with_checkpoints(text: str, runs: Path, scale: str | None) -> list[KnownRun] | None:
    """The runs of a selector whose weights can be loaded, the likeliest alone; None where `text` is no selector.

    Those that are done come before the others, and those that the recipe, as it is, would train before those that were
    trained with other settings. Of a grid, those that its table shows.
    """
    if Path(text).exists() or not is_selector(text):
        return None
    selection = select_runs(text, runs, scale)
    usable = [run for run in selection.runs if run.has_checkpoint and not run.is_replaced]
    if _is_id(text):
        usable = [run for run in selection.runs if run.has_checkpoint]  # also one that was set aside
    if not usable:
        raise UserError(f"{text} has saved no checkpoint yet\n{_listing(selection.runs)}", "Train it first.")
    done = [run for run in usable if run.standing is Standing.done] or usable
    done = [run for run in done if run in selection.planned] or done
    done = [run for run in done if run.id not in selection.passed_over] or done
    if any(run.id in selection.unchosen for run in done):
        listed = [run for run in usable if run.id in selection.unchosen]
        raise UserError(
            f"{text} could be any of {plural(len(listed), 'run')} of a grid: nothing is chosen before all runs of the "
            f"cell have ended\n{_listing(listed, selection.unchosen)}",
            f"Say which: the beginning of its id.{_untrained(selection, done)}",
        )
    return done


def _untrained(selection: SelectedRuns, done: Iterable[KnownRun]) -> str:
    """A line of a hint with the seeds that the grids of the runs' cells wait for, as `--seeds` takes them."""
    seeds = sorted({seed for run in done for seed in selection.waited_for.get(run.id, ())})
    return f"\n  Of its cell --seeds {','.join(map(str, seeds))} has not ended." if seeds else ""


def is_selector(text: str) -> bool:
    """Whether `text`, which is no path, has the form of a selector, or is the name of a recipe."""
    return ":" in text or full_name(text) in available_recipes() or _is_id(text)


def _is_id(text: str) -> bool:
    return bool(_ID.fullmatch(text)) and full_name(text) not in available_recipes()


@dataclass(frozen=True)
class SelectedRuns:
    """The runs that a selector means, as they are there; `planned` of them are what its recipe, as it is, asks for:
    those on the data that is prepared here, else all that were asked the same. Where it has a grid,
    `unchosen` are by id those of cells whose choice is open, with their values of it, and `passed_over` those of points
    that were not chosen, and trials. `waited_for`, by the ids of `unchosen`, is which seeds of the cell have runs to
    end."""

    runs: list[KnownRun]
    planned: list[KnownRun]
    unchosen: dict[str, str] = field(default_factory=dict)
    passed_over: frozenset[str] = frozenset()
    waited_for: dict[str, list[int]] = field(default_factory=dict)


def select_runs(text: str, runs: Path, scale: str | None = None) -> SelectedRuns:
    """Every run below `runs` that `text`, which is no path, means; those set aside too.

    Raises:
        UserError: there is none; says what there is.
    """
    known = known_runs(runs)
    if _is_id(text):
        return SelectedRuns(_by_id(text, known, runs), [])
    table = _Table.called(text, known, scale)
    wanted = _Wanted.parsed(text)
    matching = [run for run in known if any(wanted.fits(place, run.seed) for place in table.places(run))]
    found = [run for run in matching if scale is None or run.label("scale") == scale]
    if not found:
        raise _nothing(text, wanted, table, matching, known, scale, runs)
    exactly = [run for run in found if run.id in table.planned]
    planned = exactly or [run for run in found if table.plans(run) is not None]
    return SelectedRuns(found, planned, *_of_grids(table, runs))


def _of_grids(table: _Table, runs: Path) -> tuple[dict[str, str], frozenset[str], dict[str, list[int]]]:
    """`SelectedRuns.unchosen`, `passed_over` and `waited_for`: what the table, with the seeds of its recipe, shows
    of its grids."""
    from comt_cli.commands.planning import plan_loaded
    from comt_cli.report.collect import ENDED, collect
    from comt_cli.runs.contents import adopt_contents

    unchosen: dict[str, str] = {}
    passed_over: set[str] = set()
    waited_for: dict[str, list[int]] = {}
    loaded = table.loaded
    for scale, grid in loaded.grids.items() if loaded is not None else ():
        if loaded is None or table.scale not in (None, scale):
            continue
        try:
            specs = adopt_contents(plan_loaded(loaded, scale).specs, runs, ambiguous=True)
        except UserError:  # its data cannot be identified here
            continue
        if grid.seeds:  # no table shows a trial; what is left of the plan is at the recipe's values
            passed_over |= {spec.id for spec in specs if spec.seed in grid.seeds}
            continue
        for cell in collect(specs, runs, choose_by=grid.metric).cells.values():
            left = sorted({run.spec.seed for run in cell.every if run.state not in ENDED})
            for run in cell.every:
                if run.chosen is None:
                    unchosen[run.spec.id] = point_in_words(run.spec.point)
                    waited_for[run.spec.id] = left
                elif not run.chosen:
                    passed_over.add(run.spec.id)
    return unchosen, frozenset(passed_over), waited_for


def runs_of_table(text: str, known: Sequence[KnownRun]) -> list[tuple[KnownRun, Place]]:
    """Those of `known` that a recipe, or a selector, means, whatever they were trained with, each with its place there.

    Raises:
        UserError: there is neither such a recipe nor a run of its table, or it has no such row or column.
    """
    table, wanted = _Table.called(text, known, None), _Wanted.parsed(text)
    _check_names(text, wanted, table, known)
    return [(run, place) for run in known for place in table.places(run) if wanted.fits(place, run.seed)]


def _by_id(text: str, known: Iterable[KnownRun], runs: Path) -> list[KnownRun]:
    every = list(known)
    found = [run for run in every if run.name == text] or [
        run for run in every if run.name.startswith(text) and not run.is_replaced
    ]
    if len(found) == 1:
        return found
    if found:
        raise UserError(f"{len(found)} runs have ids that begin with {text}\n{_listing(found)}", "Give more of the id.")
    there = f"\n{_listing(every)}" if every else ""
    raise UserError(f"no run below {runs} has an id that begins with {text}{there}", "comt runs lists them all.")


@dataclass(frozen=True)
class _Wanted:
    """The parts of a selector after its recipe, None where they are left out."""

    row: str | None
    column: str | None
    seed: int | None

    @classmethod
    def parsed(cls, text: str) -> _Wanted:
        """Raises `UserError` where it has too many parts, or the seed is no number."""
        _, *parts = text.split(":")
        row, column, seed, *more = (*parts, "", "", "")
        if any(more[: max(0, len(parts) - 3)]) or len(parts) > 3:
            raise UserError(f"{text} has too many parts", "A run is recipe:row:column:seed.")
        if seed and not (seed.isascii() and seed.isdigit() and len(seed) < 11):
            raise UserError(f"{text}: the seed {seed!r} is no whole number", "A run is recipe:row:column:seed.")
        return cls(row or None, column or None, int(seed) if seed else None)

    def fits(self, place: Place, seed: int | None) -> bool:
        """Whether a run that stands there is meant."""
        return (
            (self.row is None or _dashed(self.row) == _dashed(place.row))
            and (self.column is None or _dashed(self.column) == _dashed(place.column))
            and (self.seed is None or self.seed == seed)
        )


def _dashed(name: str) -> str:
    return name.replace("/", "-")


@dataclass(frozen=True)
class _Table:
    """The table that a selector names: its recipe, if that is there and right, and its place below the runs."""

    paper: str
    table: str
    loaded: LoadedRecipe | None
    scale: str | None

    @classmethod
    def called(cls, text: str, known: Sequence[KnownRun], scale: str | None) -> _Table:
        """The table of a selector. Raises `UserError` where there is neither such a recipe nor a run of its table."""
        from comt_cli.methods import catalogue

        name = text.partition(":")[0]
        tables = dict.fromkeys(table for run in known for table in run.tables)
        try:
            path = find_recipe(name)
        except UserError as error:
            if full_name(name) not in tables:
                others = [table for table in tables if table.rpartition("/")[2] == name]
                hint = f"did you mean {' or '.join(others)}?" if others and not namesakes(name) else error.hint
                raise UserError(f"{text}: there is no recipe, and no table with runs, {name}", hint) from None
            paper, _, table = full_name(name).partition("/")
            return cls(paper, table, None, scale)
        try:
            loaded = load_recipe(path, catalogue())
        except UserError:
            if full_name(name) not in tables:
                raise
            paper, _, table = full_name(name).partition("/")
            return cls(paper, table, None, scale)
        return cls(loaded.folder, loaded.stem, loaded, scale)

    @property
    def name(self) -> str:
        """The recipe's name, `paper/table`."""
        return f"{self.paper}/{self.table}"

    @cached_property
    def planned(self) -> dict[str, RunSpec]:
        """By id, and by request, what the recipe as it is asks for, at the scale that was asked for, or at any."""
        from comt_cli.commands.planning import plan_loaded

        found: dict[str, RunSpec] = {}
        for scale in self.loaded.recipe.scales if self.loaded is not None else ():
            if self.scale in (None, scale) and self.loaded is not None:
                try:
                    specs = plan_loaded(self.loaded, scale).specs
                except UserError:  # its data cannot be identified here: nothing was trained on them here either
                    continue
                found |= {name: spec for spec in specs for name in (spec.id, spec.request)}
        return found

    def plans(self, run: KnownRun) -> RunSpec | None:
        """The run of this table that `run` is; None where it is none, or of other settings."""
        return self.planned.get(run.id) or (self.planned.get(run.spec.request) if run.spec is not None else None)

    def places(self, run: KnownRun) -> list[Place]:
        """Where `run` stands in this table; nothing where it does not. Of a link the names are the recipe's, if it has
        them."""
        found = [run.home] if run.home.recipe == self.name else []
        for place in run.elsewhere:
            if (place.paper, place.table) == (_dashed(self.paper), _dashed(self.table)):
                row, column = self._undashed(place.row, place.column)
                found.append(Place(self.paper, self.table, row, column))
        if (spec := self.plans(run)) is not None:
            found.append(Place(self.paper, self.table, spec.row, spec.column))
        return list(dict.fromkeys(found))

    def _undashed(self, row: str, column: str) -> tuple[str, str]:
        rows, columns = self.names
        return {_dashed(name): name for name in rows}.get(row, row), {_dashed(name): name for name in columns}.get(
            column, column
        )

    @cached_property
    def names(self) -> tuple[list[str], list[str]]:
        """The recipe's rows, and the columns of all its scales."""
        if self.loaded is None:
            return [], []
        scales = self.loaded.recipe.scales
        columns = dict.fromkeys(column for scale in scales for column in self.loaded.columns(scale))
        return list(self.loaded.recipe.rows), list(columns)


def _nothing(
    text: str,
    wanted: _Wanted,
    table: _Table,
    other_scales: Sequence[KnownRun],
    known: Sequence[KnownRun],
    scale: str | None,
    runs: Path,
) -> UserError:
    """Why a selector means no run: the scale is wrong, or nothing of it was trained. Raises it where a name is."""
    _check_names(text, wanted, table, known)
    there = [run for run in known if table.places(run)]
    if other_scales:
        return UserError(
            f"{text} has no run of scale {scale}; there are others\n{_listing(other_scales)}",
            "Leave --scale out, or name theirs.",
        )
    trained_by = next((run.label("command") for run in there), FIRST)
    verb = trained_by if table.loaded is None else table.loaded.recipe.command
    recipe = table.name if table.loaded is None else table.loaded.file
    train = f"comt {verb} --recipe {recipe} trains them, --runs DIR looks elsewhere."
    if there:
        return UserError(f"no run below {runs} is {text}; of {table.name} there are\n{_listing(there)}", train)
    return UserError(f"no run of {table.name} is below {runs}", train + _namesakes_of(text))


def _check_names(text: str, wanted: _Wanted, table: _Table, known: Sequence[KnownRun]) -> None:
    """Raise `UserError` where a selector names a row or a column that neither the recipe nor a run of its table has."""
    places = [place for run in known for place in table.places(run)]
    rows = [*table.names[0], *(place.row for place in places)]
    columns = [*table.names[1], *(place.column for place in places)]
    for what, name, valid in (("row", wanted.row, rows), ("column", wanted.column, columns)):
        if name is not None and _dashed(name) not in map(_dashed, valid):
            hint = nearest(name, dict.fromkeys(valid)) + _namesakes_of(text)
            raise UserError(f"{text}: {table.name} has no {what} {name!r}", hint)


def _namesakes_of(text: str) -> str:
    """A line of a hint with the other recipes that a selector's name might have meant; "" where there is none."""
    others = also_called(text.partition(":")[0])
    return "" if others is None else f"\n  {others}"


def _listing(found: Sequence[KnownRun], points: Mapping[str, str] | None = None) -> str:
    """A line for each run: its folder's name, which means it alone, the selector of its place, its scale and state;
    `points` are values of a grid by id."""
    lines = []
    for run in found[:_MOST_LISTED]:
        seed = "?" if run.seed is None else run.seed
        name = f"{run.home.recipe}:{run.home.row}:{run.home.column}:{seed}"
        point = f"{points[run.id]}, " if points else ""
        lines.append(f"  {run.name}  {name}  {run.label('scale')}, {point}{run.standing}")
    if len(found) > _MOST_LISTED:
        lines.append(f"  ... and {len(found) - _MOST_LISTED} more (comt runs lists them)")
    return "\n".join(lines)
