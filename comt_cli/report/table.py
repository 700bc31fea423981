"""The table: every cell with ours, the paper's, the difference and the verdict. The writers only lay it out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.report.collect import Cell, Collection, Run, collect
from comt_cli.report.costs import Costs
from comt_cli.report.entry import Entry
from comt_cli.report.equal_time import at_equal_time
from comt_cli.report.ladder import Trend, trends
from comt_cli.report.remarks import (
    cell_remarks,
    grid_notes,
    multipliers,
    numerics,
    other_settings,
    selection_notes,
    signatures,
    sizes,
)
from comt_cli.report.statistics import detectable, difference, p_value, paired_difference, summarise
from comt_cli.report.verdict import Outcome, corrected, judge, published_direction
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task
from comt_cli.tasks.base import DifferenceUnit, Metric


@dataclass(frozen=True)
class Table:
    """A table of one recipe at one scale, for the selected rows, columns and seeds. Dictionaries are in table order.

    `paper` and `printed_table` are None where the recipe has no printed number. `folder` and `name` say where the table
    is written; `recipe_file` is the recipe for people, `recipe_origin` its file beyond doubt.
    """

    title: str
    paper: str | None
    printed_table: str | None
    folder: str
    name: str
    recipe_file: str
    recipe_origin: str
    scale: str
    scale_description: str
    task: Task[Any]
    metrics: dict[str, str]
    """What the cells of each column show: a key of the task's metrics."""
    baseline: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    seeds: tuple[int, ...]
    entries: dict[tuple[str, str], Entry]
    specs: dict[str, RunSpec]
    """Of every column the baseline's run (the first row's, where the baseline was not selected)."""
    footnotes: tuple[str, ...]
    notes: tuple[str, ...]
    devices: tuple[str, ...]
    commits: tuple[str, ...]
    contents: tuple[str, ...] = ()
    """The hashes of the data behind the runs that ended."""
    overrides: tuple[str, ...] = ()
    """The settings that `--set` changed, as its arguments."""
    trends: tuple[Trend, ...] = ()
    """Where the recipe is a ladder, each row's gain against compute."""
    costs: Costs | None = None
    """What training steps of its rows cost, where that was measured (`comt bench costs`)."""

    def metric(self, column: str) -> Metric:
        """What the cells of a column show."""
        return self.task.metrics[self.metrics[column]]

    def heading(self, column: str) -> str:
        """Its name; where the runs have another text than the recipe's, with the name of that."""
        corpus, (_, slash, rest) = _corpus(self.specs[column]), column.partition("/")
        is_other = ":" in corpus or any(each.startswith("data.corpus=") for each in self.overrides)
        return f"{corpus}{slash}{rest}" if is_other and slash else column

    def unit(self, column: str) -> DifferenceUnit:
        """The unit of a column's differences to the baseline."""
        return self.metric(column).difference

    def beside(self, column: str) -> Metric | None:
        """The metric that is shown beside a column's; None, too, where another column shows it of the same runs."""
        key, request = self.metric(column).beside, self.specs[column].request
        own = any(self.metrics[name] == key and self.specs[name].request == request for name in self.columns)
        return None if key is None or own else self.task.metrics[key]

    @property
    def shown_metrics(self) -> tuple[str, ...]:
        """The keys of the metrics that its columns show, each once."""
        return tuple(dict.fromkeys(self.metrics[column] for column in self.columns))

    @property
    def has_increases(self) -> bool:
        """Whether the paper prints a parameter increase for any of the cells."""
        return any(entry.paper_increase for entry in self.entries.values())

    def only(self, rows: Iterable[str], columns: Iterable[str]) -> Table:
        """The part of the table that was chosen to be shown; its numbers are those of the whole."""
        chosen, here = set(rows), set(columns)
        entries = {key: entry for key, entry in self.entries.items() if key[0] in chosen and key[1] in here}
        if len(entries) == len(self.entries):
            return self
        footnotes = _Footnotes()
        renumbered = {
            key: replace(entry, marks=tuple(footnotes.mark(self.footnotes[mark - 1]) for mark in entry.marks))
            for key, entry in entries.items()
        }
        return replace(
            self,
            rows=tuple(row for row in self.rows if row in chosen),
            columns=tuple(column for column in self.columns if column in here),
            entries=renumbered,
            footnotes=tuple(footnotes.texts),
            trends=tuple(trend for trend in self.trends if trend.row in chosen),
        )

    def runs(self) -> Iterator[Run]:
        """Every planned run, columns outermost."""
        for column in self.columns:
            for entry in self.column(column):
                yield from entry.cell.every

    def column(self, name: str) -> list[Entry]:
        """The cells of a column, in the order of the rows."""
        return [self.entries[row, name] for row in self.rows]


