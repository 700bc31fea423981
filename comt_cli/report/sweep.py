"""A sweep with trials: what they chose for every cell, and which runs are shown at what was chosen.

The trials have seeds of their own and are compared on validation data. Each cell's runs are shown three times: at the
recipe's own values, at the baseline's best and at the cell's own best. A best at the edge of the grid is no optimum:
such a cell has a problem instead of a choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from comt_cli.recipe.grid import LoadedGrid
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.report.collect import ENDED, Cell, Run, by_point, collect, mean_of
from comt_cli.report.frame import cell_records, frame_of, table_info
from comt_cli.runs.plan import RunSpec, chosen_runs

if TYPE_CHECKING:
    import pandas as pd

Place = Literal["recipe", "baseline", "own"]
PLACES: dict[Place, str] = {"recipe": "the recipe's", "baseline": "the baseline's best", "own": "its own best"}
"""At which values the runs of a cell are shown."""
CellName = tuple[str, str]
"""Row and column."""


@dataclass(frozen=True)
class Tried:
    """A point of a cell's grid: its trials, and the mean of what decides; None where one diverged, has no value, or
    has not ended."""

    point: Mapping[str, Any]
    runs: tuple[Run, ...]
    mean: float | None


@dataclass(frozen=True)
class Tuned:
    """What the trials of a cell come to: every point in the order of the grid, the number of the `best`, None while a
    trial has not ended, or where none has a value; and why the best is not taken (`problem`)."""

    tried: tuple[Tried, ...]
    best: int | None = None
    problem: str | None = None

    @property
    def chosen(self) -> int | None:
        """The number of the point that is taken, as `LoadedGrid.planned` counts them; None where none is."""
        return None if self.best is None or self.problem is not None else self.best + 1

    @property
    def point(self) -> Mapping[str, Any] | None:
        """The best point; also one that is not taken."""
        return None if self.best is None else self.tried[self.best].point


@dataclass(frozen=True)
class SweepState:
    """A sweep as it stands: `shown` has the runs of every place whose values are known."""

    loaded: LoadedRecipe
    scale: str
    seeds: tuple[int, ...]
    tuned: dict[CellName, Tuned]
    trials: list[RunSpec]
    shown: dict[Place, dict[CellName, list[RunSpec]]] = field(default_factory=dict)

    @property
    def grid(self) -> LoadedGrid:
        """What is tried."""
        return self.loaded.grids[self.scale]

    @property
    def specs(self) -> list[RunSpec]:
        """All runs that are known by now: the trials, then those that are shown, each once."""
        every = [*self.trials, *(spec for cells in self.shown.values() for specs in cells.values() for spec in specs)]
        return list({spec.request: spec for spec in every}.values())

    @property
    def problems(self) -> dict[CellName, str]:
        """Why cells have no choice though their trials have ended."""
        return {cell: tuned.problem for cell, tuned in self.tuned.items() if tuned.problem is not None}

    @property
    def at_most(self) -> list[RunSpec]:
        """`specs`, and for every choice that is open runs that cost what the chosen ones will."""
        baseline, specs = self.loaded.recipe.baseline, self.specs
        known = {spec.request for spec in specs}
        for cell in self.shown["recipe"]:
            wanted = sum(cell not in self.shown[place] for place in ("baseline", "own"))
            wanted = min(wanted, 1 if cell[0] == baseline else 2)
            for number in range(1, len(self.grid.planned)):
                [stand_ins] = chosen_runs(self.loaded, self.scale, {cell: number}, self.seeds).values()
                if wanted and not known & {spec.request for spec in stand_ins}:
                    specs += stand_ins
                    wanted -= 1
        return specs


def read_sweep(loaded: LoadedRecipe, scale: str, specs: Sequence[RunSpec], runs: Path) -> SweepState:
    """The sweep of a plan (`runs.plan.plan`), from the run directories below `runs`. A baseline that the plan has for
    its trials alone is not shown."""
    grid = loaded.grids[scale]
    trials = [spec for spec in specs if spec.seed in grid.seeds]
    at_recipe: dict[CellName, list[RunSpec]] = {}
    for spec in specs:
        if spec.seed not in grid.seeds:
            at_recipe.setdefault((spec.row, spec.column), []).append(spec)
    cells = collect(trials, runs, remarks=False).cells
    tuned = {name: tuned_cell(cell, grid) for name, cell in cells.items()}
    chosen = {name: each.chosen for name, each in tuned.items() if each.chosen is not None}
    own = {name: number for name, number in chosen.items() if name in at_recipe}
    baseline = {column: number for (row, column), number in chosen.items() if row == loaded.recipe.baseline}
    at_baseline = {(row, column): baseline[column] for row, column in at_recipe if column in baseline}
    seeds = tuple(dict.fromkeys(spec.seed for each in at_recipe.values() for spec in each))
    shown: dict[Place, dict[CellName, list[RunSpec]]] = {
        "recipe": at_recipe,
        "baseline": chosen_runs(loaded, scale, at_baseline, seeds),
        "own": chosen_runs(loaded, scale, own, seeds),
    }
    contents = {spec.data_fingerprint: spec.data_content for spec in specs if spec.data_content is not None}
    for place in ("baseline", "own"):  # of data that is not prepared here the trials know the content
        for name, each in shown[place].items():
            shown[place][name] = [spec.with_contents(contents) for spec in each]
    return SweepState(loaded, scale, seeds, tuned, trials, shown)


def whole_columns(chosen: Mapping[CellName, list[RunSpec]]) -> dict[CellName, list[RunSpec]]:
    """The cells that make a table: of the rows that have a choice anywhere, the columns in which all of them have one;
    while there is none, the first column."""
    rows, columns = {row for row, _ in chosen}, list(dict.fromkeys(column for _, column in chosen))
    whole = [column for column in columns if all((row, column) in chosen for row in rows)] or columns[:1]
    return {cell: specs for cell, specs in chosen.items() if cell[1] in whole}


def sweep_frame(state: SweepState, runs: Path) -> pd.DataFrame:
    """The frame of all runs of a sweep: the trials, and at each place the runs that are shown there (`place`)."""
    shown = {place: [spec for specs in each.values() for spec in specs] for place, each in state.shown.items()}
    order, records = list(state.tuned), []
    for place, specs in (("trial", state.trials), *shown.items()):
        cells = collect(specs, runs, remarks=False).cells
        for name in sorted(cells, key=order.index):
            own = cell_records(cells[name], state.loaded.origin)
            if place == "trial":  # point by point, as the table of trials has them
                point_by_point = [run.spec.id for each in state.tuned[name].tried for run in each.runs]
                own.sort(key=lambda each: point_by_point.index(each["id"]))
            records += [{**each, "place": place} for each in own]
    frame = frame_of(records)
    frame.attrs = {"table": table_info(state.loaded, state.trials), "notes": (), "seeds": state.seeds}
    return frame


def tuned_cell(cell: Cell, grid: LoadedGrid) -> Tuned:
    """What the trials of a cell come to: the best mean, of equal ones the nearest to the centre of the grid."""
    first = cell.runs[0].spec
    # By seed, and so every seed's points in the order of the grid.
    tried = tuple(Tried(each[0].spec.point, tuple(each), mean_of(each, grid.metric))
                  for each in by_point(cell.runs).values())  # fmt: skip
    if any(run.state not in ENDED for run in cell.runs):
        return Tuned(tried)
    means = {number: each.mean for number, each in enumerate(tried) if each.mean is not None}
    where = f"{first.row} at {first.column}"
    if not means:
        return Tuned(tried, None, f"{where}: at every value a trial diverged, or has no {grid.metric}: try others")
    sign = 1 if first.task.metrics[grid.metric].better == "lower" else -1

    def off_centre(number: int) -> tuple[list[int], list[float]]:
        """For every key how far the value's rank is from the middle, then the values."""
        own = {key: float(value) for key, value in tried[number].point.items()}
        ranks = {key: sorted({float(each.point[key]) for each in tried}) for key in own}
        apart = [abs(2 * ranks[key].index(value) - len(ranks[key]) + 1) for key, value in own.items()]
        return apart, list(own.values())

    best = min(means, key=lambda number: (sign * means[number], *off_centre(number)))
    return Tuned(tried, best, "; ".join(_at_edges(tried, best, grid, where)) or None)


