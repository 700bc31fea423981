"""Two cells side by side: what their runs differ in, their metrics paired by seed, their costs, and equal budgets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from comt_cli.errors import UserError
from comt_cli.files import read_json
from comt_cli.report import format
from comt_cli.report.collect import ENDED, Cell, Run
from comt_cli.report.frame import Record, frame_of
from comt_cli.report.logs import Budget, curve
from comt_cli.report.statistics import (
    Outcome,
    Paired,
    Summary,
    detectable,
    judge,
    p_value,
    paired_difference,
    summarise,
)
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
    what they are made of. `attrs["unfair"]` says why the metrics cannot be compared, or not as those of methods alone.

    Raises:
        UserError: the sides are of different tasks.
    """
    sides = {side: tuple(own) for side, own in runs.groupby("side", sort=False)["_run"]}
    base, other = cells = [Cell(own[0].spec.row, own[0].spec.column, own) for own in sides.values()]
    first, second = (cell.runs[0].spec for cell in cells)
    if first.command != second.command:
        one, another = runs["name"].iloc[0], runs["name"].iloc[-1]
        raise UserError(
            f"{one} is {first.task.model_kind}, and {another} {second.task.model_kind}",
            "Runs of one task can be compared.",
        )
    settings = list(_differing("settings", _settings(first), _settings(second)))
    circumstances = _differing("circumstances", _circumstances(base.runs), _circumstances(other.runs))
    frame = frame_of([*settings, *circumstances, *_metrics(*cells), *_costs(*cells), *_budgets(*cells)])
    names = list(dict(zip(runs["side"], runs["name"], strict=True)).values())
    unfair = _unfair(cells, names, [each["name"] for each in settings])
    frame.attrs = {"sides": [_side(cell) for cell in cells], "unfair": list(unfair)}
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

    def plain(line: Mapping[str, Any]) -> dict[str, Any]:
        return {key: asdict(each) if isinstance(each, Summary | Paired) else each for key, each in line.items()}

    base, other = frame.attrs["sides"]
    sections = {section: frame.loc[frame["section"] == section, "_found"] for section in HEADS}
    found = {section: [plain(line) for line in lines] for section, lines in sections.items()}
    return {"baseline": base, "run": other, "unfair": frame.attrs["unfair"], **found}


def _line(section: str, texts: Sequence[str], **found: Any) -> Record:
    return {"section": section, "name": texts[0], "_found": found, "_texts": [*texts]}


def _side(cell: Cell) -> dict[str, Any]:
    spec = cell.runs[0].spec
    return {
        "row": spec.row,
        "column": spec.column,
        "table": f"{spec.paper}/{spec.table}",
        "scale": spec.scale,
        "ids": {run.spec.seed: run.spec.id for run in cell.runs},
        "diverged": [run.spec.seed for run in cell.having(RunState.diverged)],
    }


def _settings(spec: RunSpec) -> dict[str, Any]:
    found = {f"method.{key}": value for key, value in spec.method.items()}
    runtime = spec.task.runtime_keys
    for section, values in spec.settings.model_dump(mode="json").items():
        found |= {f"{section}.{key}": each for key, each in values.items() if key not in runtime.get(section, ())}
    if spec.start is not None:
        source = spec.start.run
        found["start"] = f"{source.paper}/{source.table}:{source.row}:{source.column}"
    return found


def _circumstances(runs: Sequence[Run]) -> dict[str, Any]:
    """Data, device, commit and kernels of the runs; several values are joined. What cannot be read is not recorded."""

    def joined(values: Iterable[Any]) -> str:
        return ", ".join(sorted({str(each) for each in values}))

    recorded = ("data_content", "device", "git_commit", "numerics")
    found = {key: joined((run.result or {}).get(key) or "not recorded" for run in runs) for key in recorded}
    last: list[Mapping[str, Any]] = []
    for run in runs:
        try:
            last.append(dict(read_json(run.directory.environment_file)[-1]))
        except (*READING_ERRORS, IndexError):
            last.append({})
    # Starts without a record of CUDA graphs had none, and their products and attention were PyTorch's.
    known = dict.fromkeys(("torch", "compiled", "sharding"), "not recorded")
    otherwise = {**known, "captured": False, "products": PYTORCH, "attention": PYTORCH}
    found |= {key: joined(each.get(key, default) for each in last) for key, default in otherwise.items()}
    kernels = [each.get("kernels") or {} for each in last]
    for name in dict.fromkeys(name for each in kernels for name in each):
        found[f"kernel of {name}"] = joined(str(each[name]).partition(" (")[0] for each in kernels if name in each)
    return found


def _differing(section: str, base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Record]:
    for key in dict.fromkeys([*base, *other]):
        ends = [base.get(key), other.get(key)]
        if ends[0] != ends[1]:
            shown = ("-" if each is None else each if isinstance(each, str) else json.dumps(each) for each in ends)
            yield _line(section, [key, *shown], key=key, baseline=ends[0], run=ends[1])


