"""Plans of recipes: every run with its cost, time and state; or several recipes as one queue."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from comt_cli.campaign import estimate
from comt_cli.campaign.estimate import Estimator
from comt_cli.campaign.executor import check_training
from comt_cli.campaign.processes import runs_at_once
from comt_cli.commands import options
from comt_cli.commands.options import Selection, Where
from comt_cli.data.prepare import kind_of
from comt_cli.errors import UserError
from comt_cli.models import accounting
from comt_cli.models.memory import memory_of, under_fsdp
from comt_cli.report.exhibits.sweep import read_sweep
from comt_cli.report.terminal import print_texts, say
from comt_cli.runs.directory import ENDED, RunDirectory
from comt_cli.runs.known import Standing, adopt_contents, needed_runs, shared_runs
from comt_cli.runs.plan import RunSpec
from comt_cli.training.hardware import hardware, planned_hardware
from comt_cli.training.processes import share_of_batch
from comt_cli.verbs.plan import Planned, plan_selected
from comt_cli.words import duration, listing, plural, short_count

AT_SLURM = ": tasks of a Slurm array job, except those that are in the queue already."
_OTHER = "Estimate time, memory and GPU-hours for --gpus N of another machine: h200, h100, a100 ..."
NEARLY_FULL = 0.9
"""Share of a GPU's memory above which an estimate leaves too little for what it does not count."""
_PRICE = "Price of a GPU-hour, for the cost of a --plan-for in that currency."


