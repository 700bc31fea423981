"""`comt compare` and `comt curves`: two cells paired by seed, and the learning curves of a recipe's rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import options
from comt_cli.commands.options import OfRuns, Selection
from comt_cli.errors import UserError
from comt_cli.files import read_json
from comt_cli.report import format
from comt_cli.report.collect import ENDED, Cell, Run
from comt_cli.report.exhibits.curves import Curves
from comt_cli.report.exhibits.sweep import read_sweep
from comt_cli.report.frame import cells_of, runs_frame
from comt_cli.report.run_list import settings_told
from comt_cli.report.statistics import detectable, judge, p_value, paired_difference, summarise
from comt_cli.report.terminal import print_texts, say_written
from comt_cli.report.words import circumstances
from comt_cli.report.write import place, write_exhibit
from comt_cli.runs.directory import PYTORCH, READING_ERRORS, RunDirectory, RunState
from comt_cli.runs.logs import LEAST, SPIKES
from comt_cli.runs.plan import RunSpec, WeightsStart
from comt_cli.verbs.plan import Planned, plan_selected
from comt_cli.verbs.select import cell_directories

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

_RUN = f"A run directory, {options.SELECTOR}. Without a seed: all seeds of the cell."
Line = tuple[list[str], dict[str, Any]]  # a line of a section: its texts, and their numbers
_HEADS = {
    "settings": ["Settings that differ", "A", "B"],
    "circumstances": ["Trained with", "A", "B"],
    "metrics": ["Metric", "A", "B", "B vs A [95 %]", "B is", "detectable with n seeds"],
    "costs": ["Cost, mean over seeds", "A", "B", "B / A"],
}
"""The sections of a comparison, with the headings of their columns."""
_COSTS = ("parameters", "flops", "train_seconds", "peak_memory_bytes")


def compare(
    baseline: Annotated[str, options.run_argument(_RUN, "BASELINE")],
    run: Annotated[str, options.run_argument("Likewise.", "RUN")],
    *,
    of: OfRuns,
    as_json: options.AsJson = False,
) -> None:
    """Compare two runs, or two cells over their seeds. Show settings, circumstances, metrics and costs.

    Differences are those of RUN from BASELINE, paired by seed, with the 95 % interval, the verdict that tables use, and
    the effect that this number of seeds can detect. Reasons why the comparison is unfair come first.

    Examples:
      comt compare table3:pre-ln table3:pre-ln+comt
      comt compare table3@steps-200:pre-ln::1 table3@steps-200:pre-ln+comt::1 --json
    """
    names = (baseline, run)
    base, other = cells = [_cell(cell_directories(name, of)) for name in names]
    first, second = (cell.runs[0].spec for cell in cells)
    if first.command != second.command:
        raise UserError(
            f"{baseline} is {first.task.model_kind}, but {run} is {second.task.model_kind}",
            "Compare runs of the same task.",
        )
    settings = [*_differing(_settings(first), _settings(second))]
    sections = {
        "settings": settings,
        "circumstances": [*_differing(_circumstances(base.runs), _circumstances(other.runs))],
        "metrics": [*_metrics(base, other)],
        "costs": [*_costs(base, other)],
    }
    sides: list[Any] = [_side(cell) for cell in cells]
    unfair = [*_unfair(cells, names, [texts[0] for texts, _ in settings])]
    if as_json:
        data = {"baseline": sides[0], "run": sides[1], "unfair": unfair}
        data |= {section: [found for _, found in lines] for section, lines in sections.items()}
        typer.echo(json.dumps(data, indent=2, default=asdict))
        return
    for letter, side in zip("AB", sides, strict=True):
        trained = circumstances(side["ids"], side["scale"], ())
        typer.echo(f"{letter}: {side['table']}, {side['row']} at {side['column']}; {trained}")
    for reason in unfair:
        typer.echo(f"Not fair: {reason}.")
    for section, lines in sections.items():
        if lines:
            typer.echo()
            print_texts(_HEADS[section], [texts for texts, _ in lines])


def _cell(directories: Sequence[RunDirectory]) -> Cell:
    """The runs of these directories as a cell. Raises `UserError` if one has not ended or cannot be read."""
    runs = []
    for directory in directories:
        spec, state = directory.spec(), directory.state()
        if state not in ENDED:
            raise UserError(f"{directory.shown} is {state.value}", "Only runs that have ended can be compared.")
        runs.append(Run(spec, state, directory, directory.result() or {}))
    runs.sort(key=lambda run: run.spec.seed)
    return Cell(runs[0].spec.row, runs[0].spec.column, tuple(runs))


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
    found |= settings_told(spec.settings, spec.task)
    if isinstance(spec.start, WeightsStart):
        found |= {"start": spec.start.content or spec.start.weights, "start.added": spec.start.added}
    elif (source := spec.source) is not None:
        found["start"] = f"{source.paper}/{source.table}:{source.row}:{source.column}"
    return found


def _circumstances(runs: Sequence[Run]) -> dict[str, Any]:
    """Data, device, versions and kernels of the runs; several values are joined. Unreadable values are "not
    recorded"."""

    def joined(values: Iterable[Any]) -> str:
        return ", ".join(sorted({str(each) for each in values}))

    recorded = ("data_content", "device", "git_commit", "numerics")
    found = {key: joined((run.result or {}).get(key) or "not recorded" for run in runs) for key in recorded}
    last = [_last_start(run) for run in runs]
    # Older records lack these keys: those runs used no CUDA graphs, and PyTorch's products and attention.
    otherwise = {"torch": "not recorded", "captured": False, "products": PYTORCH, "attention": PYTORCH}
    found |= {key: joined(each.get(key, default) for each in last) for key, default in otherwise.items()}
    kernels = [each["kernels"] if isinstance(each.get("kernels"), dict) else {} for each in last]
    for name in dict.fromkeys(name for each in kernels for name in each):
        found[f"kernel of {name}"] = joined(str(each[name]).partition(" (")[0] for each in kernels if name in each)
    return found


