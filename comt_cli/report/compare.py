"""Two cells side by side: what their runs differ in, their metrics paired by seed, their costs, and equal budgets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from comt_cli.errors import UserError
from comt_cli.files import read_json
from comt_cli.report import format
from comt_cli.report.collect import ENDED, Run
from comt_cli.report.frame import Record, frame_of
from comt_cli.report.logs import Budget, curve
from comt_cli.report.statistics import Paired, Summary, detectable, p_value, paired_difference, summarise
from comt_cli.report.verdict import Outcome, judge
from comt_cli.runs.directory import PYTORCH, READING_ERRORS, RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.sums import added
from comt_cli.tasks.base import POINTS

if TYPE_CHECKING:
    import pandas as pd

LAST = 0.1
"""A loss at a budget is the mean of the values that were logged in this last share of it."""
HEADS = {
    "settings": ["Settings that differ", "A", "B"],
    "circumstances": ["Trained with", "A", "B"],
    "metrics": ["Metric", "A", "B", "B to A", "95 %", "B is", "so many seeds would show"],
    "costs": ["Cost, mean of the seeds", "A", "B", "B / A"],
    "budgets": ["Training loss at", "A", "B", "B - A", "95 %"],
}
"""The sections of the frame, with what is above their texts."""
_COSTS = ("parameters", "flops", "train_seconds", "peak_memory_bytes")


def comparison(runs: pd.DataFrame) -> pd.DataFrame:
    """The second side of a frame of sides (`sides_frame`) against the first, its baseline.

    A line for each setting, circumstance, metric, cost and budget, by `section` (`HEADS`): `_texts`, and in `_found`
    what they are made of. `attrs["unfair"]` says why the metrics cannot be set beside each other, or not as a
    difference between methods alone.

    Raises:
        UserError: the sides are of different tasks.
    """
    base, other = ([run for run, side in zip(runs["_run"], runs["side"], strict=True) if side == which]
                   for which in ("baseline", "run"))  # fmt: skip
    first, second = base[0].spec, other[0].spec
    if first.command != second.command:
        raise UserError(
            f"{runs['name'].iloc[0]} is {first.task.model_kind}, and {runs['name'].iloc[-1]} {second.task.model_kind}",
            "Runs of one task can be compared.",
        )
    differing = list(_differing("settings", _settings(first), _settings(second)))
    frame = frame_of(
        [
            *differing,
            *_differing("circumstances", _circumstances(base), _circumstances(other)),
            *_metrics(base, other),
            *_costs(base, other),
            *_budgets(base, other),
        ]
    )
    names = dict(zip(runs["side"], runs["name"], strict=True))
    frame.attrs |= {"sides": (_side(base), _side(other)), "unfair": tuple(_unfair(base, other, names, differing))}
    return frame


def sides_frame(sides: Mapping[str, tuple[str, Sequence[RunDirectory]]]) -> pd.DataFrame:
    """The runs of two cells, one a seed, from their directories; by side its name and its directories.

    Raises:
        UserError: a run has not ended or cannot be read.
    """
    records: list[Record] = []
    for side, (name, directories) in sides.items():
        for directory, spec in sorted(((each, each.spec()) for each in directories), key=lambda pair: pair[1].seed):
            if (state := directory.state()) not in ENDED:
                raise UserError(f"{directory.shown} is {state.value}", "Only runs that have ended are compared.")
            run = Run(spec, state, directory.result() or {}, place=directory)
            records.append({"side": side, "name": name, "seed": spec.seed, "id": spec.id, "_run": run})
    return frame_of(records)


def as_json(frame: pd.DataFrame) -> dict[str, Any]:
    """The comparison as plain data."""
    base, other = frame.attrs["sides"]
    found: dict[str, Any] = {"baseline": base, "run": other, "unfair": list(frame.attrs["unfair"])}
    for section in HEADS:
        lines = frame.loc[frame["section"] == section, "_found"]
        found[section] = [{key: _plain(value) for key, value in line.items()} for line in lines]
    return found


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, Summary | Paired) else value


def _line(section: str, texts: Sequence[str], **found: Any) -> Record:
    """A line: what was found, and its texts, the first being its name."""
    return {"section": section, "name": texts[0], "_found": found, "_texts": [*texts]}


def _side(runs: Sequence[Run]) -> dict[str, Any]:
    spec = runs[0].spec
    return {
        "row": spec.row,
        "column": spec.column,
        "table": f"{spec.paper}/{spec.table}",
        "scale": spec.scale,
        "ids": {run.spec.seed: run.spec.id for run in runs},
        "diverged": _diverged(runs),
    }


def _diverged(runs: Sequence[Run]) -> list[int]:
    return [run.spec.seed for run in runs if run.state is RunState.diverged]


def _values(runs: Sequence[Run], key: str) -> dict[int, float]:
    """A number of the results, by seed, of the runs that have it and did not diverge."""
    return {run.spec.seed: value for run in runs if (value := run.value(key)) is not None}


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


def _circumstances(runs: Sequence[Run]) -> dict[str, Any]:
    """Data, device, commit and kernels of the runs; several values are joined."""

    def joined(values: Iterator[Any]) -> str:
        return ", ".join(sorted({str(each) for each in values}))

    recorded = ("data_content", "device", "git_commit", "numerics")
    found = {key: joined((run.result or {}).get(key) or "not recorded" for run in runs) for key in recorded}
    last = [_environment(run.directory) for run in runs]
    # Starts without a record of CUDA graphs had none, and their products and attention were PyTorch's.
    known = dict.fromkeys(("torch", "compiled", "sharding"), "not recorded")
    otherwise = {**known, "captured": False, "products": PYTORCH, "attention": PYTORCH}
    found |= {key: joined(each.get(key, default) for each in last) for key, default in otherwise.items()}
    operations = dict.fromkeys(operation for each in last for operation in each.get("kernels") or {})
    for name in operations:
        kernels = (each.get("kernels") or {} for each in last)
        found[f"kernel of {name}"] = joined(str(each[name]).partition(" (")[0] for each in kernels if name in each)
    return found


def _environment(directory: RunDirectory) -> Mapping[str, Any]:
    """What a run was last trained in; {} where that cannot be read."""
    try:
        return dict(read_json(directory.environment_file)[-1])
    except (*READING_ERRORS, IndexError):
        return {}


def _differing(section: str, base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Record]:
    for key in dict.fromkeys([*base, *other]):
        if base.get(key) != other.get(key):
            sides = {"baseline": base.get(key), "run": other.get(key)}
            shown = (
                "-" if each is None else each if isinstance(each, str) else json.dumps(each) for each in sides.values()
            )
            yield _line(section, [key, *shown], key=key, **sides)


def _unfair(
    base: Sequence[Run], other: Sequence[Run], names: Mapping[str, str], settings: Sequence[Record]
) -> Iterator[str]:
    if base[0].spec.scale != other[0].spec.scale:
        yield f"the scales differ: {base[0].spec.scale} and {other[0].spec.scale}"
    contents = [{(run.result or {}).get("data_content") for run in side} for side in (base, other)]
    if contents[0] != contents[1]:
        yield "the data differ by the hash of their content: no metric can be compared"
    beside = [each["name"] for each in settings if each["name"].partition(".")[0] not in ("method", "start")]
    if beside:
        yield f"not the method alone differs: {', '.join(beside)}"
    for name, side in zip(names.values(), (base, other), strict=True):
        if seeds := _diverged(side):
            yield (f"{name} diverged with seed {', '.join(map(str, seeds))}: the seeds that did not are the lucky ones")


def _metrics(base: Sequence[Run], other: Sequence[Run]) -> Iterator[Record]:
    """The second side's difference to the first over the seeds both have; the verdict is that of a table's row without
    a published value."""
    for key, metric in base[0].spec.task.metrics.items():
        theirs, ours = _values(base, key), _values(other, key)
        first, second = summarise(list(theirs.values())), summarise(list(ours.values()))
        if first is None or second is None:
            continue
        paired = paired_difference(ours, theirs, metric.difference)
        verdict = judge(
            is_baseline=False,
            ours=Outcome(second.n, len(_diverged(other))),
            baseline=Outcome(first.n, len(_diverged(base))),
            difference=paired,
            paper=None,
            paper_baseline=None,
            metric=metric,
        )
        unit = metric.difference
        ends = None if paired is None else detectable(paired, unit)
        would = "-" if ends is None else f"{ends[0]:+.3g} or {ends[1]:+.3g} {unit.sign}"
        texts = [metric.label, _summary(first), _summary(second), *_paired(paired, unit.sign), verdict.value, would]
        yield _line(
            "metrics", texts, key=key, baseline=first, run=second, unit=unit.name, difference=paired,
            p_value=None if paired is None else p_value(paired, unit), detectable=ends, verdict=verdict.value,
        )  # fmt: skip


def _costs(base: Sequence[Run], other: Sequence[Run]) -> Iterator[Record]:
    for key in (*_COSTS, base[0].spec.task.unit.per_second):
        theirs, ours = (summarise(list(_values(side, key).values())) for side in (base, other))
        if theirs is not None and ours is not None:
            ratio = f"{ours.mean / theirs.mean:.3f}" if theirs.mean else "-"
            texts = [key, f"{theirs.mean:.4g}", f"{ours.mean:.4g}", ratio]
            yield _line("costs", texts, key=key, baseline=theirs.mean, run=ours.mean)


def _budgets(base: Sequence[Run], other: Sequence[Run]) -> Iterator[Record]:
    """The training losses when both sides have used as much as the one that ended with less, at equal steps, FLOPs and
    time, where the logs of a common seed have them."""
    sides = [{run.spec.seed: run for run in side if run.state is RunState.done} for side in (base, other)]
    seeds = [seed for seed in sides[0] if seed in sides[1]]
    for budget in get_args(Budget):
        curves = [
            {seed: curve(side[seed].directory, side[seed].result or {}, budget) for seed in seeds} for side in sides
        ]
        every = [points for each in curves for points in each.values()]
        if not every or not all(every):
            continue
        used = min(points[-1][0] for points in every)
        theirs, ours = (
            {seed: loss for seed, points in each.items() if (loss := _loss_at(points, used)) is not None}
            for each in curves
        )
        first, second = summarise(list(theirs.values())), summarise(list(ours.values()))
        if first is not None and second is not None:
            paired = paired_difference(ours, theirs, POINTS)  # in nats
            said = format.duration(used) if budget == "time" else f"{used:.3g}" if budget == "FLOPs" else f"{used:,.0f}"
            texts = [f"equal {budget} ({said})", _summary(first), _summary(second), *_paired(paired, "")]
            yield _line("budgets", texts, budget=budget, used=used, baseline=first, run=second, difference=paired)


def _loss_at(points: Sequence[tuple[float, float]], used: float) -> float | None:
    within = [loss for spent, loss in points if (1 - LAST) * used <= spent <= used]
    return added(within) / len(within) if within else None


def _summary(ours: Summary) -> str:
    return f"{ours.mean:.5g}" + (f" ± {ours.stderr:.2g}" if ours.stderr is not None else "") + f" ({ours.n})"


def _paired(paired: Paired | None, sign: str) -> list[str]:
    if paired is None:
        return ["-", "-"]
    interval = "-" if paired.low is None else f"[{paired.low:+.3g}, {paired.high:+.3g}]"
    return [f"{paired.mean:+.3g} {sign}".rstrip() + f" ({paired.n})", interval]
