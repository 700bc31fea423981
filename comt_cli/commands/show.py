"""`comt show`: what a recipe would do, what it would cost, and what of it is done."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import completion, options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from comt_cli.campaign.estimate import Estimator
    from comt_cli.campaign.slurm_site import Site
    from comt_cli.commands.plan_costs import Trained
    from comt_cli.commands.planning import Planned
    from comt_cli.runs.directory import RunDirectory
    from comt_cli.runs.plan import RunSpec
    from comt_cli.training.hardware import Hardware


def show(
    recipe: options.RecipeArgument,
    scale: options.Scale = "smoke",
    rows: options.Rows = None,
    columns: options.Columns = None,
    seeds: options.Seeds = None,
    set_: options.Set = None,
    sweep: options.Sweep = None,
    also: options.Also = None,
    device: options.Device = None,
    gpus: options.Gpus = 1,
    jobs: options.Jobs = None,
    plan_for: Annotated[
        str | None,
        typer.Option(
            metavar="GPU", help="Time and memory on --gpus of another machine: h200, h100, a100 ...", show_default=False
        ),
    ] = None,
    runs: options.Runs = Path("runs"),
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list, one object a run (or, with --settings, a setting).")
    ] = False,
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
    from comt_cli.commands.plan_costs import Trained
    from comt_cli.commands.planning import also_rows, plan_recipe
    from comt_cli.commands.show_settings import print_settings
    from comt_cli.errors import UserError
    from comt_cli.methods import catalogue
    from comt_cli.recipe.load import find_recipe, load_recipe

    if settings is not None:
        others = {"rows": rows, "columns": columns, "seeds": seeds, "device": device, "jobs": jobs, "no-cost": no_cost}
        others |= {"plan-for": plan_for}
        if unfit := [f"--{name}" for name, given in others.items() if given] + ["--gpus"] * (gpus > 1):
            raise UserError(f"--settings does not go with {' and '.join(unfit)}: it prints the settings of one cell")
        loaded = load_recipe(find_recipe(recipe), catalogue(), set_ or (), scale, also_rows(also), sweep=sweep or ())
        print_settings(loaded, scale, settings, as_json=as_json)
        return
    planned = plan_recipe(
        recipe, scale, set_, rows=rows, columns=columns, seeds=seeds, also=also_rows(also), sweep=sweep
    )
    if plan_for is not None and (device is not None or no_cost):
        raise UserError("--plan-for goes with neither --device nor --no-cost", "Leave one of them out.")
    trained = Trained(device, jobs, gpus, plan_for)
    if as_json:
        typer.echo(json.dumps(plan_rows(planned, runs, trained, costs=not no_cost), indent=2))
    else:
        print_plan(planned, runs, trained, costs=not no_cost)


def plan_rows(
    planned: Planned, runs: Path, trained: Trained | None = None, *, costs: bool = True
) -> list[dict[str, Any]]:
    """One dictionary a run: who it is, what it costs, where it stands. Without `costs` those are None. Runs of other
    tables that these start from come first.

    Raises:
        UserError: there is no such device, or a run's model does not fit that of the run it starts from.
    """
    from comt_cli.campaign.estimate import finished_runs
    from comt_cli.commands.plan_costs import Counting, Trained, checked_hardware, estimator_for
    from comt_cli.runs.known import adopt_contents

    trained = trained or Trained()
    where = checked_hardware(trained, planned.specs)
    table = adopt_contents(planned.specs, runs, ambiguous=True)
    first = _sources_of(table, runs)
    specs = [*first, *table]
    estimator = None
    if costs:
        _check_starts(table)
        with Counting(specs) as counting:
            counting.count(specs)
        estimator = estimator_for(specs, where, finished_runs(runs, where, trained.gpus), trained)
    return [
        _row(planned, spec, runs, estimator, trained.gpus, costs=costs, in_table=spec not in first) for spec in specs
    ]


def _sources_of(specs: list[RunSpec], runs: Path) -> list[RunSpec]:
    """The runs of other tables that must be done before these can start, done or not."""
    from comt_cli.runs.shared import needed_runs

    own = {spec.id for spec in specs}
    return [shared.spec for shared in needed_runs(specs, runs) if shared.id not in own]


def _check_starts(specs: list[RunSpec]) -> None:
    if any(spec.start is not None for spec in specs):
        from comt_cli.training.start import check_starts

        check_starts(specs)


def _row(
    planned: Planned, spec: RunSpec, runs: Path, estimator: Estimator | None, gpus: int, *, costs: bool, in_table: bool
) -> dict[str, Any]:
    from comt_cli.models.accounting import cost_of, total_flops, training_bytes
    from comt_cli.runs.directory import RunDirectory

    train, directory = spec.settings.train, RunDirectory.of(runs, spec)
    counted: dict[str, Any] = dict.fromkeys(("parameters", "extra_parameters", "extra_parameters_percent"))
    later: dict[str, Any] = dict.fromkeys(
        ("flops", "estimated_memory_bytes", "estimated_seconds", "estimated_from"),
    )
    if costs:
        cost = cost_of(spec)
        counted = {
            "parameters": cost.parameters,
            "extra_parameters": cost.extra_parameters,
            "extra_parameters_percent": round(cost.extra_parameters_percent, 4),
        }
        later["flops"] = total_flops(spec)
        share = math.ceil(train.batch_size / gpus)
        later["estimated_memory_bytes"] = training_bytes(spec, min(train.micro_batch_size or share, share))
    if estimator is not None:
        estimate = estimator.of(spec)
        later |= {"estimated_seconds": round(estimate.seconds, 1), "estimated_from": estimate.source}
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
        "state": _state(directory),
        "directory": str(directory.shown) if spec.is_known else None,
    }


def _state(directory: RunDirectory) -> str:
    """Where the run stands; of one that is damaged `unreadable`, and `comt status` says why."""
    from comt_cli.errors import UserError
    from comt_cli.runs.known import Standing

    try:
        return directory.state().value
    except UserError:
        return Standing.unreadable.value


def _memory(size: float) -> str:
    """`3.4 GiB`, of narrow networks `12 MiB`."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.0f} MiB"


