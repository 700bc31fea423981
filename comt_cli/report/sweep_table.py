"""The table of a sweep: every row at the recipe's values, at the baseline's best and at its own best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from comt_cli.report import format
from comt_cli.report.collect import ENDED, Cell, collect
from comt_cli.report.csv_tables import csv_text
from comt_cli.report.markdown import escaped, pipes
from comt_cli.report.statistics import Paired, Summary, paired_difference, summarise
from comt_cli.report.sweep import PLACES, CellName, Place, SweepState, Tuned
from comt_cli.report.table import Table
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import point_in_words
from comt_cli.tasks.base import Metric

NOTHING = "-"


@dataclass(frozen=True)
class SweepEntry:
    """A cell of the table: its runs at each place, None where its values are not known, and what its trials chose.

    `baselines` are the baseline's runs at the same places (at its own best where the row is at its own), None for the
    baseline itself and where there are none. `shown` is what `metric` names, `verdict` that of the table at every
    row's own best, None where the cell is not in it.
    """

    cell: CellName
    places: Mapping[Place, Cell | None]
    baselines: Mapping[Place, Cell | None]
    tuned: Tuned
    metric: str
    shown: Metric
    verdict: str | None

    def summary(self, place: Place) -> Summary | None:
        """Mean and standard error of the metric over the seeds that are done there."""
        cell = self.places[place]
        return None if cell is None else summarise(list(cell.values(self.metric).values()))

    def difference(self, place: Place) -> Paired | None:
        """To the baseline, paired by seed, in the metric's unit."""
        ours, baseline = self.places[place], self.baselines[place]
        if ours is None or baseline is None:
            return None
        return paired_difference(ours.values(self.metric), baseline.values(self.metric), self.shown.difference)

    def point(self, place: Place) -> Mapping[str, Any] | None:
        """The values that the runs have there; None where they are not known."""
        cell = self.places[place]
        return None if cell is None else cell.runs[0].spec.point


def sweep_entries(state: SweepState, runs: Path, own: Table | None) -> list[SweepEntry]:
    """Every cell of the sweep, columns outermost. `own` is the table at every row's own best, None where no cell has
    one."""
    cells = {
        place: collect([spec for each in shown.values() for spec in each], runs, remarks=False).cells
        for place, shown in state.shown.items()
    }
    columns = dict.fromkeys(column for _, column in state.tuned)
    order = sorted(state.tuned, key=lambda name: list(columns).index(name[1]))
    recipe, found = state.loaded.recipe, []
    for name in order:
        row, column = name
        metric, baseline = recipe.metric_at(state.scale, column), (recipe.baseline, column)
        entry = None if own is None else own.entries.get(name)
        found.append(
            SweepEntry(
                cell=name,
                places={place: cells[place].get(name) for place in PLACES},
                baselines={place: None if row == recipe.baseline else cells[place].get(baseline) for place in PLACES},
                tuned=state.tuned[name],
                metric=metric,
                shown=cast(Metric, state.loaded.task.metrics[metric]),
                verdict=None if entry is None else entry.verdict.value,
            )
        )
    return found


def sweep_csv(entries: Sequence[SweepEntry], state: SweepState) -> str:
    """`sweep_records` as CSV."""
    return csv_text(sweep_records(entries, state))


def sweep_records(entries: Sequence[SweepEntry], state: SweepState) -> list[dict[str, Any]]:
    """One dictionary a cell: for each place the values, the mean, its standard error and n, and the difference to the
    baseline there with its 95 % interval; then the trials."""
    lines = []
    for entry in entries:
        line: dict[str, Any] = {"row": entry.cell[0], "column": entry.cell[1], "metric": entry.metric}
        for place in PLACES:
            point, ours = entry.point(place) or {}, entry.summary(place)
            line |= {f"{place}.{key}": point.get(key) for key in state.grid.values}
            line |= {f"{place}.mean": ours and ours.mean, f"{place}.stderr": ours and ours.stderr}
            line[f"{place}.n"] = ours.n if ours else 0
            apart = entry.difference(place)
            line[f"{place}.difference_{entry.shown.difference.name}"] = apart and apart.mean
            line |= {f"{place}.interval_low": apart and apart.low, f"{place}.interval_high": apart and apart.high}
        runs = entry.tuned.runs
        line |= {"trials": len(runs), "trials_ended": sum(run.state in ENDED for run in runs)}
        line["trials_diverged"] = sum(run.state is RunState.diverged for run in runs)
        lines.append(line | {"verdict": entry.verdict, "problem": entry.tuned.problem})
    return lines