def show(
    recipe: options.RecipeArgument,
    *,
    of: Selection,
    device: options.Device = None,
    gpus: options.Gpus = 1,
    jobs: options.Jobs = None,
    runs: options.Runs = options.DEFAULT_RUNS,
    plan_for: Annotated[str | None, typer.Option(metavar="GPU", help=_OTHER, show_default=False)] = None,
    price: Annotated[float | None, typer.Option(metavar="X", help=_PRICE, show_default=False)] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the plan of a recipe: its runs and their cost.

    Parameters and FLOPs are counted on the real model. The paper's increase of parameters is next to the counted one.
    Nothing is trained, and nothing but a tokenizer of the hub (hf:NAME) is downloaded.

    Examples:
      comt show table3
      comt show transponder/table2 --scale paper --columns c4/130m --plan-for h100 --gpus 8 --price 2.5
    """
    where = Where(device, gpus, jobs, runs=runs, plan_for=plan_for, price=price)
    planned = plan_selected(recipe, of)
    if plan_for is not None and device is not None:
        raise UserError("--plan-for and --device cannot be combined", "--plan-for GPU is for another machine.")
    if price is not None and not 0 <= price < math.inf:
        raise UserError(f"--price {price:g}: it should be a number from 0", "It is the price of one GPU for one hour.")
    if price is not None and plan_for is None:
        raise UserError("--price needs --plan-for", "Name the GPU that has this price: --plan-for h100.")
    if as_json:
        typer.echo(json.dumps(Plan(planned, where).rows, indent=2))
    else:
        print_plans([planned], where)


class Plan:
    """Every run of a plan as a row of plain data, preceded by the runs of other tables that it starts from. Raises
    `UserError` if a run's model does not fit the weights it starts from, and as `estimator_for`."""

    def __init__(self, planned: Planned, where: Where) -> None:
        own = adopt_contents(planned.specs, where.runs, ambiguous=True)
        if any(spec.source is not None for spec in own):
            from comt_cli.training.start import check_starts  # and torch

            check_starts(spec for spec in own if spec.source is not None)
        ids = {spec.id for spec in own}
        self.first = [shared.spec for shared in needed_runs(own, where.runs) if shared.id not in ids]
        self.specs = [*self.first, *own]
        self.estimator = estimator_for(self.specs, where)
        self.rows = [self._row(planned, spec, where) for spec in self.specs]

    def _row(self, planned: Planned, spec: RunSpec, where: Where) -> dict[str, Any]:
        train, directory, network = spec.settings.train, RunDirectory.of(where.runs, spec), accounting.cost_of(spec)
        estimated, memory = self.estimator and self.estimator.of(spec), memory_of(spec, where.gpus)
        costs = {}
        if self.estimator is not None and where.plan_for is not None:
            hours = self.estimator.gpu_hours(spec).value
            costs = {"gpu_hours": round(hours, 3)}
            costs |= {} if where.price is None else {"cost": round(hours * where.price, 2)}
        try:
            state = directory.state().value
        except UserError:  # `comt status` prints it
            state = Standing.unreadable.value
        source, is_own = spec.source, spec not in self.first
        return {
            "table": f"{spec.paper}/{spec.table}",
            "row": spec.row,
            "column": spec.column,
            "seed": spec.seed,
            **({"grid": spec.point} if spec.point else {}),
            "id": spec.id if spec.is_known else None,  # unknown until the data is prepared
            "data_content": spec.data_content,
            "start": spec.begun_with if source is None or source.is_known else None,
            "method": spec.method,
            "settings": spec.settings.model_dump(mode="json"),
            "parameters": network.parameters,
            "parameters_by_role": dict(network.roles),
            "extra_parameters": network.extra_parameters,
            "extra_parameters_percent": round(network.extra_parameters_percent, 4),
            "trained_parameters": network.parameters + network.adapters - network.frozen,
            "paper_increase": planned.loaded.printed_increase(planned.scale, spec.row, spec.column) if is_own else None,
            "steps": train.steps,
            spec.task.unit.name: train.steps * train.batch_size * spec.task.positions(spec.settings),
            "flops": accounting.total_flops(spec),
            "estimated_memory_bytes": memory.total,
            "estimated_memory": memory._asdict(),
            "estimated_seconds": estimated and round(estimated.value, 1),
            "estimated_range": estimated and [round(estimated.least, 1), round(estimated.most, 1)],
            "estimated_from": estimated and estimated.source,
            **costs,
            "state": state,
            "directory": str(directory.shown) if spec.is_known else None,
        }


def estimator_for(specs: Sequence[RunSpec], where: Where) -> Estimator | None:
    """The time estimator of these runs, trained by one command; None with `--slurm`, since jobs run elsewhere. Prints
    the number of networks before it counts them. Raises `UserError` if the runs cannot be trained with these
    options."""
    if where.slurm is not None:
        return None
    if where.plan_for is not None:
        for spec in specs:
            share_of_batch(spec.settings.train.batch_size, where.gpus)
        device = planned_hardware(where.plan_for, where.gpus)
    else:
        check_training(where.gpus, specs, where.device, where.jobs)
        device = hardware(where.device)
    if left := list(accounting.to_count(specs)):
        print(f"counting {plural(len(left), 'network')} ...", file=sys.stderr, flush=True)
    for spec in left:
        accounting.cost_of(spec)
    finished = estimate.finished_runs(where.runs, device, where.gpus)
    if where.gpus > 1:
        return Estimator(finished, device, 1, None, where.gpus)
    return Estimator(finished, device, *runs_at_once(device.kind, device.count, where.jobs, shared_runs(specs)))


def time_in_words(specs: Sequence[RunSpec], states: Sequence[str], estimator: Estimator) -> str:
    """Time until all of these runs are done, each training once: `4 min, 2 at a time`."""
    seconds = estimator.makespan(spec for spec, state in zip(specs, states, strict=True) if state not in ENDED)
    return f"{duration(seconds)}{f', {estimator.at_once} at a time' if estimator.at_once > 1 else ''}"


def sweep_cost(planned: Planned, where: Where) -> str:
    """Two lines with runs, FLOPs and estimated time of a sweep: its trials and the runs after them. Each cell without a
    chosen value counts as two runs, at the baseline's best value and at its own. Slurm jobs get no estimated time.
    Raises `UserError` if the device does not exist."""
    known = adopt_contents(planned.specs, where.runs, ambiguous=True)
    sweep = read_sweep(planned.loaded, planned.scale, known, where.runs)
    specs, trials = sweep.at_most, {spec.request for spec in sweep.trials}
    states = [RunDirectory.of(where.runs, spec).state().value for spec in specs]
    most, time = "" if len(specs) == len(sweep.specs) else "at most ", ""
    if (estimator := estimator_for(specs, where)) is not None:
        time = f", about {time_in_words(specs, states, estimator)} on {estimator.where.name}"
    return (
        f"Sweep: {plural(len(trials), 'trial')} ({plural(len(sweep.grid.points), 'configuration')}, "
        f"{plural(len(sweep.grid.seeds), 'seed')}, {plural(len(sweep.tuned), 'cell')}), then {most}"
        f"{len(specs) - len(trials)} runs for the table.\n"
        f"Total: {most}{len(specs)} runs, {sum(map(accounting.total_flops, specs)):.2g} FLOPs; {_left(states)} to "
        f"do{time}."
    )


def _left(states: Iterable[str]) -> int:
    return sum(state not in ENDED for state in states)


def print_plans(plans: Sequence[Planned], where: Where, *, fresh: bool = False) -> None:
    """Print each plan, one table per column, and its total time, or for Slurm the number of jobs. With `fresh`,
    existing runs count as to be trained again. Raises as `Plan`."""
    for number, planned in enumerate(plans):
        if number:
            typer.echo()
        _print_plan(planned, where, fresh=fresh)


def _print_plan(planned: Planned, where: Where, *, fresh: bool) -> None:
    plan = Plan(planned, where)
    recipe, estimator = planned.loaded.recipe, plan.estimator
    say(f"{recipe.title} ({planned.loaded.name}), scale {planned.scale}")
    say(recipe.scales[planned.scale].description)
    by_column: dict[tuple[str, str], list[tuple[RunSpec, dict[str, Any]]]] = {}
    for spec, row in zip(plan.specs, plan.rows, strict=True):
        is_first = spec in plan.first
        if fresh and not is_first and row["state"] in (*ENDED, "unfinished"):
            row["state"] = "retrain"
        heading = f"start weights: {row['table']}, {spec.column}" if is_first else ""
        by_column.setdefault((heading, spec.column), []).append((spec, row))
    for (heading, column), lines in by_column.items():
        typer.echo(f"\n{heading}" if heading else "")
        _print_column(column, lines[0][0], [row for _, row in lines])
    states = {spec.id: row["state"] for spec, row in zip(plan.specs, plan.rows, strict=True)}  # columns may share runs
    before = f", {len(plan.first)} of them for start weights" if plan.first else ""
    summary = f"{plural(len(states), 'run')}{before}, {_left(states.values())} to do"
    typer.echo()
    if estimator is None:
        say(summary + AT_SLURM)
    else:
        time = time_in_words(plan.specs, [row["state"] for row in plan.rows], estimator)
        say(f"{summary}, about {time} on {estimator.where.words}.")
        if estimator.where.chip is not None:
            _print_cost(plan, estimator, where.price)
            _print_memory(plan, estimator.where.chip.memory, where.gpus)
        _print_bases(plan.rows)
        data = {spec.data_fingerprint: spec.settings.data for spec in plan.specs}
        known = (kind_of(each).known(name) for name, each in data.items())
        for note in dict.fromkeys(each.note for each in known if each is not None and each.note is not None):
            say(f"{note}.")
        if planned.has_trials:
            typer.echo(f"\n{sweep_cost(planned, where)}")


def _print_cost(plan: Plan, estimator: Estimator, price: float | None) -> None:
    """Print the GPU-hours of the runs to do, with their range, and their price."""
    open_runs = {spec.id: spec for spec, row in zip(plan.specs, plan.rows, strict=True) if row["state"] not in ENDED}
    every = [(each.value, each.least, each.most) for each in map(estimator.gpu_hours, open_runs.values())]
    hours = [math.fsum(each) for each in zip(*every, strict=True)] or [0.0] * 3
    said = _ranged(hours, " GPU-hours")
    if price is not None:
        said += f" at {price:g}: {_ranged([each * price for each in hours])}"
    say(f"Cost of the runs to do: {said}.")


def _ranged(numbers: Iterable[float], unit: str = "") -> str:
    """A number with its least and most, if they differ as written."""
    value, *ends = map(_amount, numbers)
    return f"{value}{unit}" + (" (from {} to {})".format(*ends) if len({*ends}) > 1 else "")


def _print_memory(plan: Plan, room: float, gpus: int) -> None:
    """Print the parts of the largest estimate of memory, whether runs fit in a GPU with `room`, and what helps."""
    spec, most = max(zip(plan.specs, plan.rows, strict=True), key=lambda each: int(each[1]["estimated_memory_bytes"]))
    needed = most["estimated_memory_bytes"]
    words = {"optimizer": "optimiser state"}
    parts = {words.get(name, name): part for name, part in most["estimated_memory"].items() if part}
    how = "FSDP2" if "gathered" in parts else f"on each of {gpus} GPUs" if gpus > 1 else "on one GPU"
    over = sum(row["estimated_memory_bytes"] > room for row in plan.rows)
    fit = "it may be too little" if needed > NEARLY_FULL * room else "all fit"
    verdict = f"too little for {over} of {plural(len(plan.rows), 'run')}" if over else fit
    say(
        f"Memory: {_memory(needed)} of {_memory(room)} per GPU for {most['row']} at {most['column']} ({how}: "
        f"{listing(f'{name} {_memory(part)}' for name, part in parts.items())}): {verdict}. "
        "CUDA's context, NCCL's buffers and temporary tensors are not counted."
    )
    other = under_fsdp(spec)
    if other is not None and other != spec and gpus > 1:
        sharded = memory_of(other, gpus).total
        fits = "fits" if sharded <= room else "does not fit either; lower train.micro_batch_size"
        say(f"Each GPU holds a copy of the network. With train.sharding=fsdp it is {_memory(sharded)}, which {fits}.")
    elif over and other is None:
        say("These settings exclude train.sharding=fsdp; lower train.micro_batch_size.")
    elif over:
        say("More GPUs with train.sharding=fsdp help, or a lower train.micro_batch_size.")


def _print_bases(rows: Sequence[dict[str, Any]]) -> None:
    """Print the sources of the estimates."""
    sources = " and from ".join(dict.fromkeys(row["estimated_from"] for row in rows))
    tokens = " Tokens count padding." if any("tokens" in row for row in rows) else ""
    memory = "Memory is roughly weights, gradients, optimiser state and saved activations."
    say(f"Time is estimated from {sources}. {memory}{tokens}")


def print_all(tables: Sequence[Planned], where: Where) -> None:
    """Print one line per recipe: its runs, how many are done, how many an earlier recipe shares, and the time of the
    rest (except for Slurm). Then print the totals of the queue. Raises `UserError` if the device does not exist or the
    options cannot be combined."""
    plans = [adopt_contents(planned.specs, where.runs, ambiguous=True) for planned in tables]
    specs = [shared.spec for shared in needed_runs([spec for plan in plans for spec in plan], where.runs)]
    states = {spec.id: RunDirectory.of(where.runs, spec).state().value for spec in specs}
    head, lines, how, seen = ["recipe", "runs", "done", "shared", "to do"], [], AT_SLURM, set[str]()
    if (estimator := estimator_for(specs, where)) is not None:
        how = f", about {time_in_words(specs, [*states.values()], estimator)} on {estimator.where.name}."
        head.append("time")
    for planned, plan in zip(tables, plans, strict=True):
        own = {spec.id: spec for spec in plan}
        done = {name for name in own if states[name] in ENDED}
        shared = (own.keys() & seen) - done
        left = [spec for name, spec in own.items() if name not in done | shared]
        times = [] if estimator is None else [duration(estimator.makespan(left)) if left else "-"]
        lines.append([planned.loaded.name, *(str(len(part)) for part in (own, done, shared, left)), *times])
        seen |= own.keys()
    print_texts(head, lines)
    typer.echo(f"\n{len(tables)} recipes, {len(states)} different runs, {_left(states.values())} to do{how}")
    for planned in tables:
        if planned.has_trials:
            typer.echo(f"{planned.loaded.name}: {sweep_cost(planned, where)}", err=True)


def _print_column(column: str, first: RunSpec, rows: Sequence[dict[str, Any]]) -> None:
    counted = first.task.unit.name
    texts: dict[str, list[str]] = {column: [row["row"] for row in rows], "seed": [str(row["seed"]) for row in rows]}
    for key in first.point:
        texts[key.partition(".")[2]] = [str(row["grid"][key]) for row in rows]
    texts["parameters"] = [f"{row['parameters']:,}" for row in rows]
    if any(row["trained_parameters"] != row["parameters"] for row in rows):
        texts["trained"] = [f"{row['trained_parameters']:,}" for row in rows]
    texts["+%"] = [f"{row['extra_parameters_percent']:z.2f}" for row in rows]
    texts["paper's"] = [row["paper_increase"] or "-" for row in rows]
    texts[counted] = [short_count(row[counted]) for row in rows]
    texts["FLOPs"] = [f"{row['flops']:.2g}" for row in rows]
    if rows[0]["estimated_seconds"] is not None:
        texts["time"] = [duration(row["estimated_seconds"]) for row in rows]
    for key in (each for each in ("gpu_hours", "cost") if each in rows[0]):
        texts[key.replace("gpu_hours", "GPU-hours")] = [_amount(row[key]) for row in rows]
    texts["memory"] = [_memory(row["estimated_memory_bytes"]) for row in rows]
    texts["state"] = [row["state"] for row in rows]
    print_texts([*texts], zip(*texts.values(), strict=True), left=[head in (column, "state") for head in texts])
    roles = {row["row"]: row["parameters_by_role"] for row in rows}
    typer.echo()
    counted_by_role = [[name, *(f"{count:,}" for count in counts.values())] for name, counts in roles.items()]
    print_texts(["parameters by role", *rows[0]["parameters_by_role"]], counted_by_role)


def _amount(number: float) -> str:
    """`1,234`, `12.3` or `0.0456`."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _memory(size: float) -> str:
    """`3.4 GiB`, or `12 MiB`."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.0f} MiB"