def print_plan(
    planned: Planned,
    runs: Path,
    trained: Trained,
    *,
    costs: bool = True,
    fresh: bool = False,
    site: Site | None = None,
) -> None:
    """The plan as a table a column, each printed once it is counted, and the time that all of it takes; or, with a
    `site`, how many runs are jobs there, of whose time nothing is known here. `fresh`: what is there is trained anew.
    Runs of other tables that these start from stand before them.

    Raises:
        UserError: there is no such device, its options do not go together, or a run's model does not fit that of the
            run it starts from.
    """
    from rich.console import Console

    from comt_cli.campaign.estimate import finished_runs
    from comt_cli.commands.plan_costs import Counting, checked_hardware, estimator_for
    from comt_cli.report.format import plural
    from comt_cli.runs.directory import ENDED
    from comt_cli.runs.known import adopt_contents

    where = checked_hardware(trained, planned.specs) if site is None else None
    finished = finished_runs(runs, where, trained.gpus) if where is not None and costs else []
    recipe = planned.loaded.recipe
    console = Console(highlight=False)
    # Numbers cut off are worse than lines that a narrow terminal wraps.
    console.width = max(console.width, 110)
    console.print(f"{recipe.title} ({planned.loaded.name}), scale {planned.scale}")
    console.print(recipe.scales[planned.scale].description)
    console.file.flush()
    own = adopt_contents(planned.specs, runs, ambiguous=True)
    first = _sources_of(own, runs)
    if costs:
        _check_starts(own)
    by_column: dict[str, list[RunSpec]] = {}
    for spec in first:
        by_column.setdefault(f"to start from: {spec.paper}/{spec.table}, {spec.column}", []).append(spec)
    for spec in own:
        by_column.setdefault(spec.column, []).append(spec)
    ordered = [spec for specs in by_column.values() for spec in specs]
    printed: list[dict[str, Any]] = []
    estimator = None
    with Counting(ordered if costs else []) as counting:
        for column, specs in by_column.items():
            if costs:
                counting.count(specs)
            if costs and where is not None:
                counted = ordered[: len(printed) + len(specs)]
                estimator = estimator_for(ordered, where, finished, trained, counted)
            in_table = specs[0] not in first
            rows = [
                _row(planned, spec, runs, estimator, trained.gpus, costs=costs, in_table=in_table) for spec in specs
            ]
            for row in rows if fresh and in_table else ():
                row["state"] = ANEW.get(row["state"], row["state"])
            printed += rows
            console.print()
            console.print(_column_table(column, rows, specs))
            console.file.flush()
    states = {spec.id: row["state"] for spec, row in zip(ordered, printed, strict=True)}  # one run may fill two columns
    left = sum(state not in ENDED for state in states.values())
    before = f", {len(first)} of them to start from" if first else ""
    summary = f"{_inexact(ordered)}\n{plural(len(states), 'run')}{before}, {left} to do"
    if site is not None:
        console.print(f"{summary}: each a job for Slurm, but those that are in its queue.")
        return
    if estimator is None or where is None:
        console.print(f"{summary}. Costs were not counted.")
        return
    console.print(f"{summary}, about {_words_of_time(ordered, printed, estimator)} on {where.words}.")
    _print_bases(console, planned, printed, runs, trained, where)


