"""Plans of recipes: every run with its cost and state, several recipes as one queue, and the settings of a cell."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from comt_cli.campaign import estimate
from comt_cli.campaign.estimate import Estimator
from comt_cli.campaign.slurm import Site
from comt_cli.commands import completion, options
from comt_cli.commands.options import Selection, Where
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.models import accounting
from comt_cli.recipe.find import find_recipe
from comt_cli.recipe.load import LoadedRecipe, load_recipe, select
from comt_cli.recipe.merge import Origin
from comt_cli.report.terminal import print_texts, say
from comt_cli.runs.directory import ENDED, RunDirectory
from comt_cli.runs.known import Standing, adopt_contents
from comt_cli.runs.plan import RunSpec
from comt_cli.runs.shared import needed_runs
from comt_cli.training.hardware import Hardware
from comt_cli.verbs import cost
from comt_cli.verbs.plan import Planned, also_rows, plan_selected
from comt_cli.words import duration, plural, short_count

LONG = 24
"""Characters of a setting's value that does not decide how wide the column of values is."""
AT_SLURM = ": each a job for Slurm, but those that are in its queue."


@dataclass(frozen=True)
class Planning(Where):
    """Of what machine the costs are: this one, or another."""

    slurm: Path | None = None
    track: list[str] | None = None
    results: Path = options.DEFAULT_RESULTS
    overwrite: bool = False
    plan_for: Annotated[
        str | None,
        typer.Option(
            metavar="GPU", help="Time and memory on --gpus of another machine: h200, h100, a100 ...", show_default=False
        ),
    ] = None


