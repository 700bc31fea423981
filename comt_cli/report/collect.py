"""The planned runs of a table with the contents of their directories, the cells that they form, and curves of logs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.files import canonical_json
from comt_cli.recipe.find import MARK
from comt_cli.report import format
from comt_cli.runs.directory import RunDirectory, RunState, scored_on
from comt_cli.runs.known import known_runs
from comt_cli.runs.logs import logged
from comt_cli.runs.plan import RunSpec
from comt_cli.sums import added

ENDED = (RunState.done, RunState.diverged)
_ORDER = (RunState.done, RunState.diverged, RunState.running, RunState.unfinished, RunState.missing)
_RUN_NAME = re.compile(r"seed(\d+)-[0-9a-f]{12}")
_SPEED_LINES = 10
POINTS = 50  # the most points of a curve: each is the mean of consecutive logged values
_NAMED = 6  # the most runs that an error names for each data hash


@dataclass(frozen=True)
class Progress:
    """Progress of a run that has not ended: steps, newest training loss (nats), tokens or images per second, seconds
    left."""

    step: int
    steps: int
    loss: float | None = None
    speed: float | None = None
    eta_seconds: float | None = None


@dataclass(frozen=True)
class Run:
    """A planned run and its directory's content. `problem`: why the directory could not be read; `chosen`: whether its
    cell shows it, None without a grid and before the selection."""

    spec: RunSpec
    state: RunState
    directory: RunDirectory
    result: dict[str, Any] | None = None
    progress: Progress | None = None
    problem: str | None = None
    chosen: bool | None = None

    def number(self, key: str) -> float | None:
        """A finite number of `result.json`; None if there is none."""
        found = (self.result or {}).get(key)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            return None
        return float(found)

    def value(self, metric: str) -> float | None:
        """The metric of a run that is done; None for a diverged run."""
        return self.number(metric) if self.state is RunState.done else None

    def reported(self, key: str, metric: str) -> str | None:
        """An entry of the evaluation of a metric: its `remark`, one of its `signatures`, or the reason why the metric
        is `missing`."""
        prefix = self._prefix(metric)
        result = self.result or {}
        found = (result[f"{prefix}evaluation"] if prefix else result).get(key)
        if key != "remark":
            found = found.get(metric.removeprefix(prefix)) if isinstance(found, dict) else None
        return None if found is None else str(found)

    def scored_on(self, metric: str) -> tuple[int, str, str] | None:
        """The number of samples behind a metric, their split, and their kind."""
        prefix = self._prefix(metric)
        found = scored_on(self.result or {}, prefix)
        return found and (found[0], prefix.strip("_").replace("_", " ") or "validation", found[1])

    def _prefix(self, metric: str) -> str:
        """The prefix of a metric and of its evaluation; empty for validation."""
        found = (key.removesuffix("evaluation") for key in self.result or () if key.endswith("_evaluation"))
        return max((each for each in found if metric.startswith(each)), key=len, default="")

    @property
    def content(self) -> str | None:
        """The hash of the tokens or images of the training; None if it is not recorded."""
        found = (self.result or {}).get("data_content") or self.spec.data_content
        return str(found) if found else None


@dataclass(frozen=True)
class Cell:
    """One row under one column: a run per seed, for a grid those of the selected configuration. `others` are the runs
    of the other configurations. Before the selection (`is_open`) all are `runs`, and the cell has no values. `points`:
    the number of configurations, 0 without a grid; `without`: the number of those without a mean, since a run diverged
    or has no value."""

    row: str
    column: str
    runs: tuple[Run, ...]
    others: tuple[Run, ...] = ()
    points: int = 0
    without: int = 0
    is_open: bool = False

    @property
    def point(self) -> Mapping[str, Any] | None:
        """The selected values by dotted key; None without a grid and before the selection."""
        return self.runs[0].spec.point if self.points and not self.is_open else None

    @property
    def every(self) -> tuple[Run, ...]:
        """All planned runs, first those that are shown."""
        return (*self.runs, *self.others)

    def values(self, metric: str) -> dict[int, float]:
        """The metric by seed, of the runs that are done; empty before the selection."""
        pairs = ((run.spec.seed, run.value(metric)) for run in self.runs if not self.is_open)
        return {seed: value for seed, value in pairs if value is not None}

    def having(self, *states: RunState) -> list[Run]:
        """The runs in one of `states`."""
        return [run for run in self.runs if run.state in states]

    def average(self, key: str) -> float | None:
        """Mean over seeds of a number of `result.json`; None if no run has it."""
        found = [number for run in self.runs if (number := run.number(key)) is not None]
        return math.fsum(found) / len(found) if found else None

    @property
    def state(self) -> str:
        """`done`, `missing`, ...; if seeds differ, `2 done, 1 running`."""
        counts = {state: count for state in _ORDER if (count := len(self.having(state)))}
        return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {state}" for state, n in counts.items())

    def standing(self, metric: str) -> str:
        """`state` of a cell without a value, with the step of the most advanced run, or the reason why finished runs
        have no value for the metric: `needs Java`."""
        reasons = {reason for run in self.runs if (reason := run.reported("missing", metric)) is not None}
        if reasons:
            return ", ".join(sorted(reasons))
        begun = [run.progress for run in self.having(RunState.running, RunState.unfinished) if run.progress]
        furthest = max(begun, key=lambda each: each.step, default=None)
        return self.state if furthest is None else f"{self.state} (step {furthest.step:,} of {furthest.steps:,})"


@dataclass(frozen=True)
class Collection:
    """Every planned cell by row and column, and notes on the folder."""

    cells: dict[tuple[str, str], Cell]
    notes: tuple[str, ...]

    def runs(self) -> Iterator[Run]:
        """Every planned run."""
        for cell in self.cells.values():
            yield from cell.every

    def check_contents(self) -> None:
        """Raises `UserError` if runs of a column with equal data settings were trained on different data."""
        found: dict[tuple[str, str], dict[str, list[RunSpec]]] = {}
        for run in self.runs():
            if run.result is not None and run.content is not None:
                asked = (run.spec.column, run.spec.settings.data.model_dump_json(exclude={"folder"}))
                found.setdefault(asked, {}).setdefault(run.content, []).append(run.spec)
        for (column, _), contents in found.items():
            if len(contents) > 1:
                named = ((content, ", ".join(f"{spec.row} seed {spec.seed} ({spec.id})" for spec in specs[:_NAMED]))
                         for content, specs in contents.items())  # fmt: skip
                listed = "".join(f"\n  {content[:12]}: {each}" for content, each in named)
                rows = ",".join(dict.fromkeys(spec.row for spec in min(contents.values(), key=len)))
                raise UserError(
                    f"the runs of column {column} were trained on different data (hashes of the content):{listed}",
                    f"Repeat the training with --fresh and --rows {rows}, or leave those rows or seeds out.",
                )


def tables_with_runs(
    runs: Path, names: Sequence[str], scale: str | None = None, *, is_set: bool = False
) -> list[tuple[str, str | None]]:
    """The tables of the recipes `names` that have a folder below `runs`: `paper/table` and None; for changed settings
    `paper/table@steps-12` and each scale with runs, or `scale`. Those are left out if `--set` is given."""
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

    For a grid, a cell shows the configuration with the best mean of the metric `choose_by` over its seeds. A directory
    that cannot be read counts as unfinished and gets a note, as does a finished run without a value for its column's
    metric (`metrics`). Without `remarks` there is no note on other seeds.
    """
    grouped: dict[tuple[str, str], list[Run]] = {}
    for spec in specs:
        run = _look_up(spec, runs, None if metrics is None else metrics[spec.column])
        grouped.setdefault((spec.row, spec.column), []).append(run)
    cells = {key: cell_of(*key, found, choose_by) for key, found in grouped.items()}
    problems = [run.problem for cell in cells.values() for run in cell.every if run.problem]
    return Collection(cells, (*problems, *(_remarks(grouped, runs) if remarks else ())))


