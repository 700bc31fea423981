"""`comt compare`: two cells side by side, paired by seed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import completion, options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from comt_cli.report.compare import Comparison, Difference, Side
    from comt_cli.report.statistics import Paired, Summary
    from comt_cli.tasks.base import DifferenceUnit

_RUN = f"A run directory; {options.SELECTOR}. Without a seed all seeds of the cell."
Base = Annotated[
    str, typer.Argument(metavar="BASELINE", help=_RUN, show_default=False, autocompletion=completion.selectors)
]
Other = Annotated[
    str, typer.Argument(metavar="RUN", help="The same.", show_default=False, autocompletion=completion.selectors)
]


def compare(
    baseline: Base,
    run: Other,
    *,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two runs, or two cells over their seeds. Shows settings, metrics, costs, and the loss at equal budgets.

    Differences are of the second to the first, paired by seed, with the interval and the verdict that tables use, and
    what so many seeds would show. What makes the comparison unfair is said first. Trains nothing, writes nothing.

    Examples:

      comt compare table3:pre-ln table3:pre-ln+comt

      comt compare table3@steps-200:pre-ln table3@steps-200:pre-ln+comt

      comt compare table3:pre-ln::1 table3:pre-ln+comt::1 --json
    """
    from comt_cli.report import compare as comparing

    sides = [_side(text, runs, scale, set_) for text in (baseline, run)]
    found = comparing.compare(*sides)
    if as_json:
        typer.echo(json.dumps(_as_json(found), indent=2))
        return
    for line in _lines(found):
        typer.echo(line)


def _side(text: str, runs: Path, scale: str | None, set_: list[str] | None) -> Side:
    """The runs that a path or selector means, whatever became of them: a seed that diverged must not be passed over."""
    from comt_cli.commands.run_selectors import cell_runs, is_selector
    from comt_cli.report.compare import read_side
    from comt_cli.runs.directory import RunDirectory

    if Path(text).exists() or not is_selector(text):
        path = Path(text)
        return read_side(text, [RunDirectory(path.parent if path.is_file() else path)])
    return read_side(text, [run.directory for run in cell_runs(text, runs, scale, set_)])


def _lines(found: Comparison) -> Iterator[str]:
    from comt_cli.report import compare as comparing
    from comt_cli.report import format

    base, other = found.base, found.other
    for letter, side in (("A", base), ("B", other)):
        spec = side.first
        yield f"{letter}: {spec.paper}/{spec.table}, {spec.row} at {spec.column}, scale {spec.scale}, " + (
            f"seed{'s' * (len(side.specs) > 1)} {format.seeds(side.specs)}"
        )
    for reason in found.unfair:
        yield f"Not fair: {reason}."
    for title, differences in (("Settings that differ", found.settings), ("Trained with", found.circumstances)):
        if differences:
            lines = [[each.key, _value(each.base), _value(each.other)] for each in differences]
            yield from _grid([title, "A", "B"], lines)
    lines = [
        [each.label, _summary(each.base), _summary(each.other), *_paired(each.paired, each.unit), each.verdict.value,
         _detectable(each.detectable, each.unit)]
        for each in found.metrics
    ]  # fmt: skip
    yield from _grid(["Metric", "A", "B", "B to A", "95 %", "B is", "so many seeds would show"], lines)
    lines = [
        [each.key, f"{each.base:.4g}", f"{each.other:.4g}", f"{each.other / each.base:.3f}" if each.base else "-"]
        for each in found.costs
    ]
    yield from _grid(["Cost, mean of the seeds", "A", "B", "B / A"], lines)
    from comt_cli.tasks.base import POINTS

    lines = [
        [f"equal {each.budget} ({_used(each.budget, each.used)})", _summary(each.base), _summary(each.other),
         *_paired(each.paired, POINTS, sign="")]
        for each in found.budgets
    ]  # fmt: skip
    yield from _grid(["Training loss at", "A", "B", "B - A", "95 %"], lines)
    if found.budgets:
        yield f"A loss at a budget is the mean of what was logged in its last {comparing.LAST:.0%}; where one side has"
        yield "more left, its rate has not fallen to the end there. Time is as measured, with the kernels used."


def _used(budget: str, used: float) -> str:
    from comt_cli.report import format

    return format.duration(used) if budget == "time" else f"{used:.3g}" if budget == "FLOPs" else f"{used:,.0f}"


def _value(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def _summary(ours: Summary) -> str:
    return f"{ours.mean:.5g}" + (f" ± {ours.stderr:.2g}" if ours.stderr is not None else "") + f" ({ours.n})"


def _paired(paired: Paired | None, unit: DifferenceUnit, sign: str | None = None) -> tuple[str, str]:
    if paired is None:
        return "-", "-"
    shown = unit.sign if sign is None else sign
    interval = "-" if paired.low is None or paired.high is None else f"[{paired.low:+.3g}, {paired.high:+.3g}]"
    return f"{paired.mean:+.3g} {shown}".rstrip() + f" ({paired.n})", interval


def _detectable(ends: tuple[float, float] | None, unit: DifferenceUnit) -> str:
    return "-" if ends is None else f"{ends[0]:+.3g} or {ends[1]:+.3g} {unit.sign}"


def _grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """An empty line and a table whose columns are as wide as their texts."""
    if not lines:
        return
    every = [head, *lines]
    widths = [max(len(line[number]) for line in every) for number in range(len(head))]
    yield ""
    for line in every:
        texts = [f"{text:{width}}" if not number else f"{text:>{width}}" for number, (text, width) in
                 enumerate(zip(line, widths, strict=True))]  # fmt: skip
        yield "  ".join(texts).rstrip()


def _differing(each: Difference) -> dict[str, Any]:
    return {"key": each.key, "baseline": each.base, "run": each.other}


def _as_json(found: Comparison) -> dict[str, Any]:
    def side(one: Side) -> dict[str, Any]:
        spec = one.first
        return {
            "row": spec.row, "column": spec.column, "table": f"{spec.paper}/{spec.table}", "scale": spec.scale,
            "ids": {seed: each.id for seed, each in one.specs.items()}, "diverged": list(one.diverged),
        }  # fmt: skip

    def paired(one: Paired | None) -> dict[str, Any] | None:
        return None if one is None else asdict(one)

    return {
        "baseline": side(found.base),
        "run": side(found.other),
        "unfair": list(found.unfair),
        "settings": [_differing(each) for each in found.settings],
        "circumstances": [_differing(each) for each in found.circumstances],
        "metrics": [
            {
                "key": each.key, "baseline": asdict(each.base), "run": asdict(each.other), "unit": each.unit.name,
                "difference": paired(each.paired), "p_value": each.p_value, "detectable": each.detectable,
                "verdict": each.verdict.value,
            }
            for each in found.metrics
        ],
        "costs": [_differing(each) for each in found.costs],
        "budgets": [
            {"budget": each.budget, "used": each.used, "baseline": asdict(each.base), "run": asdict(each.other),
             "difference": paired(each.paired)}
            for each in found.budgets
        ],
    }  # fmt: skip