def _at_edges(tried: Sequence[Tried], best: int, grid: LoadedGrid, where: str) -> Iterator[str]:
    """What is to be tried besides, for every key whose best value is the least or the greatest."""
    for key in grid.values:
        values = sorted({each.point[key] for each in tried})
        value = tried[best].point[key]
        if value not in (values[0], values[-1]):
            continue
        least = value == values[0]
        yield (
            f"{where}: the best {key} of the trials, {value:g}, is the {'least' if least else 'greatest'} that was "
            f"tried; {_wider(key, values if least else values[::-1])}"
        )


def _wider(key: str, values: Sequence[float]) -> str:
    """The grid with one step more, by the ratio of the first two values, beyond the first. Values stay as they were
    given, so that none is trained again. Where that step may leave what the key can be (below 0, or a share of 1 and
    more), only its direction is said."""
    first, second = values[:2]
    beyond = first * first / second if first > 0 and second > 0 else 2 * first - second
    if all(isinstance(each, int) for each in values):
        beyond = math.ceil(beyond) if beyond > first else math.floor(beyond)
    if beyond == first or (all(0 <= each < 1 for each in values) and beyond >= 1) or beyond <= 0 <= min(values):
        return f"give {key} also values {'above' if first > second else 'below'} {first!r}"
    wider = sorted([float(f"{beyond:.4g}") if isinstance(beyond, float) else beyond, *values])
    return f"widen the grid: {key}: [{', '.join(map(repr, wider))}]"
