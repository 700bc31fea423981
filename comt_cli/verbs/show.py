"""Plans of recipes: every run with its cost, time and state; several recipes as one queue; the settings of a cell."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from comt_cli.campaign import estimate
from comt_cli.campaign.estimate import Estimator
from comt_cli.campaign.executor import check_training
from comt_cli.campaign.processes import runs_at_once
from comt_cli.campaign.slurm import Site
from comt_cli.commands import completion, options
from comt_cli.commands.options import Selection, Where
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.models import accounting
from comt_cli.recipe.find import find_recipe
from comt_cli.recipe.load import LoadedRecipe, load_recipe, select
from comt_cli.recipe.merge import Origin
from comt_cli.report.exhibits.sweep import read_sweep
from comt_cli.report.terminal import print_texts, say
from comt_cli.runs.directory import ENDED, RunDirectory
from comt_cli.runs.known import Standing, adopt_contents
from comt_cli.runs.plan import RunSpec
from comt_cli.runs.shared import needed_runs, shared_runs
from comt_cli.training.hardware import Hardware, hardware, planned_hardware
from comt_cli.training.processes import share_of_batch
from comt_cli.verbs.plan import Planned, also_rows, plan_selected
from comt_cli.words import duration, plural, short_count

AT_SLURM = ": each a job for Slurm, but those that are in its queue."


_OTHER = "Time and memory on --gpus of another machine: h200, h100, a100 ..."
_CELL = "Print every setting of one cell instead, with the file and line that it comes from."


@dataclass(frozen=True)
class Planning(Where):
    """The machine of the costs: this one, or another."""

    slurm: Path | None = None
    track: list[str] | None = None
    results: Path = options.DEFAULT_RESULTS
    overwrite: bool = False
    plan_for: Annotated[str | None, typer.Option(metavar="GPU", help=_OTHER, show_default=False)] = None


def show(
    recipe: options.RecipeArgument,
    *,
    of: Selection,
    where: Planning,
    no_cost: Annotated[bool, typer.Option("--no-cost", help="Count nothing: the runs and their state alone.")] = False,
    settings: Annotated[
        str | None, typer.Option(metavar="ROW[,COLUMN]", help=_CELL, autocompletion=completion.rows)
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the plan of a recipe: every run and what it costs. That is its parameters and overhead, its tokens or
    images, FLOPs, time, memory and state.

    Parameters and FLOPs are counted on the real model, built without storage, and remembered; beside the extra
    parameters stands the increase that the paper prints. Trains and downloads nothing.

    Examples:

      comt show table3.yaml

      comt show transponder/table2 --scale paper --columns c4/130m

      comt show transponder/table2 --scale paper --columns c4/130m --plan-for h100 --gpus 8

      comt show table3.yaml --also wide='{name: comt, hidden: 64}' --json

      comt show table3.yaml --settings pre-ln+comt --set train.steps=200
    """
    if settings is not None:
        if of.rows or of.columns or of.seeds or no_cost or where != Planning(runs=where.runs):
            unfit = "--rows, --columns, --seeds, --no-cost, --device, --gpus, --jobs nor --plan-for"
            raise UserError(f"--settings prints the settings of one cell: it goes with neither {unfit}")
        _print_settings(recipe, of, settings, as_json=as_json)
        return
    planned = plan_selected(recipe, of)
    if where.plan_for is not None and (where.device is not None or no_cost):
        raise UserError("--plan-for goes with neither --device nor --no-cost", "Leave one of them out.")
    if as_json:
        typer.echo(json.dumps(Plan(planned, where, costs=not no_cost).rows, indent=2))
    else:
        print_plan(planned, where, costs=not no_cost)