def _unfair(cells: Sequence[Cell], names: Sequence[str], settings: Sequence[str]) -> Iterator[str]:
    scales = [cell.runs[0].spec.scale for cell in cells]
    if scales[0] != scales[1]:
        yield f"the scales differ: {scales[0]} and {scales[1]}"
    contents = [{(run.result or {}).get("data_content") for run in cell.runs} for cell in cells]
    if contents[0] != contents[1]:
        yield "the data differ by the hash of their content: no metric can be compared"
    if beside := [name for name in settings if name.partition(".")[0] not in ("method", "start")]:
        yield f"not the method alone differs: {', '.join(beside)}"
    for name, cell in zip(names, cells, strict=True):
        if seeds := [str(run.spec.seed) for run in cell.having(RunState.diverged)]:
            yield f"{name} diverged with seed {', '.join(seeds)}: the seeds that did not are the lucky ones"


def _metrics(base: Cell, other: Cell) -> Iterator[Record]:
    """The second side's difference to the first over the seeds both have; the verdict is that of a table's row without
    a published value."""
    lost = [len(cell.having(RunState.diverged)) for cell in (base, other)]
    for key, metric in base.runs[0].spec.task.metrics.items():
        theirs, ours, unit = base.values(key), other.values(key), metric.difference
        first, second = summarise(list(theirs.values())), summarise(list(ours.values()))
        if first is None or second is None:
            continue
        paired = paired_difference(ours, theirs, unit)
        verdict = judge(
            is_baseline=False,
            ours=Outcome(second.n, lost[1]),
            baseline=Outcome(first.n, lost[0]),
            difference=paired,
            paper=None,
            paper_baseline=None,
            metric=metric,
        ).value
        ends, p = (None, None) if paired is None else (detectable(paired, unit), p_value(paired, unit))
        would = "-" if ends is None else f"{ends[0]:+.3g} or {ends[1]:+.3g} {unit.sign}"
        texts = [metric.label, *_texts(first, second, paired, unit.sign), verdict, would]
        found = {"baseline": first, "run": second, "unit": unit.name, "difference": paired, "p_value": p}
        yield _line("metrics", texts, key=key, **found, detectable=ends, verdict=verdict)


def _costs(base: Cell, other: Cell) -> Iterator[Record]:
    for key in (*_COSTS, base.runs[0].spec.task.unit.per_second):
        theirs, ours = (summarise(list(cell.values(key).values())) for cell in (base, other))
        if theirs is not None and ours is not None:
            ratio = f"{ours.mean / theirs.mean:.3f}" if theirs.mean else "-"
            texts = [key, f"{theirs.mean:.4g}", f"{ours.mean:.4g}", ratio]
            yield _line("costs", texts, key=key, baseline=theirs.mean, run=ours.mean)


def _budgets(base: Cell, other: Cell) -> Iterator[Record]:
    """The training losses when both sides have used as much as the one that ended with less, at equal steps, FLOPs and
    time, where the logs of a common seed have them."""
    sides = [{run.spec.seed: run for run in cell.having(RunState.done)} for cell in (base, other)]
    seeds = [seed for seed in sides[0] if seed in sides[1]]
    for budget in get_args(Budget):
        curves = [{seed: curve(side[seed].directory, side[seed].result or {}, budget) for seed in seeds}
                  for side in sides]  # fmt: skip
        every = [points for each in curves for points in each.values()]
        if not every or not all(every):
            continue
        used, losses = min(points[-1][0] for points in every), []
        for each in curves:
            last = {seed: [loss for spent, loss in points if (1 - LAST) * used <= spent <= used]
                    for seed, points in each.items()}  # fmt: skip
            losses.append({seed: added(within) / len(within) for seed, within in last.items() if within})
        first, second = (summarise(list(each.values())) for each in losses)
        if first is not None and second is not None:
            paired = paired_difference(losses[1], losses[0], POINTS)  # in nats
            said = format.duration(used) if budget == "time" else f"{used:.3g}" if budget == "FLOPs" else f"{used:,.0f}"
            texts = [f"equal {budget} ({said})", *_texts(first, second, paired, "")]
            yield _line("budgets", texts, budget=budget, used=used, baseline=first, run=second, difference=paired)


def _texts(first: Summary, second: Summary, paired: Paired | None, sign: str) -> list[str]:
    errors = ("" if each.stderr is None else f" ± {each.stderr:.2g}" for each in (first, second))
    shown = [f"{each.mean:.5g}{error} ({each.n})" for each, error in zip((first, second), errors, strict=True)]
    if paired is None:
        return [*shown, "-", "-"]
    interval = "-" if paired.low is None else f"[{paired.low:+.3g}, {paired.high:+.3g}]"
    return [*shown, f"{paired.mean:+.3g} {sign}".rstrip() + f" ({paired.n})", interval]