def _last_start(run: Run) -> dict[str, Any]:
    try:
        return dict(read_json(run.directory.environment_file)[-1])
    except (*READING_ERRORS, IndexError):
        return {}


def _differing(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Line]:
    for key in dict.fromkeys([*base, *other]):
        ends = [base.get(key), other.get(key)]
        if ends[0] != ends[1]:
            shown = ("-" if each is None else each if isinstance(each, str) else json.dumps(each) for each in ends)
            yield [key, *shown], {"key": key, "baseline": ends[0], "run": ends[1]}


def _unfair(cells: Sequence[Cell], names: Sequence[str], settings: Sequence[str]) -> Iterator[str]:
    scales = [cell.runs[0].spec.scale for cell in cells]
    if scales[0] != scales[1]:
        yield f"the scales differ: {scales[0]} and {scales[1]}"
    if len({frozenset(run.content for run in cell.runs) for cell in cells}) > 1:
        yield "the data differ (by their hashes): metrics cannot be compared"
    if others := [name for name in settings if name.partition(".")[0] not in ("method", "start")]:
        yield f"settings other than the method differ: {', '.join(others)}"
    for name, cell in zip(names, cells, strict=True):
        if seeds := [str(run.spec.seed) for run in cell.having(RunState.diverged)]:
            yield f"{name} diverged with seed {', '.join(seeds)}: its remaining seeds are a biased sample"


def _metrics(base: Cell, other: Cell) -> Iterator[Line]:
    """The differences of the second cell from the first over their common seeds. The verdict is that of a table's row
    without a published value."""
    lost, base_lost = (bool(cell.having(RunState.diverged)) for cell in (other, base))
    for key, metric in base.runs[0].spec.task.metrics.items():
        theirs, ours, unit = base.values(key), other.values(key), metric.difference
        sides = [side for each in (theirs, ours) if (side := summarise(list(each.values()))) is not None]
        if len(sides) < 2:
            continue
        paired = paired_difference(ours, theirs, unit)
        verdict = judge(paired, metric, diverged=lost, baseline_diverged=base_lost).value
        ends, p = (None, None) if paired is None else (detectable(paired, unit), p_value(paired, unit))
        difference = "-" if paired is None else f"{format.difference(paired)} {unit.sign} ({paired.n})"
        would = "-" if ends is None else format.detectable(ends, unit)
        texts = [metric.label, *(format.summary(side, metric.decimals) for side in sides), difference, verdict, would]
        found = {"key": key, "baseline": sides[0], "run": sides[1], "unit": unit.name, "difference": paired}
        yield texts, found | {"p_value": p, "detectable": ends, "verdict": verdict}