def cell_of(row: str, column: str, found: Iterable[Run], choose_by: str | None) -> Cell:
    """The cell of these runs; of several configurations the best is shown (`collect`), of equal ones the first."""
    runs = tuple(sorted(found, key=lambda run: run.spec.seed))
    if not runs[0].spec.point:
        return Cell(row, column, runs)
    points = by_point(runs)
    if len(points) > 1 and (choose_by is None or any(run.state not in ENDED for run in runs)):
        return Cell(row, column, runs, points=len(points), is_open=True)
    means = {key: mean_of(each, choose_by) for key, each in points.items()} if choose_by else {}
    known = {key: mean for key, mean in means.items() if mean is not None}
    whole = (key for key, each in points.items() if all(run.state is RunState.done for run in each))
    sign = 1 if choose_by and runs[0].spec.task.metrics[choose_by].better == "higher" else -1
    shown = max(known, key=lambda key: sign * known[key], default=next(whole, next(iter(points))))
    chosen = tuple(replace(run, chosen=True) for run in points[shown])
    others = tuple(replace(run, chosen=False) for key, each in points.items() if key != shown for run in each)
    return Cell(row, column, chosen, others, len(points), len(points) - len(known))


def by_point(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by their configuration, in the order of the runs."""
    points: dict[str, list[Run]] = {}
    for run in runs:
        points.setdefault(canonical_json(run.spec.point), []).append(run)
    return points


def mean_of(runs: Sequence[Run], metric: str) -> float | None:
    """The mean of a metric; None if a run has no value."""
    values = [value for run in runs if (value := run.value(metric)) is not None]
    return math.fsum(values) / len(values) if len(values) == len(runs) else None


def _look_up(spec: RunSpec, runs: Path, metric: str | None) -> Run:
    directory = RunDirectory.of(runs, spec)
    try:
        state = directory.state()
        result = directory.result() if state in ENDED else None
        progress = None if state in (*ENDED, RunState.missing) else _progress(directory, spec)
    except (UserError, OSError, ValueError, KeyError, TypeError) as error:
        reason = error.message if isinstance(error, UserError) else f"{directory.path} cannot be read: {error!r}"
        return Run(spec, RunState.unfinished, directory, problem=reason)
    run = Run(spec, state, directory, result, progress)
    has_value = metric is None or run.value(metric) is not None or run.reported("missing", metric) is not None
    if state is RunState.done and not has_value:
        return replace(run, problem=f"{directory.result_file} has no {metric}")
    return run


def _progress(directory: RunDirectory, spec: RunSpec) -> Progress | None:
    """The newest logged step; None before the first.

    Time left = remaining steps x seconds per step, over the last lines of timings.jsonl, whose `seconds` count from the
    run's start.
    """
    steps, logged = spec.settings.train.steps, [line for line in directory.metrics() if "loss" in line]
    if not logged:
        return None
    newest, timings = logged[-1], directory.timings()[-_SPEED_LINES:]
    if not timings:
        return Progress(newest["step"], steps, newest["loss"])
    first = timings[0] if len(timings) > 1 else {"step": 0, "seconds": 0.0}
    step_seconds = (timings[-1]["seconds"] - first["seconds"]) / max(timings[-1]["step"] - first["step"], 1)
    speed = math.fsum(line[spec.task.unit.per_second] for line in timings) / len(timings)
    return Progress(newest["step"], steps, newest["loss"], speed, max(steps - newest["step"], 0) * step_seconds)


def _remarks(cells: Mapping[tuple[str, str], Sequence[Run]], runs: Path) -> Iterator[str]:
    """Notes on other finished runs in the cells' folders: seeds, finished for all configurations of a cell, that were
    not requested, and runs of this scale with other settings or data."""
    more, others, specs = set[int](), 0, [run.spec for own in cells.values() for run in own]
    for own in cells.values():
        points = {canonical_json(run.spec.point): run.spec for run in own}.values()
        folder = (runs / own[0].spec.relative_path).parent  # of links
        done = {path.name: int(name[1]) for path in folder.glob("seed*")
                if (name := _RUN_NAME.fullmatch(path.name)) and RunDirectory(path).result_file.exists()}  # fmt: skip
        known = {seed: {spec.model_copy(update={"seed": seed}).relative_path.name for spec in points}
                 for seed in {*done.values()}}  # fmt: skip
        more |= {seed for seed, names in known.items() if names <= done.keys()} - {run.spec.seed for run in own}
        for path, seed in done.items():
            if path not in known[seed]:
                try:
                    others += RunDirectory(folder / path).spec().scale == own[0].spec.scale
                except UserError:  # written by another version: its scale is not known
                    others += 1
    if more:
        every = format.seeds(more | {spec.seed for spec in specs})
        yield f"Finished seeds that are not shown: {format.seeds(more)} (--seeds {every} shows them)."
    if others:
        listed = f"(comt runs {specs[0].paper}/{specs[0].table} lists {'it' if others == 1 else 'them'})"
        yield f"Not shown: {format.plural(others, 'finished run')} of this table with other settings or data {listed}."


def width_for(values: int) -> int:
    """The number of values that a point averages, so that there are at most `POINTS`."""
    return max(1, -(-values // POINTS))


def window_means(values: Sequence[tuple[int, float]], width: int) -> list[tuple[int, float]]:
    """The mean of every `width` consecutive values, at the step of the last one; the last window may be shorter."""
    groups = [values[begin : begin + width] for begin in range(0, len(values), width)]
    return [(group[-1][0], added(value for _, value in group) / len(group)) for group in groups]


def curve(run: Run, quantity: str) -> list[tuple[float, float]]:
    """The logged values of a quantity, each with the training time used by then: without evaluations, and linearly
    interpolated between two logged steps."""
    import numpy as np

    values = logged(run.directory.metrics(), quantity)
    timings = [(0, 0.0), *((line["step"], line["seconds"]) for line in run.directory.timings() if "seconds" in line)]
    steps, seconds = zip(*timings, strict=True)
    return [(float(np.interp(step, steps, seconds)), value) for step, value in values if step <= steps[-1]]