@dataclass
class _Footnotes:
    """Numbered from 1 in order of appearance; equal texts share a number."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


_OF_PAPER = ("data.", "model.", "train.steps=", "train.batch_size=")
"""How those settings begin that make a run another than the one that the paper's number stands beside."""


def _corpus(spec: RunSpec) -> str:
    return str(getattr(spec.settings.data, "corpus", ""))


def build_table(loaded: LoadedRecipe, specs: Sequence[RunSpec], runs: Path) -> Table:
    """The table of a plan (`runs.plan.plan`, not empty), from the run directories below `runs`.

    Raises:
        UserError: runs of one column were trained on different data.
    """
    recipe = loaded.recipe
    scale, task = specs[0].scale, specs[0].task
    changed = loaded.changed(scale)
    metrics = {column: recipe.metric_at(scale, column) for column in loaded.columns(scale)}
    grid = loaded.grids.get(scale)
    # No paper's number is of a text of one's own (`files:GLOB`), or of another size or length.
    is_published = loaded.is_published and not any(each.startswith(_OF_PAPER) for each in changed)
    is_published = is_published and not any(":" in _corpus(spec) for spec in specs)
    alone = loaded.has_trials(scale)  # beside the runs at one point lie those at others
    collection = collect(specs, runs, metrics, None if grid is None else grid.metric, remarks=not alone)
    collection.check_contents()
    rows = tuple(row for row in recipe.rows if any(spec.row == row for spec in specs))
    columns = tuple(name for name in loaded.columns(scale) if any(spec.column == name for spec in specs))
    shown = [run.spec for cell in collection.cells.values() for run in cell.runs]
    first: dict[tuple[str, str], RunSpec] = {}  # of every cell, and so of a grid the first point
    for spec in specs:
        first.setdefault((spec.row, spec.column), spec)
    footnotes = _Footnotes()
    entries: dict[tuple[str, str], Entry] = {}
    for column in columns:
        key = metrics[column]
        metric = task.metrics[key]
        built = {
            row: _entry(
                loaded,
                collection.cells,
                collection.cells[row, column],
                key,
                metric,
                scale,
                footnotes,
                runs,
                loaded.compared_column(scale, column) if is_published else None,
                # A note is of runs with the recipe's settings.
                None if changed else recipe.rows[row].notes.get(scale),
            )
            for row in rows
        }
        best = _best(list(built.values()), recipe.baseline, metric)
        entries.update({(row, column): replace(entry, best=row in best) for row, entry in built.items()})
    units = {column: task.metrics[metrics[column]].difference for column in columns}
    adjusted = corrected({key: (each.verdict, each.difference, units[key[1]]) for key, each in entries.items()})
    entries = {key: replace(entry, adjusted=adjusted.get(key)) for key, entry in entries.items()}
    return Table(
        title=recipe.title,
        paper=recipe.paper if is_published else None,
        printed_table=recipe.table if is_published else None,
        folder=loaded.folder,
        name=loaded.outputs(scale),
        recipe_file=loaded.file,
        recipe_origin=loaded.origin,
        scale=scale,
        scale_description=recipe.scales[scale].description,
        task=task,
        metrics={column: metrics[column] for column in columns},
        baseline=recipe.baseline,
        rows=rows,
        columns=columns,
        seeds=tuple(sorted({spec.seed for spec in specs})),
        entries=entries,
        specs={column: _reference(shown, column, recipe.baseline) for column in columns},
        footnotes=tuple(footnotes.texts),
        notes=(
            *selection_notes(loaded, rows, columns, scale, changed),
            *(grid_notes(grid, [metrics[column] for column in columns]) if grid is not None else ()),
            *other_settings(list(first.values()), recipe.baseline),
            *sizes(collection.runs(), metrics),
            *signatures(collection.runs(), metrics),
            *multipliers(collection.runs()),
            *numerics(collection.runs()),
            *collection.notes,
        ),
        devices=_distinct(collection, "device"),
        commits=_distinct(collection, "git_commit"),
        contents=tuple(dict.fromkeys(run.content for run in collection.runs() if run.result and run.content)),
        overrides=changed,
        trends=(
            trends(entries, rows, columns, recipe.baseline, task.metrics[metrics[columns[0]]]) if recipe.ladder else ()
        ),
    )


