"""Two cells side by side: what their runs differ in, their metrics paired by seed, their costs, and equal budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from comt_cli.errors import UserError
from comt_cli.files import read_json
from comt_cli.report.logs import logged
from comt_cli.report.statistics import Paired, Summary, detectable, p_value, paired_difference, summarise
from comt_cli.report.verdict import Outcome, Verdict, judge
from comt_cli.runs.directory import PYTORCH, READING_ERRORS, RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.sums import added
from comt_cli.tasks import Task
from comt_cli.tasks.base import POINTS, DifferenceUnit

LAST = 0.1
"""A loss at a budget is the mean of the values that were logged in this last share of it."""
Budget = Literal["steps", "FLOPs", "time"]
_COSTS = ("parameters", "flops", "train_seconds", "peak_memory_bytes")


@dataclass(frozen=True)
class Side:
    """The runs of one cell, one a seed, with their results; all have the same settings."""

    name: str
    specs: Mapping[int, RunSpec]
    directories: Mapping[int, RunDirectory]
    results: Mapping[int, Mapping[str, Any]]
    diverged: tuple[int, ...]

    @property
    def first(self) -> RunSpec:
        """The run of the first seed."""
        return next(iter(self.specs.values()))

    def values(self, key: str) -> dict[int, float]:
        """A number of the results, by seed, of the runs that have it."""
        found = {seed: result.get(key) for seed, result in self.results.items() if seed not in self.diverged}
        return {seed: float(value) for seed, value in found.items() if isinstance(value, int | float)}


@dataclass(frozen=True)
class Difference:
    """A setting, or a circumstance of training, that the sides do not share. None where a side has no such key."""

    key: str
    base: Any
    other: Any


@dataclass(frozen=True)
class Measured:
    """A number of both sides: `paired` is the second's difference to the first over the seeds both have, in `unit`;
    `verdict` that of a table's row without a published value."""

    key: str
    label: str
    unit: DifferenceUnit
    base: Summary
    other: Summary
    paired: Paired | None
    verdict: Verdict

    @property
    def p_value(self) -> float | None:
        """`statistics.p_value`."""
        return None if self.paired is None else p_value(self.paired, self.unit)

    @property
    def detectable(self) -> tuple[float, float] | None:
        """`statistics.detectable`."""
        return None if self.paired is None else detectable(self.paired, self.unit)


@dataclass(frozen=True)
class AtBudget:
    """The training loss when both sides have used as much of `budget` as the side that ended with less."""

    budget: Budget
    used: float
    base: Summary
    other: Summary
    paired: Paired | None


@dataclass(frozen=True)
class Comparison:
    """The second side against the first, its baseline. `unfair` is why their metrics cannot be set beside each other,
    or not as a difference between methods alone."""

    base: Side
    other: Side
    unfair: tuple[str, ...]
    settings: tuple[Difference, ...]
    circumstances: tuple[Difference, ...]
    metrics: tuple[Measured, ...]
    costs: tuple[Difference, ...]
    budgets: tuple[AtBudget, ...]


def read_side(name: str, directories: Sequence[RunDirectory]) -> Side:
    """The runs of a cell from their directories, one a seed, all of the same settings.

    Raises:
        UserError: one has not ended or cannot be read.
    """
    specs: dict[int, RunSpec] = {}
    found: dict[int, RunDirectory] = {}
    for directory, spec in sorted(((each, each.spec()) for each in directories), key=lambda pair: pair[1].seed):
        if (state := directory.state()) not in (RunState.done, RunState.diverged):
            raise UserError(f"{directory.shown} is {state.value}", "Only runs that have ended are compared.")
        specs[spec.seed], found[spec.seed] = spec, directory
    results = {seed: directory.result() or {} for seed, directory in found.items()}
    diverged = tuple(seed for seed, result in results.items() if result["state"] == RunState.diverged.value)
    return Side(name, specs, found, results, diverged)


def compare(base: Side, other: Side) -> Comparison:
    """The comparison of two sides of one task.

    Raises:
        UserError: they are of different tasks.
    """
    task = base.first.task
    if other.first.command != base.first.command:
        raise UserError(
            f"{base.name} is {task.model_kind}, and {other.name} {other.first.task.model_kind}",
            "Runs of one task can be compared.",
        )
    settings = tuple(_differences(_settings(base.first), _settings(other.first)))
    circumstances = tuple(_differences(_circumstances(base), _circumstances(other)))
    return Comparison(
        base,
        other,
        tuple(_unfair(base, other, settings)),
        settings,
        circumstances,
        tuple(_metrics(base, other, task)),
        tuple(_costs(base, other, task)),
        tuple(_budgets(base, other)),
    )


def _settings(spec: RunSpec) -> dict[str, Any]:
    """Method and settings by dotted key, without what changes no number."""
    found = {f"method.{key}": value for key, value in spec.method.items()}
    runtime = spec.task.runtime_keys
    for section, values in spec.settings.model_dump(mode="json").items():
        found |= {f"{section}.{key}": each for key, each in values.items() if key not in runtime.get(section, ())}
    if spec.start is not None:
        source = spec.start.run
        found["start"] = f"{source.paper}/{source.table}:{source.row}:{source.column}"
    return found


