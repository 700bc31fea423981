"""From the plan and the folder of run directories to cells: what every seed ended with, and what is missing."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.files import canonical_json
from comt_cli.recipe.variant import MARK
from comt_cli.report import format
from comt_cli.runs.directory import RunDirectory, RunState, scored_on
from comt_cli.runs.known import known_runs
from comt_cli.runs.plan import RunSpec

_RUN_NAME = re.compile(r"seed(\d+)-([0-9a-f]{12})")
_SPEED_LINES = 10
_NAMED = 6
"""Runs that an error names for each content."""


@dataclass(frozen=True)
class Progress:
    """How far an unended run is: steps, the newest training loss (nats), tokens or images per second, seconds to go."""

    step: int
    steps: int
    loss: float | None = None
    speed: float | None = None
    eta_seconds: float | None = None


@dataclass(frozen=True)
class Run:
    """One planned run and what its directory holds. `problem` says why a directory could not be read;
    `chosen` whether its cell shows it, None where there is no grid, or nothing is chosen of it yet."""

    spec: RunSpec
    state: RunState
    result: dict[str, Any] | None = None
    progress: Progress | None = None
    problem: str | None = None
    chosen: bool | None = None
    place: RunDirectory | None = None

    @property
    def directory(self) -> RunDirectory:
        """Where its logs are."""
        assert self.place is not None
        return self.place

    def number(self, key: str) -> float | None:
        """A finite number of `result.json`; None where there is none."""
        found = (self.result or {}).get(key)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            return None
        return float(found)

    def signature(self, metric: str) -> str | None:
        """How a metric was computed, where its evaluation says so."""
        return self._said("signatures", metric)

    def missing(self, metric: str) -> str | None:
        """Why the run has no number for a metric, where its evaluation says so: `needs Java`."""
        return self._said("missing", metric)

    def remark(self, metric: str) -> str | None:
        """What the evaluation that gave a metric says of itself: `predicts one class`."""
        said = self._evaluation(metric)[1].get("remark")
        return None if said is None else str(said)

    def scored_on(self, metric: str) -> tuple[int, str, str] | None:
        """How many samples gave a metric, of which split, and what they are."""
        prefix = self._evaluation(metric)[0]
        found = scored_on(self.result or {}, prefix)
        return found and (found[0], prefix.strip("_").replace("_", " ") or "validation", found[1])

    def _evaluation(self, metric: str) -> tuple[str, dict[str, Any]]:
        """The evaluation that gave a metric, with its prefix: that of validation, or of the split whose name the metric
        begins with."""
        result = self.result or {}
        found = {key.removesuffix("evaluation"): value for key, value in result.items() if key.endswith("_evaluation")}
        prefix = max((each for each in found if metric.startswith(each)), key=len, default="")
        return prefix, found.get(prefix, result)

    def _said(self, what: str, metric: str) -> str | None:
        """What an evaluation says of a metric."""
        prefix, evaluation = self._evaluation(metric)
        by_metric = evaluation.get(what, {})
        said = by_metric.get(metric.removeprefix(prefix)) if isinstance(by_metric, dict) else None
        return None if said is None else str(said)

    @property
    def content(self) -> str | None:
        """The hash of the tokens or images that it was trained on; None where that is not recorded."""
        found = (self.result or {}).get("data_content") or self.spec.data_content
        return str(found) if found else None

    def value(self, metric: str) -> float | None:
        """The metric of a run that is done; a diverged run has none."""
        return self.number(metric) if self.state is RunState.done else None


@dataclass(frozen=True)
class Choice:
    """What a cell shows of the grid of its recipe.

    Attributes:
        point: the values of the runs that are shown, by dotted key; None while a run of the cell has not ended: nothing
            is chosen from a part.
        others: the runs of the other points.
        points: how many points there are; `without`: how many have no mean, since a run diverged or has no value.
    """

    point: Mapping[str, Any] | None
    others: tuple[Run, ...] = ()
    points: int = 1
    without: int = 0


@dataclass(frozen=True)
class Cell:
    """One row under one column: a run per seed. With a grid, those of the point that was chosen, or all while nothing
    is: then the cell has no values."""

    row: str
    column: str
    runs: tuple[Run, ...]
    choice: Choice | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is something to choose, and not every run has ended."""
        return self.choice is not None and self.choice.point is None

    @property
    def every(self) -> tuple[Run, ...]:
        """All planned runs, those that are shown first."""
        return self.runs if self.choice is None else (*self.runs, *self.choice.others)

    def values(self, metric: str) -> dict[int, float]:
        """The metric by seed, of the runs that are done. While a choice is open there is none."""
        if self.is_open:
            return {}
        pairs = ((run.spec.seed, run.value(metric)) for run in self.runs)
        return {seed: value for seed, value in pairs if value is not None}

    def having(self, *states: RunState) -> list[Run]:
        """The runs in one of `states`."""
        return [run for run in self.runs if run.state in states]

    def average(self, key: str) -> float | None:
        """Mean over seeds of a number of `result.json`; None where no run has it."""
        numbers = [number for run in self.runs if (number := run.number(key)) is not None]
        return math.fsum(numbers) / len(numbers) if numbers else None

    @property
    def state(self) -> str:
        """`done`, `missing`, ...; where seeds differ, `2 done, 1 running`."""
        counts = {state: len(self.having(state)) for state in _ORDER}
        present = {state: count for state, count in counts.items() if count}
        if len(present) == 1:
            return next(iter(present))
        return ", ".join(f"{count} {state}" for state, count in present.items())