def sweep_texts(entries: Sequence[SweepEntry], state: SweepState) -> list[list[str]]:
    """The table as texts, the headings first."""
    several = len({entry.cell[1] for entry in entries}) > 1
    head = ["method", *(["column"] if several else [])]
    signs = "/".join(dict.fromkeys(entry.shown.difference.sign for entry in entries))
    for said in PLACES.values():
        head += [f"at {said}", f"vs {state.loaded.recipe.baseline}, {signs} [95 %]"]
    head += ["best of the trials", "trials (n)", "verdict at own best"]
    lines = [head]
    for entry in entries:
        row, column = entry.cell
        texts = [row, *([column] if several else [])]
        for place in PLACES:
            ours, apart, cell = entry.summary(place), entry.difference(place), entry.places[place]
            state_of = NOTHING if cell is None else cell.state
            texts.append(format.summary(ours, entry.shown.decimals) if ours else state_of)
            texts.append(NOTHING if apart is None else format.difference(apart))
        lines.append([*texts, _best(entry.tuned), _trials(entry.tuned), entry.verdict or NOTHING])
    return lines


def _best(tuned: Tuned) -> str:
    if tuned.point is None:
        return "none" if tuned.problem else NOTHING
    return point_in_words(tuned.point) + (", at the edge" if tuned.problem else "")


def _trials(tuned: Tuned) -> str:
    """`10`, or `4 of 10`; and how many diverged."""
    runs = tuned.runs
    ended, lost = (sum(run.state in states for run in runs) for states in (ENDED, (RunState.diverged,)))
    count = str(len(runs)) if ended == len(runs) else f"{ended} of {len(runs)}"
    return f"{count}, {lost} diverged" if lost else count


def sweep_words(entries: Sequence[SweepEntry], state: SweepState) -> list[str]:
    """How the table is made, in sentences; then the problems, and where the grid lacks a better value."""
    grid, recipe = state.grid, state.loaded.recipe
    tried = "; ".join(f"{key} {format.listing(str(each) for each, _ in given)}" for key, given in grid.values.items())
    at_recipe = {point_in_words(specs[0].point) for specs in state.shown["recipe"].values()}
    return [
        f"The same grid for every row: {tried}. Trials (seeds {format.seeds(grid.seeds)}) choose by their mean "
        f"{grid.metric} on validation data.",
        f"The numbers are of the seeds {format.seeds(state.seeds)}: mean ± standard error (n). The recipe's values: "
        f"{format.listing(sorted(at_recipe))}. The baseline is {recipe.baseline}; differences to it are paired by "
        "seed, at its own best where a row is at its own.",
        *(f"Not chosen: {problem}." for problem in state.problems.values()),
        *filter(None, map(_lacking, entries)),
    ]


def _lacking(entry: SweepEntry) -> str | None:
    """That the recipe's values are none of the grid's, and better than the best of them."""
    point, ours, own = entry.point("recipe"), entry.summary("recipe"), entry.summary("own")
    better = 1 if entry.shown.better == "higher" else -1
    if point is None or ours is None or own is None or better * (ours.mean - own.mean) <= 0:
        return None
    if any(each.point == point for each in entry.tuned.tried):
        return None
    apart = f"{format.value(ours.mean, entry.shown.decimals)} against {format.value(own.mean, entry.shown.decimals)}"
    named = f"{entry.cell[0]} at {entry.cell[1]}"
    return (
        f"The recipe's {point_in_words(point)} is not in the grid, and better for {named} than its own best: {apart}."
    )


def sweep_markdown(entries: Sequence[SweepEntry], state: SweepState) -> str:
    """The table as a page."""
    title = escaped(f"{state.loaded.recipe.title}: sweep")
    return (
        "\n\n".join([f"# {title}", *map(escaped, sweep_words(entries, state)), pipes(sweep_texts(entries, state))])
        + "\n"
    )