def _circumstances(side: Side) -> dict[str, Any]:
    """Data, device, commit and kernels of the runs; several values are joined."""
    found: dict[str, Any] = {}
    for key in ("data_content", "device", "git_commit", "numerics"):
        found[key] = ", ".join(sorted({str(result.get(key) or "not recorded") for result in side.results.values()}))
    last = [_environment(directory) for directory in side.directories.values()]
    unknown = dict.fromkeys(("torch", "compiled", "sharding"), "not recorded")
    # Starts without a record of CUDA graphs had none, and their products and attention were PyTorch's.
    for key, otherwise in {**unknown, "captured": False, "products": PYTORCH, "attention": PYTORCH}.items():
        found[key] = ", ".join(sorted({str(each.get(key, otherwise)) for each in last}))
    kernels: dict[str, set[str]] = {}
    for each in last:
        for operation, said in (each.get("kernels") or {}).items():
            kernels.setdefault(f"kernel of {operation}", set()).add(str(said).partition(" (")[0])
    return found | {key: ", ".join(sorted(each)) for key, each in kernels.items()}


def _environment(directory: RunDirectory) -> Mapping[str, Any]:
    """What a run was last trained in; {} where that cannot be read."""
    try:
        return dict(read_json(directory.environment_file)[-1])
    except (*READING_ERRORS, IndexError):
        return {}


def _differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    for key in dict.fromkeys([*base, *other]):
        if base.get(key) != other.get(key):
            yield Difference(key, base.get(key), other.get(key))


def _unfair(base: Side, other: Side, settings: Sequence[Difference]) -> Iterator[str]:
    if base.first.scale != other.first.scale:
        yield f"the scales differ: {base.first.scale} and {other.first.scale}"
    contents = [{result.get("data_content") for result in side.results.values()} for side in (base, other)]
    if contents[0] != contents[1]:
        yield "the data differ by the hash of their content: no metric can be compared"
    beside = [each.key for each in settings if each.key.partition(".")[0] not in ("method", "start")]
    if beside:
        yield f"not the method alone differs: {', '.join(beside)}"
    for side in (base, other):
        if side.diverged:
            seeds = ", ".join(map(str, side.diverged))
            yield f"{side.name} diverged with seed {seeds}: the seeds that did not are the lucky ones"


def _metrics(base: Side, other: Side, task: Task[Any]) -> Iterator[Measured]:
    for key, metric in task.metrics.items():
        ours, theirs = other.values(key), base.values(key)
        first, second = summarise(list(theirs.values())), summarise(list(ours.values()))
        if first is None or second is None:
            continue
        paired = paired_difference(ours, theirs, metric.difference)
        verdict = judge(
            is_baseline=False,
            ours=Outcome(second.n, len(other.diverged)),
            baseline=Outcome(first.n, len(base.diverged)),
            difference=paired,
            paper=None,
            paper_baseline=None,
            metric=metric,
        )
        yield Measured(key, metric.label, metric.difference, first, second, paired, verdict)


def _costs(base: Side, other: Side, task: Task[Any]) -> Iterator[Difference]:
    for key in (*_COSTS, task.unit.per_second):
        means = [summarise(list(side.values(key).values())) for side in (base, other)]
        if means[0] is not None and means[1] is not None:
            yield Difference(key, means[0].mean, means[1].mean)


def _budgets(base: Side, other: Side) -> Iterator[AtBudget]:
    """The training losses at equal steps, FLOPs and time, where the logs of a common seed have them."""
    seeds = [seed for seed in base.specs if seed in other.specs and seed not in {*base.diverged, *other.diverged}]
    for budget in get_args(Budget):
        curves = [
            {seed: curve(side.directories[seed], side.results[seed], budget) for seed in seeds}
            for side in (base, other)
        ]
        if not seeds or not all(curve for each in curves for curve in each.values()):
            continue
        used = min(curve[-1][0] for each in curves for curve in each.values())
        at = [{seed: _loss_at(curve, used) for seed, curve in each.items()} for each in curves]
        theirs, ours = ({seed: loss for seed, loss in each.items() if loss is not None} for each in at)
        first, second = summarise(list(theirs.values())), summarise(list(ours.values()))
        if first is not None and second is not None:
            yield AtBudget(budget, used, first, second, paired_difference(ours, theirs, POINTS))  # in nats


def curve(
    directory: RunDirectory, result: Mapping[str, Any], budget: Budget, quantity: str = "loss"
) -> list[tuple[float, float]]:
    """Of every logged value of a quantity, the training loss if none is named, how much of the budget it had taken, and
    the value. FLOPs are those of the whole run in proportion to its steps; time is that of training alone, without
    evaluations, and between two steps whose time is logged on the straight line between them."""
    losses = logged(directory.metrics(), quantity)
    if budget == "steps":
        return [(float(step), loss) for step, loss in losses]
    if budget == "FLOPs":
        flops, steps = result.get("flops"), result.get("steps")
        return [(step * flops / steps, loss) for step, loss in losses] if flops and steps else []
    import numpy as np

    timings = [(0, 0.0), *((line["step"], line["seconds"]) for line in directory.timings() if "seconds" in line)]
    steps, seconds = zip(*timings, strict=True)
    return [(float(np.interp(step, steps, seconds)), loss) for step, loss in losses if step <= steps[-1]]


def _loss_at(curve: Sequence[tuple[float, float]], used: float) -> float | None:
    within = [loss for spent, loss in curve if (1 - LAST) * used <= spent <= used]
    return added(within) / len(within) if within else None