ENDED = (RunState.done, RunState.diverged)
_ORDER = (RunState.done, RunState.diverged, RunState.running, RunState.unfinished, RunState.missing)


@dataclass(frozen=True)
class Collection:
    """Every planned cell by row and column, and remarks about the folder that the table must not hide."""

    cells: dict[tuple[str, str], Cell]
    notes: tuple[str, ...]

    def runs(self) -> Iterator[Run]:
        """Every planned run."""
        for cell in self.cells.values():
            yield from cell.every

    def check_contents(self) -> None:
        """Refuse to set numbers beside each other that were computed on different data.

        Rows that ask for other data settings than their neighbours are not meant: the table names those settings.

        Raises:
            UserError: under one column, runs of equal data settings were trained on different contents; names them.
        """
        found: dict[tuple[str, str], dict[str, list[Run]]] = {}
        for run in self.runs():
            if run.result is not None and run.content is not None:
                asked = (run.spec.column, run.spec.settings.data.model_dump_json(exclude={"folder"}))
                found.setdefault(asked, {}).setdefault(run.content, []).append(run)
        for (column, _), contents in found.items():
            if len(contents) > 1:
                raise _different_contents(column, contents)


def _different_contents(column: str, contents: Mapping[str, Sequence[Run]]) -> UserError:
    def named(runs: Sequence[Run]) -> str:
        shown = [f"{run.spec.row} seed {run.spec.seed} ({run.spec.id})" for run in runs[:_NAMED]]
        more = len(runs) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")

    listed = "\n".join(f"  {content[:12]}: {named(runs)}" for content, runs in contents.items())
    fewest = min(contents.values(), key=len)
    rows = ",".join(dict.fromkeys(run.spec.row for run in fewest))
    return UserError(
        f"the runs under {column} were trained on different data, by the hash of its content:\n{listed}",
        "Their numbers cannot be compared. Train the same command with --fresh and "
        f"--rows {rows}, or leave those rows or seeds out with --rows and --seeds.",
    )


def tables_with_runs(
    runs: Path, names: Sequence[str], scale: str | None = None, *, is_set: bool = False
) -> list[tuple[str, str | None]]:
    """The tables of the recipes `names` that have a folder below `runs`: `paper/table` and None; of changed settings
    `paper/table@steps-12` and each scale that it has runs of, or `scale`; not these where `--set` says settings."""
    every = {(name, run.label("scale")) for run in known_runs(runs) for name in run.variants}
    changed = sorted(each for each in every if each[0].partition(MARK)[0] in names and scale in (None, each[1]))
    own = [name for name in names if (runs / name).is_dir()]
    own += [name.partition(MARK)[0] for name, _ in changed if is_set]
    return [*((name, None) for name in dict.fromkeys(own)), *(changed if not is_set else ())]


def collect(
    specs: Sequence[RunSpec],
    runs: Path,
    metrics: Mapping[str, str] | None = None,
    choose_by: str | None = None,
    *,
    remarks: bool = True,
) -> Collection:
    """Look up every planned run below the folder `runs` by its id, whichever table it was trained for.

    Of the points of a grid, a cell shows the one with the best mean of the metric `choose_by` over its seeds.
    With `metrics`, by column, a run that is done but holds no such number, and does not say why, is remarked on. A
    directory that cannot be read counts as unfinished and is remarked on: one broken run must not hide a table.
    Without `remarks` nothing is said of other runs in the cells' folders, such as the trials of a sweep.
    """
    grouped: dict[tuple[str, str], list[Run]] = {}
    for spec in specs:
        grouped.setdefault((spec.row, spec.column), []).append(
            _look_up(spec, runs, None if metrics is None else metrics[spec.column])
        )
    cells = {key: _cell(*key, found, choose_by) for key, found in grouped.items()}
    problems = [run.problem for cell in cells.values() for run in cell.every if run.problem]
    return Collection(cells, (*problems, *(_remarks(specs, runs) if remarks else ())))