class Plan:
    """Every run of a plan, of other tables those first that these start from, as a row of plain data. Without `costs`
    nothing is counted; without a `device` (jobs of Slurm train elsewhere) no time is estimated. Raises `UserError`
    where there is no such device, its options do not go together, or a run's model does not fit that of its source."""

    def __init__(self, planned: Planned, where: Where, *, costs: bool = True, here: bool = True) -> None:
        self.device = checked_hardware(where, planned.specs) if here else None
        own = adopt_contents(planned.specs, where.runs, ambiguous=True)
        if costs and any(spec.start is not None for spec in own):
            from comt_cli.training.checkpoint import check_starts  # and torch

            check_starts(own)
        ids = {spec.id for spec in own}
        self.first = [shared.spec for shared in needed_runs(own, where.runs) if shared.id not in ids]
        self.specs = [*self.first, *own]
        if costs:
            count(self.specs)
        self.estimator = estimator_for(self.specs, self.device, where) if costs and self.device is not None else None
        self.rows = [self._row(planned, spec, where, costs=costs) for spec in self.specs]

    def _row(self, planned: Planned, spec: RunSpec, where: Where, *, costs: bool) -> dict[str, Any]:
        train, directory = spec.settings.train, RunDirectory.of(where.runs, spec)
        counted: dict[str, Any] = dict.fromkeys(("parameters", "extra_parameters", "extra_parameters_percent"))
        flops = memory = seconds = source = None
        if costs:
            network = accounting.cost_of(spec)
            counted = {key: getattr(network, key) for key in counted}
            counted["extra_parameters_percent"] = round(counted["extra_parameters_percent"], 4)
            share = math.ceil(train.batch_size / where.gpus)
            flops = accounting.total_flops(spec)
            memory = accounting.training_bytes(spec, min(train.micro_batch_size or share, share))
        if self.estimator is not None:
            found = self.estimator.of(spec)
            seconds, source = round(found.seconds, 1), found.source
        try:
            state = directory.state().value
        except UserError:  # `comt status` says why
            state = Standing.unreadable.value
        printed = None if spec in self.first else planned.loaded.printed_increase(planned.scale, spec.row, spec.column)
        return {
            "table": f"{spec.paper}/{spec.table}",
            "row": spec.row,
            "column": spec.column,
            "seed": spec.seed,
            **({"grid": spec.point} if spec.point else {}),
            "id": spec.id if spec.is_known else None,  # not known before the data is prepared
            "data_content": spec.data_content,
            "start": spec.start.run.id if spec.start is not None and spec.start.run.is_known else None,
            "method": spec.method,
            **counted,
            "paper_increase": printed,
            "steps": train.steps,
            spec.task.unit.name: train.steps * train.batch_size * spec.task.positions(spec.settings),
            "flops": flops,
            "estimated_memory_bytes": memory,
            "estimated_seconds": seconds,
            "estimated_from": source,
            "state": state,
            "directory": str(directory.shown) if spec.is_known else None,
        }


def count(specs: Sequence[RunSpec]) -> None:
    """Count the networks of runs that nobody counted yet, and say on the error stream how many."""
    if left := list(accounting.to_count(specs)):
        print(f"counting {plural(len(left), 'network')} ...", file=sys.stderr, flush=True)
    for spec in left:
        accounting.cost_of(spec)


def checked_hardware(where: Where, specs: Sequence[RunSpec]) -> Hardware:
    """The device, once it is sure that these runs can be trained so. Raises `UserError` where they cannot."""
    if where.plan_for is not None:
        for spec in specs:
            share_of_batch(spec.settings.train.batch_size, where.gpus)
        return planned_hardware(where.plan_for, where.gpus)
    check_training(where.gpus, specs, where.device, where.jobs)
    return hardware(where.device)


def estimator_for(specs: Sequence[RunSpec], device: Hardware, where: Where) -> Estimator:
    """Estimates the time of these runs, whose costs should be known, as one command would train them."""
    finished = estimate.finished_runs(where.runs, device, where.gpus)
    if where.gpus > 1:
        return Estimator(finished, device, 1, None, where.gpus)
    at_once, threads = runs_at_once(device.kind, device.count, where.jobs, shared_runs(specs))
    return Estimator(finished, device, at_once, threads)


def time_in_words(specs: Sequence[RunSpec], states: Sequence[str], estimator: Estimator) -> str:
    """Time until all of these runs are done, each training once: `4 min, 2 at a time`."""
    seconds = estimator.makespan(spec for spec, state in zip(specs, states, strict=True) if state not in ENDED)
    return f"{duration(seconds)}{f', {estimator.at_once} at a time' if estimator.at_once > 1 else ''}"


def sweep_cost(planned: Planned, where: Where) -> str:
    """Runs, FLOPs and estimated time of trials and of what follows them, in two lines. Runs whose values the trials
    have not chosen yet are counted as one for the baseline's best and one for the cell's own. No time is estimated for
    jobs of Slurm, which train on another machine. Raises `UserError` where there is no such device."""
    known = adopt_contents(planned.specs, where.runs, ambiguous=True)
    sweep = read_sweep(planned.loaded, planned.scale, known, where.runs)
    specs, trials = sweep.at_most, {spec.request for spec in sweep.trials}
    count(specs)
    states = [RunDirectory.of(where.runs, spec).state().value for spec in specs]
    left, most = sum(state not in ENDED for state in states), "" if len(specs) == len(sweep.specs) else "at most "
    time = ""
    if where.slurm is None:
        device = checked_hardware(where, planned.specs)
        time = f", about {time_in_words(specs, states, estimator_for(specs, device, where))} on {device.name}"
    return (
        f"Sweep: {plural(len(trials), 'trial')} of {plural(len(sweep.grid.points), 'point')} and "
        f"{plural(len(sweep.grid.seeds), 'seed')} for {plural(len(sweep.tuned), 'cell')}, then {most}"
        f"{len(specs) - len(trials)} runs to show.\n"
        f"In all {most}{len(specs)} runs and {sum(map(accounting.total_flops, specs)):.2g} FLOPs; {left} to do{time}."
    )