def show(
    recipe: options.RecipeArgument,
    *,
    of: Selection,
    where: Planning,
    no_cost: Annotated[
        bool, typer.Option("--no-cost", help="Count nothing: the runs and their state alone, at once.")
    ] = False,
    settings: Annotated[
        str | None,
        typer.Option(
            metavar="ROW[,COLUMN]",
            help="Print every setting of one cell instead, with the file and line that it comes from.",
            autocompletion=completion.rows,
        ),
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
        others: dict[str, object] = {"rows": of.rows, "columns": of.columns, "seeds": of.seeds, "no-cost": no_cost}
        others |= {"gpus": where.gpus > 1, "device": where.device, "jobs": where.jobs, "plan-for": where.plan_for}
        if unfit := [f"--{name}" for name, given in others.items() if given]:
            raise UserError(f"--settings does not go with {' and '.join(unfit)}: it prints the settings of one cell")
        _print_settings(recipe, of, settings, as_json=as_json)
        return
    planned = plan_selected(recipe, of)
    if where.plan_for is not None and (where.device is not None or no_cost):
        raise UserError("--plan-for goes with neither --device nor --no-cost", "Leave one of them out.")
    if as_json:
        typer.echo(json.dumps(_plan_rows(planned, where, costs=not no_cost), indent=2))
    else:
        print_plan(planned, where, costs=not no_cost)


def _plan_rows(planned: Planned, where: Where, *, costs: bool) -> list[dict[str, Any]]:
    """One dictionary a run; runs of other tables that these start from come first. Without `costs` those are None."""
    device = cost.checked_hardware(where, planned.specs)
    first, own = _with_sources(planned, where, costs=costs)
    specs, estimator = [*first, *own], None
    if costs:
        cost.count(specs)
        estimator = cost.estimator_for(specs, device, where)
    return [_row(planned, spec, where, estimator, costs=costs, in_table=spec not in first) for spec in specs]


def _with_sources(planned: Planned, where: Where, *, costs: bool) -> tuple[list[RunSpec], list[RunSpec]]:
    """The runs of other tables that must be done before these can start, done or not; and the runs. Where `costs` are
    counted, that each run's model fits that of its source is checked."""
    own = adopt_contents(planned.specs, where.runs, ambiguous=True)
    ids = {spec.id for spec in own}
    if costs and any(spec.start is not None for spec in own):
        from comt_cli.training.checkpoint import check_starts  # and torch

        check_starts(own)
    return [shared.spec for shared in needed_runs(own, where.runs) if shared.id not in ids], own


def _row(
    planned: Planned, spec: RunSpec, where: Where, estimator: Estimator | None, *, costs: bool, in_table: bool
) -> dict[str, Any]:
    train, directory = spec.settings.train, RunDirectory.of(where.runs, spec)
    counted: dict[str, Any] = dict.fromkeys(("parameters", "extra_parameters", "extra_parameters_percent"))
    later: dict[str, Any] = dict.fromkeys(("flops", "estimated_memory_bytes", "estimated_seconds", "estimated_from"))
    if costs:
        network = accounting.cost_of(spec)
        counted = {
            "parameters": network.parameters,
            "extra_parameters": network.extra_parameters,
            "extra_parameters_percent": round(network.extra_parameters_percent, 4),
        }
        share = math.ceil(train.batch_size / where.gpus)
        later["flops"] = accounting.total_flops(spec)
        later["estimated_memory_bytes"] = accounting.training_bytes(spec, min(train.micro_batch_size or share, share))
    if estimator is not None:
        found = estimator.of(spec)
        later |= {"estimated_seconds": round(found.seconds, 1), "estimated_from": found.source}
    try:
        state = directory.state().value
    except UserError:  # `comt status` says why
        state = Standing.unreadable.value
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
        "paper_increase": planned.loaded.printed_increase(planned.scale, spec.row, spec.column) if in_table else None,
        "steps": train.steps,
        spec.task.unit.name: train.steps * train.batch_size * spec.task.positions(spec.settings),
        **later,
        "state": state,
        "directory": str(directory.shown) if spec.is_known else None,
    }


def print_plan(
    planned: Planned, where: Where, *, costs: bool = True, fresh: bool = False, site: Site | None = None
) -> None:
    """The plan as a table a column, each printed once it is counted, and the time that all of it takes; or, with a
    `site`, how many runs are jobs there. `fresh`: what is there is trained anew. Runs of other tables that these start
    from stand before them. Raises `UserError` where there is no such device, its options do not go together, or a run's
    model does not fit that of the run it starts from."""
    device = cost.checked_hardware(where, planned.specs) if site is None else None
    finished = estimate.finished_runs(where.runs, device, where.gpus) if device is not None and costs else []
    recipe = planned.loaded.recipe
    say(f"{recipe.title} ({planned.loaded.name}), scale {planned.scale}")
    say(recipe.scales[planned.scale].description)
    first, own = _with_sources(planned, where, costs=costs)
    by_column: dict[str, list[RunSpec]] = {}
    for spec in first:
        by_column.setdefault(f"to start from: {spec.paper}/{spec.table}, {spec.column}", []).append(spec)
    for spec in own:
        by_column.setdefault(spec.column, []).append(spec)
    ordered = [spec for specs in by_column.values() for spec in specs]
    printed: list[dict[str, Any]] = []
    estimator = None
    with cost.counting(ordered if costs else []) as count_these:
        for column, specs in by_column.items():
            if costs:
                count_these(specs)
            if costs and device is not None:
                counted = ordered[: len(printed) + len(specs)]
                estimator = cost.estimator_for(ordered, device, where, finished, counted)
            in_table = specs[0] not in first
            rows = [_row(planned, spec, where, estimator, costs=costs, in_table=in_table) for spec in specs]
            for row in rows if fresh and in_table else ():
                row["state"] = "anew" if row["state"] in (*ENDED, "unfinished") else row["state"]
            printed += rows
            _print_column(column, rows, specs)
    states = {spec.id: row["state"] for spec, row in zip(ordered, printed, strict=True)}  # one run may fill two columns
    left = sum(state not in ENDED for state in states.values())
    before = f", {len(first)} of them to start from" if first else ""
    summary = f"{plural(len(states), 'run')}{before}, {left} to do"
    typer.echo()
    if site is not None:
        say(summary + AT_SLURM)
    elif estimator is None or device is None:
        say(f"{summary}. Costs were not counted.")
    else:
        time = cost.time_in_words(ordered, [row["state"] for row in printed], estimator)
        say(f"{summary}, about {time} on {device.words}.")
        _print_bases(planned, printed, where, device)


def _print_bases(planned: Planned, printed: Sequence[dict[str, Any]], where: Where, device: Hardware) -> None:
    """Where estimates come from, whether a device that is planned for holds the runs, and what a sweep costs."""
    if device.chip is not None:
        most = max(printed, key=lambda row: float(row["estimated_memory_bytes"]))
        fits = most["estimated_memory_bytes"] <= device.chip.memory
        say(
            f"Memory: {_memory(most['estimated_memory_bytes'])} of {device.chip.memory / 2**30:.0f} GiB a GPU for "
            f"{most['row']} at {most['column']}: {'all fit' if fits else 'does not fit; lower train.micro_batch_size'}."
        )
    elif device.kind == "cpu" and planned.scale != "smoke":
        say("For another machine: --plan-for h100 --gpus 8")
    sources = dict.fromkeys(row["estimated_from"] for row in printed)
    tokens = " Tokens count padding." if any("tokens" in row for row in printed) else ""
    say(
        f"Time is estimated from {' and from '.join(sources)}; memory, roughly, from the tensors that the model keeps."
        f"{tokens}"
    )
    if planned.has_trials:
        typer.echo(f"\n{cost.sweep_cost(planned, where)}")


def print_all(tables: Sequence[Planned], where: Where, site: Site | None = None) -> None:
    """One line a recipe: its runs, how many are done, how many are trained for an earlier recipe anyway, and the time
    of the rest, which at a `site` is not known. Then all of it as the one queue that it is. Raises `UserError` where
    there is no such device, or its options do not go together."""
    device = None
    if site is None:
        device = cost.checked_hardware(where, [spec for planned in tables for spec in planned.specs])
    plans = [adopt_contents(planned.specs, where.runs, ambiguous=True) for planned in tables]
    specs = [shared.spec for shared in needed_runs([spec for plan in plans for spec in plan], where.runs)]
    states = {spec.id: RunDirectory.of(where.runs, spec).state().value for spec in specs}
    estimator = None
    if device is not None:
        cost.count(specs)
        estimator = cost.estimator_for(specs, device, where)
    heads, lines = ["recipe", "runs", "done", "shared", "to do", *(["time"] if estimator is not None else [])], []
    seen: set[str] = set()
    for planned, plan in zip(tables, plans, strict=True):
        own = {spec.id: spec for spec in plan}
        done = {name for name in own if states[name] in ENDED}
        shared = (own.keys() & seen) - done
        left = [spec for name, spec in own.items() if name not in done | shared]
        cells = [str(count) for count in (len(own), len(done), len(shared), len(left))]
        if estimator is not None:
            cells.append(duration(estimator.makespan(left)) if left else "-")
        lines.append([planned.loaded.name, *cells])
        seen |= own.keys()
    print_texts(heads, lines)
    left_in_all = sum(state not in ENDED for state in states.values())
    summary, how = f"\n{len(tables)} recipes, {len(states)} different runs, {left_in_all} to do", AT_SLURM
    if estimator is not None and device is not None:
        time = cost.time_in_words(specs, [states[spec.id] for spec in specs], estimator)
        how = f", about {time} on {device.name}."
    typer.echo(summary + how)


def _print_column(column: str, rows: Sequence[dict[str, Any]], specs: Sequence[RunSpec]) -> None:
    counted = specs[0].task.unit.name
    has_costs, has_times = (rows[0][key] is not None for key in ("parameters", "estimated_seconds"))
    before = ("parameters", "+%", "paper's") if has_costs else ()
    after = ("FLOPs", *(("time",) if has_times else ()), "memory") if has_costs else ()
    tried = [key.partition(".")[2] for key in specs[0].point]
    heads, lines = [column, "seed", *tried, *before, counted, *after, "state"], []
    for row in rows:
        cells = [short_count(row[counted])]
        if has_costs:
            increase = f"{row['extra_parameters_percent']:z.2f}"
            cells = [f"{row['parameters']:,}", increase, row["paper_increase"] or "-", *cells, f"{row['flops']:.2g}"]
            cells += [duration(row["estimated_seconds"])] if has_times else []
            cells.append(_memory(row["estimated_memory_bytes"]))
        point = map(_shown, row.get("grid", {}).values())
        lines.append([row["row"], str(row["seed"]), *point, *cells, row["state"]])
    typer.echo()
    print_texts(heads, lines, left=[head in (column, "state") for head in heads])


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
    key_width = max(len(key) for key, *_ in texts)
    value_width = max(len(value) for _, value, _ in texts if len(value) <= LONG)
    for key, value, given_by in texts:
        typer.echo(f"{key:{key_width}}  {value:{value_width}}  {given_by}")


def _settings_of(loaded: LoadedRecipe, scale: str, row: str, column: str) -> Iterator[tuple[str, Any, str]]:
    """Key, value and what gave it (`FILE:LINE`, an argument, or `default`), of the method, the settings, and the run
    that it starts from. What a named size decides has its number."""
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
    start = loaded.starts[scale].get((row, column))
    if start is not None:
        source = {"recipe": start.source.file, "row": start.row, "column": start.column, "seed": start.seed}
        for key, value in {**source, "new": list(start.new), "drop": list(start.drop)}.items():
            origin = Origin((*start.path, key), loaded.document)
            is_given = origin.path in loaded.document.lines
            yield f"start.{key}", value, _place(loaded, origin) if is_given else "default"


def _place(loaded: LoadedRecipe, origin: Origin) -> str:
    if origin.argument is not None:
        return origin.argument
    path = Path(origin.source) if origin.source is not None else loaded.path
    whole = path.resolve()
    shown = whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole
    return f"{shown}:{origin.line}" if origin.line is not None else str(shown)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