def _cell(row: str, column: str, found: Iterable[Run], choose_by: str | None) -> Cell:
    runs = tuple(sorted(found, key=lambda run: run.spec.seed))
    points: dict[str, list[Run]] = {}
    for run in runs:
        points.setdefault(canonical_json(run.spec.point), []).append(run)
    if not runs[0].spec.point:
        return Cell(row, column, runs)
    if len(points) > 1 and (choose_by is None or any(run.state not in ENDED for run in runs)):
        return Cell(row, column, runs, Choice(None, points=len(points)))
    means = {} if choose_by is None else _means(points, choose_by)
    lasting = (point for point, each in points.items() if all(run.state is RunState.done for run in each))
    first = next(lasting, next(iter(points)))
    shown = max(means, key=lambda point: means[point], default=first)  # of equal ones the first
    chosen = tuple(replace(run, chosen=True) for run in points.pop(shown))
    others = tuple(replace(run, chosen=False) for each in points.values() for run in each)
    every = len(points) + 1
    return Cell(row, column, chosen, Choice(chosen[0].spec.point, others, every, every - len(means)))


def _means(points: Mapping[str, Sequence[Run]], metric: str) -> dict[str, float]:
    """The mean of each point over its runs, the greatest being the best; without the points of which a run has no
    value."""
    found: dict[str, float] = {}
    for point, runs in points.items():
        values = [run.value(metric) for run in runs]
        numbers = [value for value in values if value is not None]
        if len(numbers) == len(runs):
            better = 1 if runs[0].spec.task.metrics[metric].better == "higher" else -1
            found[point] = better * math.fsum(numbers) / len(numbers)
    return found


def _look_up(spec: RunSpec, runs: Path, metric: str | None) -> Run:
    directory = RunDirectory.of(runs, spec)
    try:
        state = directory.state()
        ended = state in (RunState.done, RunState.diverged)
        result = directory.result() if ended else None
        progress = None if ended or state is RunState.missing else _progress(directory, spec)
    except (UserError, OSError, ValueError, KeyError, TypeError) as error:
        reason = error.message if isinstance(error, UserError) else f"{directory.path} cannot be read: {error!r}"
        return Run(spec, RunState.unfinished, problem=reason, place=directory)
    run = Run(spec, state, result, progress, place=directory)
    if metric is not None and state is RunState.done and run.value(metric) is None and run.missing(metric) is None:
        return replace(run, progress=None, problem=f"{directory.result_file} has no {metric}")
    return run


def _progress(directory: RunDirectory, spec: RunSpec) -> Progress | None:
    """The newest logged step; None before the first.

    Time to go = steps to go x seconds per step, over the last lines of timings.jsonl, whose `seconds` count from the
    run's start.
    """
    steps = spec.settings.train.steps
    logged = [line for line in directory.metrics() if "loss" in line]
    if not logged:
        return None
    newest = logged[-1]
    timings = directory.timings()[-_SPEED_LINES:]
    if not timings:
        return Progress(newest["step"], steps, newest["loss"])
    first = timings[0] if len(timings) > 1 else {"step": 0, "seconds": 0.0}
    step_seconds = (timings[-1]["seconds"] - first["seconds"]) / max(timings[-1]["step"] - first["step"], 1)
    speed = math.fsum(line[spec.task.unit.per_second] for line in timings) / len(timings)
    return Progress(newest["step"], steps, newest["loss"], speed, max(steps - newest["step"], 0) * step_seconds)


def _remarks(specs: Sequence[RunSpec], runs: Path) -> Iterator[str]:
    """What else is finished in the planned cells' folders: seeds that were not asked for, and runs with another id."""
    planned = {runs / spec.relative_path for spec in specs}
    cells: dict[tuple[str, str], dict[str, RunSpec]] = {}
    for spec in specs:
        cells.setdefault((spec.row, spec.column), {})[canonical_json(spec.point)] = spec
    more_seeds: set[int] = set()
    others = 0
    for points in cells.values():
        of_seed: Counter[int] = Counter()
        spec = next(iter(points.values()))
        folder = (runs / spec.relative_path).parent  # of links
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            name = _RUN_NAME.fullmatch(path.name)
            if name is None or path in planned or not RunDirectory(path).result_file.exists():
                continue
            seed = int(name[1])
            if name[2] in {each.model_copy(update={"seed": seed}).id for each in points.values()}:
                of_seed[seed] += 1
            elif _may_be_of_scale(path, spec.scale):
                others += 1
        more_seeds |= {seed for seed, count in of_seed.items() if count == len(points)}
    if more_seeds:
        every = format.seeds(more_seeds | {spec.seed for spec in specs})
        yield f"Seeds that are finished and not shown here: {format.seeds(more_seeds)} (--seeds {every} shows them)."
    if others:
        were, them = ("was", "it") if others == 1 else ("were", "them")
        first = specs[0]
        yield (
            f"{format.plural(others, 'finished run')} of this table {were} made with other settings or data "
            f"(comt runs {first.paper}/{first.table} lists {them})."
        )


def _may_be_of_scale(path: Path, scale: str) -> bool:
    try:
        return RunDirectory(path).spec().scale == scale
    except UserError:  # written by another version: it is not known
        return True