def print_plan(
    planned: Planned, where: Where, *, costs: bool = True, fresh: bool = False, site: Site | None = None
) -> None:
    """Print the plan as a table a column, and the time that all of it takes; or, with a `site`, how many runs are jobs
    there. `fresh`: runs that are there are trained anew. Raises as `Plan`."""
    plan = Plan(planned, where, costs=costs, here=site is None)
    recipe, device, estimator = planned.loaded.recipe, plan.device, plan.estimator
    say(f"{recipe.title} ({planned.loaded.name}), scale {planned.scale}")
    say(recipe.scales[planned.scale].description)
    by_column: dict[tuple[str, str], list[tuple[RunSpec, dict[str, Any]]]] = {}
    for spec, row in zip(plan.specs, plan.rows, strict=True):
        is_first = spec in plan.first
        if fresh and not is_first and row["state"] in (*ENDED, "unfinished"):
            row["state"] = "anew"
        heading = f"to start from: {row['table']}, {spec.column}" if is_first else ""
        by_column.setdefault((heading, spec.column), []).append((spec, row))
    for (heading, column), lines in by_column.items():
        typer.echo(f"\n{heading}" if heading else "")
        _print_column(column, lines[0][0], [row for _, row in lines])
    states = {spec.id: row["state"] for spec, row in zip(plan.specs, plan.rows, strict=True)}  # some fill two columns
    before = f", {len(plan.first)} of them to start from" if plan.first else ""
    summary = f"{plural(len(states), 'run')}{before}, {sum(state not in ENDED for state in states.values())} to do"
    typer.echo()
    if site is not None:
        say(summary + AT_SLURM)
    elif estimator is None or device is None:
        say(f"{summary}. Costs were not counted.")
    else:
        time = time_in_words(plan.specs, [row["state"] for row in plan.rows], estimator)
        say(f"{summary}, about {time} on {device.words}.")
        _print_bases(planned, plan.rows, device)
        if planned.has_trials:
            typer.echo(f"\n{sweep_cost(planned, where)}")


def _print_bases(planned: Planned, rows: Sequence[dict[str, Any]], device: Hardware) -> None:
    """Print the sources of estimates, and whether a device that is planned for holds the runs."""
    if device.chip is not None:
        most = max(rows, key=lambda row: float(row["estimated_memory_bytes"]))
        fits = most["estimated_memory_bytes"] <= device.chip.memory
        say(
            f"Memory: {_memory(most['estimated_memory_bytes'])} of {device.chip.memory / 2**30:.0f} GiB a GPU for "
            f"{most['row']} at {most['column']}: {'all fit' if fits else 'does not fit; lower train.micro_batch_size'}."
        )
    elif device.kind == "cpu" and planned.scale != "smoke":
        say("For another machine: --plan-for h100 --gpus 8")
    sources = " and from ".join(dict.fromkeys(row["estimated_from"] for row in rows))
    tokens = " Tokens count padding." if any("tokens" in row for row in rows) else ""
    say(f"Time is estimated from {sources}; memory, roughly, from the tensors that the model keeps.{tokens}")


def print_all(tables: Sequence[Planned], where: Where, site: Site | None = None) -> None:
    """Print one line a recipe: its runs, how many are done, how many are trained for an earlier recipe anyway, and the
    time of the rest, which at a `site` is not known; then all of it as the one queue that it is. Raises `UserError`
    where there is no such device, or its options do not go together."""
    device = None
    if site is None:
        device = checked_hardware(where, [spec for planned in tables for spec in planned.specs])
    plans = [adopt_contents(planned.specs, where.runs, ambiguous=True) for planned in tables]
    specs = [shared.spec for shared in needed_runs([spec for plan in plans for spec in plan], where.runs)]
    states = {spec.id: RunDirectory.of(where.runs, spec).state().value for spec in specs}
    estimator = None
    if device is not None:
        count(specs)
        estimator = estimator_for(specs, device, where)
    lines, seen = [], set[str]()
    for planned, plan in zip(tables, plans, strict=True):
        own = {spec.id: spec for spec in plan}
        done = {name for name in own if states[name] in ENDED}
        shared = (own.keys() & seen) - done
        left = [spec for name, spec in own.items() if name not in done | shared]
        times = [] if estimator is None else [duration(estimator.makespan(left)) if left else "-"]
        lines.append([planned.loaded.name, *(str(len(part)) for part in (own, done, shared, left)), *times])
        seen |= own.keys()
    print_texts(["recipe", "runs", "done", "shared", "to do", *(["time"] if estimator is not None else [])], lines)
    left_in_all = sum(state not in ENDED for state in states.values())
    how = AT_SLURM
    if estimator is not None and device is not None:
        how = f", about {time_in_words(specs, [*states.values()], estimator)} on {device.name}."
    typer.echo(f"\n{len(tables)} recipes, {len(states)} different runs, {left_in_all} to do{how}")
    for planned in tables:
        if planned.has_trials:
            typer.echo(f"{planned.loaded.name}: {sweep_cost(planned, where)}", err=True)