def _entry(
    loaded: LoadedRecipe,
    cells: dict[tuple[str, str], Cell],
    cell: Cell,
    key: str,
    metric: Metric,
    scale: str,
    footnotes: _Footnotes,
    runs: Path,
    compared: str | None,
    note: str | None,
) -> Entry:
    recipe, unit = loaded.recipe, metric.difference
    row, column = cell.row, cell.column
    baseline = cells.get((recipe.baseline, column))
    values = cell.values(key)
    baseline_values = baseline.values(key) if baseline else {}
    is_baseline = row == recipe.baseline
    apart = None if is_baseline else paired_difference(values, baseline_values, unit)
    paper = recipe.rows[row].paper.get(compared) if compared else None
    paper_baseline = recipe.rows[recipe.baseline].paper.get(compared) if compared else None
    published = recipe.rows[row].published
    note = note if values else None
    either_collapsed = metric.collapsed(paper) or metric.collapsed(paper_baseline)
    return Entry(
        cell=cell,
        ours=summarise(list(values.values())),
        difference=apart,
        paper_column=compared,
        paper=paper,
        paper_difference=None if is_baseline or either_collapsed else difference(paper, paper_baseline, unit),
        paper_collapsed=metric.collapsed(paper),
        direction=0 if is_baseline else published_direction(paper, paper_baseline, metric),
        verdict=judge(
            is_baseline=is_baseline,
            ours=_outcome(cell, values),
            baseline=_outcome(baseline, baseline_values),
            difference=apart,
            paper=paper,
            paper_baseline=paper_baseline,
            metric=metric,
        ),
        p_value=None if apart is None else p_value(apart, unit),
        detectable=None if apart is None else detectable(apart, unit),
        equal_time=None if apart is None or baseline is None else at_equal_time(cell, baseline, runs, key, unit),
        extra_parameters_percent=cell.average("extra_parameters_percent"),
        paper_increase=loaded.printed_increase(scale, row, column) if compared else None,
        speed=cell.average(cell.runs[0].spec.task.unit.per_second),
        published=None if published is None else published.percent,
        beside=None if metric.beside is None else _mean(cell.values(metric.beside)),
        note=note,
        marks=tuple(footnotes.mark(text) for text in cell_remarks(cell, key, apart, metric, paper, published, note)),
    )


def _mean(values: dict[int, float]) -> float | None:
    found = summarise(list(values.values()))
    return None if found is None else found.mean


def _outcome(cell: Cell | None, values: dict[int, float]) -> Outcome:
    return Outcome(len(values), len(cell.having(RunState.diverged)) if cell and not cell.is_open else 0)


def _best(entries: Sequence[Entry], baseline: str, metric: Metric) -> set[str]:
    """The row in bold, with those that are the same runs: the best mean, where its difference to the baseline is
    resolved and an improvement.

    Only cells of which every seed has a value compete, and the baseline must be one of them.
    """
    better = 1 if metric.better == "higher" else -1
    means = {
        entry.cell.row: better * entry.ours.mean
        for entry in entries
        if entry.ours is not None and entry.ours.n == len(entry.cell.runs)
    }
    if baseline not in means:
        return set()
    return {
        entry.cell.row
        for entry in entries
        if means.get(entry.cell.row) == max(means.values())
        and entry.difference is not None
        and entry.difference.excludes_zero
        and better * entry.difference.mean > 0
    }


def _reference(specs: Sequence[RunSpec], column: str, baseline: str) -> RunSpec:
    here = [spec for spec in specs if spec.column == column]
    return next((spec for spec in here if spec.row == baseline), here[0])


def _distinct(collection: Collection, key: str) -> tuple[str, ...]:
    found = [str(run.result[key]) for run in collection.runs() if run.result and run.result.get(key) is not None]
    return tuple(sorted(set(found)))