def _costs(base: Cell, other: Cell) -> Iterator[Line]:
    for key in (*_COSTS, base.runs[0].spec.task.unit.per_second):
        theirs, ours = (summarise(list(cell.values(key).values())) for cell in (base, other))
        if theirs is not None and ours is not None:
            ratio = f"{ours.mean / theirs.mean:.3f}" if theirs.mean else "-"
            texts = [key, f"{theirs.mean:.4g}", f"{ours.mean:.4g}", ratio]
            yield texts, {"key": key, "baseline": theirs.mean, "run": ours.mean}


def curves(
    recipe: options.RecipeArgument,
    *,
    of: Selection,
    quantity: Annotated[
        str, typer.Option(metavar="NAME", help="loss (training), gradient_norm, or another quantity of the logs.")
    ] = "loss",
    runs: options.Runs = options.DEFAULT_RUNS,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Draw the learning curves of a recipe's rows, and their differences to the baseline at equal steps.

    The curves are means over seeds; differences are paired by seed, with their 95 % interval.
    Unfinished runs are drawn up to their last step. Of a sweep, the runs at each row's best value are drawn. The figure
    (PNG, PDF, caption, CSV) is next to the recipe's table; with selected rows, columns or seeds it has its own name.

    Quantities: validation_loss and other metrics; loss_spikes and gradient_norm_spikes, the share of logged steps with
    a spike; of runs with train.observe_every gate_mean, gate_saturation (site and kind), stream_norm, branch_norm and
    branch_cosine (branch). A wrong name lists all.

    Examples:
      comt curves table3 --rows pre-ln,pre-ln+comt --seeds 1-3
      comt curves table3 --quantity gate_mean.q_proj.scalar
    """
    from comt_cli.report.figures import of_all

    planned, exhibit = plan_selected(recipe, of, runs=runs), Curves(quantity)
    loaded = planned.loaded
    frame = exhibit.frame(_shown_runs(planned, runs))
    if frame.empty:
        if frame.attrs["known"]:
            few = f"A run needs more than {LEAST} logged steps: train.log_every." if quantity in SPIKES else None
            raise UserError(f"the logs have no {quantity}", few or f"Quantities: {', '.join(frame.attrs['known'])}")
        hint = "Give the same --scale, --set, --seeds and --runs as in the training command."
        raise UserError(f"no run of {loaded.name} at scale {of.scale} below {runs} has a log", hint)
    name = exhibit.name
    if of.rows or of.columns or of.seeds or of.also:  # must not replace the figure of the whole recipe
        name += f"-{of_all(spec.id for spec in planned.specs)}"
    path = place(results, of.scale, loaded, f"-{name}")
    say_written(write_exhibit(exhibit, frame, path.parent, path.name, anew=True))
    for sentence in frame.attrs["findings"]:
        typer.echo(f"{sentence}.")


def _shown_runs(planned: Planned, runs: Path) -> pd.DataFrame:
    """The runs to draw: of a grid those at the chosen configuration, of a sweep those at each row's best. Of several
    columns with the same runs, the first. Raises `UserError` if nothing is chosen yet."""
    loaded, specs = planned.loaded, planned.with_contents(runs).specs
    if planned.has_trials:
        state = read_sweep(loaded, planned.scale, specs, runs)
        specs = [spec for each in state.shown["own"].values() for spec in each]
    frame = runs_frame(loaded, specs, runs) if specs else None
    if frame is not None:
        for (row, column), cell in cells_of(frame).items():
            if cell.is_open:
                typer.echo(f"comt: skipped {row} at {column}: no configuration is chosen yet", err=True)
        cells = zip(frame["_cell"], frame["_run"], strict=True)
        frame = frame[[not cell.is_open and run.chosen is not False for cell, run in cells]]
    if frame is None or frame.empty:
        hint = "comt status lists the runs that are left to train."
        raise UserError(f"no configuration is chosen at scale {planned.scale} yet", hint)
    columns: dict[tuple[str, ...], str] = {}
    for name, own in frame.groupby("column", sort=False):
        columns.setdefault(tuple(own["id"]), str(name))
    return frame[frame["column"].isin(columns.values())]