def _print_column(column: str, first: RunSpec, rows: Sequence[dict[str, Any]]) -> None:
    counted, has_costs = first.task.unit.name, rows[0]["parameters"] is not None
    texts: dict[str, list[str]] = {column: [row["row"] for row in rows], "seed": [str(row["seed"]) for row in rows]}
    for key in first.point:
        texts[key.partition(".")[2]] = [_shown(row["grid"][key]) for row in rows]
    if has_costs:
        texts["parameters"] = [f"{row['parameters']:,}" for row in rows]
        texts["+%"] = [f"{row['extra_parameters_percent']:z.2f}" for row in rows]
        texts["paper's"] = [row["paper_increase"] or "-" for row in rows]
    texts[counted] = [short_count(row[counted]) for row in rows]
    if has_costs:
        texts["FLOPs"] = [f"{row['flops']:.2g}" for row in rows]
        if rows[0]["estimated_seconds"] is not None:
            texts["time"] = [duration(row["estimated_seconds"]) for row in rows]
        texts["memory"] = [_memory(row["estimated_memory_bytes"]) for row in rows]
    texts["state"] = [row["state"] for row in rows]
    print_texts([*texts], zip(*texts.values(), strict=True), left=[head in (column, "state") for head in texts])


def _memory(size: float) -> str:
    """`3.4 GiB`, of narrow networks `12 MiB`."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.0f} MiB"


def _print_settings(recipe: str, of: Selection, cell: str, *, as_json: bool) -> None:
    """Print the settings of a recipe's `cell`: a row and, where the scale has several columns, a column:
    `pre-ln,c4/130m`."""
    path, also = find_recipe(recipe), also_rows(of.also)
    loaded = load_recipe(path, catalogue(), of.set_ or (), of.scale, also, sweep=of.sweep or ())
    select(of.scale, map(str, loaded.recipe.scales), "scale")
    row, comma, column = cell.partition(",")
    (row,) = select(row, loaded.recipe.rows, "row")
    columns = list(loaded.columns(of.scale))
    if not comma and len(columns) > 1:
        raise UserError(f"--settings {cell}: say under which column", f"for instance {row},{columns[0]}")
    (column,) = select(column, columns, "column") if comma else columns
    found = list(_settings_of(loaded, of.scale, row, column))
    if as_json:
        keys = ("key", "value", "given_by")
        typer.echo(json.dumps([dict(zip(keys, setting, strict=True)) for setting in found], indent=2))
        return
    typer.echo(f"{loaded.name}, scale {of.scale}: {row} under {column}\n")
    texts = [(key, "-" if value is None else _shown(value), given_by) for key, value, given_by in found]
    print_texts(["setting", "value", "given by"], texts, left=[True] * 3)


def _settings_of(loaded: LoadedRecipe, scale: str, row: str, column: str) -> Iterator[tuple[str, Any, str]]:
    """Key, value and what gave it (`FILE:LINE`, an argument, or `default`), of the method and the settings. What a
    named size decides has its number."""
    stands = loaded.document.data["rows"][row]["method"]
    for key, value in loaded.methods[row].items():
        is_given = key == "name" or (isinstance(stands, dict) and key in stands)
        path = ("rows", row, "method", key)
        origin = Origin(path, loaded.document) if path[:2] in loaded.document.lines else Origin(argument="--also")
        yield f"method.{key}", value, _place(loaded, origin) if is_given else "default"
    settings, origins = loaded.settings[scale][row, column], loaded.origins[scale][row, column]
    grid = loaded.grids.get(scale)
    tried = [] if grid is None or grid.seeds else [grid.of(point) for point in loaded.points[scale][row, column]]
    shape = settings.model.shape()
    for section, values in settings.model_dump(mode="json").items():
        for key, value in values.items():
            name = f"{section}.{key}"
            if tried and name in tried[0]:
                every = [point[name] for point in tried]
                several = [each for number, each in enumerate(every) if each not in every[:number]]
                yield name, several, _place(loaded, origins[name])
            elif section == "model" and value is None and hasattr(shape, key):
                yield name, getattr(shape, key), f"size {settings.model.size}"
            else:
                yield name, value, _place(loaded, origins[name]) if name in origins else "default"


def _place(loaded: LoadedRecipe, origin: Origin) -> str:
    if origin.argument is not None:
        return origin.argument
    path = (loaded.path if origin.source is None else Path(origin.source)).resolve()
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{origin.line}" if origin.line is not None else str(shown)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