def _print_bases(
    console: Console, planned: Planned, printed: list[dict[str, Any]], runs: Path, trained: Trained, where: Hardware
) -> None:
    """Where estimates come from, whether a device that is planned for holds the runs, and what a sweep costs with the
    runs that its trials have yet to choose."""
    from comt_cli.commands.sweep_cost import sweep_cost

    if where.chip is not None:
        most = max(printed, key=lambda row: float(row["estimated_memory_bytes"]))
        fits = most["estimated_memory_bytes"] <= where.chip.memory
        console.print(
            f"Memory: {_memory(most['estimated_memory_bytes'])} of {where.chip.memory / 2**30:.0f} GiB a GPU for "
            f"{most['row']} at {most['column']}: {'all fit' if fits else 'does not fit; lower train.micro_batch_size'}."
        )
    elif where.kind == "cpu" and planned.scale != "smoke":
        console.print("For another machine: --plan-for h100 --gpus 8")
    sources = dict.fromkeys(row["estimated_from"] for row in printed)
    tokens = " Tokens count padding." if any("tokens" in row for row in printed) else ""
    console.print(
        f"Time is estimated from {' and from '.join(sources)}; memory, roughly, from the tensors that the model keeps."
        f"{tokens}"
    )
    if planned.loaded.has_trials(planned.scale):
        console.print(f"\n{sweep_cost(planned, runs, trained)}")


ANEW = dict.fromkeys(("done", "diverged", "unfinished"), "anew")
"""What `--fresh` makes of the states of runs."""


def _inexact(specs: list[RunSpec]) -> str:
    """A line on the runs that do not repeat to the bit; nothing where all do."""
    from comt_cli.report.format import plural

    count = len({spec.id for spec in specs if not spec.settings.train.deterministic})
    if not count:
        return ""
    return (
        f"\n{plural(count, 'run')} with train.deterministic: false: on a GPU quicker, but not the same to the bit "
        "when repeated, or when stopped and resumed.\n"
    )


def _words_of_time(specs: list[RunSpec], rows: list[dict[str, Any]], estimator: Estimator) -> str:
    """`4 min, 2 at a time`."""
    from comt_cli.commands.plan_costs import time_left
    from comt_cli.report.format import duration

    seconds = time_left(specs, [row["state"] for row in rows], estimator)
    return duration(seconds) + (f", {estimator.at_once} at a time" if estimator.at_once > 1 else "")


def _column_table(column: str, rows: list[dict[str, Any]], specs: list[RunSpec]) -> Table:
    from rich.table import Table

    from comt_cli.report.format import duration, short_count

    counted = specs[0].task.unit.name
    table = Table(box=None, header_style="bold", pad_edge=False)
    has_costs, has_times = (rows[0][key] is not None for key in ("parameters", "estimated_seconds"))
    before = ("parameters", "+%", "paper's") if has_costs else ()
    after = ("FLOPs", *(("time",) if has_times else ()), "memory") if has_costs else ()
    tried = [key.partition(".")[2] for key in specs[0].point]
    for header in (column, "seed", *tried, *before, counted, *after, "state"):
        is_text = header in (column, "state")
        table.add_column(header, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        cells = [short_count(row[counted])]
        if has_costs:
            increase = f"{row['extra_parameters_percent']:z.2f}"
            cells = [f"{row['parameters']:,}", increase, row["paper_increase"] or "-", *cells, f"{row['flops']:.2g}"]
            cells += [duration(row["estimated_seconds"])] if has_times else []
            cells.append(_memory(row["estimated_memory_bytes"]))
        values = [each if isinstance(each, str) else json.dumps(each) for each in row.get("grid", {}).values()]
        table.add_row(row["row"], str(row["seed"]), *values, *cells, row["state"])
    return table
