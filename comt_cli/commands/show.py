"""`comt show`: what a recipe would do, what it would cost, and what of it is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import options

if TYPE_CHECKING:
    from comt_cli.commands.planning import Planned


def show(
    recipe: options.RecipeArgument,
    scale: options.Scale = "smoke",
    rows: options.Rows = None,
    columns: options.Columns = None,
    seeds: options.Seeds = None,
    set_: options.Set = None,
    also: options.Also = None,
    device: options.Device = None,
    runs: options.Runs = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a run.")] = False,
) -> None:
    """Print the plan of a recipe: every run, its parameters and overhead, tokens, FLOPs, time, memory and state.

    Parameters and FLOPs are counted on the real model, built without storage; beside the extra parameters stands the
    increase that the paper prints. Trains and downloads nothing.

    Examples:

      comt show table3.yaml

      comt show transponder/table2 --scale paper --columns c4/130m

      comt show table3.yaml --also wide='{name: comt, hidden: 64}' --json
    """
    from comt_cli.commands.planning import also_rows, plan_recipe

    planned = plan_recipe(recipe, scale, set_, rows=rows, columns=columns, seeds=seeds, also=also_rows(also))
    if as_json:
        typer.echo(json.dumps(plan_rows(planned, runs), indent=2))
    else:
        print_plan(planned, runs, device)


def plan_rows(planned: Planned, runs: Path) -> list[dict[str, Any]]:
    """One dictionary a run: who it is, what it costs, where it stands."""
    from comt_cli.models.accounting import cost_of, total_flops, training_bytes
    from comt_cli.recipe.run_directory import RunDirectory

    rows = []
    for spec in planned.specs:
        cost, train = cost_of(spec), spec.settings.train
        directory = RunDirectory.of(runs, spec)
        rows.append(
            {
                "row": spec.row,
                "column": spec.column,
                "seed": spec.seed,
                "id": spec.id,
                "method": spec.method,
                "parameters": cost.parameters,
                "extra_parameters": cost.extra_parameters,
                "extra_parameters_percent": round(cost.extra_parameters_percent, 4),
                "paper_increase": planned.loaded.printed_increase(planned.scale, spec.row, spec.column),
                "steps": train.steps,
                "tokens": train.steps * train.batch_size * spec.settings.data.sequence_length,
                "flops": total_flops(spec),
                "estimated_memory_bytes": training_bytes(spec, train.micro_batch_size or train.batch_size),
                "state": directory.state().value,
                "directory": str(directory.shown),
            }
        )
    return rows


def print_plan(planned: Planned, runs: Path, device_name: str | None) -> None:
    """The plan as a table, with an estimate of the time on the device that would be used."""
    from rich.console import Console
    from rich.table import Table

    from comt_cli.report.format import duration, short_count
    from comt_cli.training.devices import device_name as name_of
    from comt_cli.training.devices import pick_device
    from comt_cli.training.estimate import estimated_flops_per_second

    rows = plan_rows(planned, runs)
    device = pick_device(device_name)
    recipe = planned.loaded.recipe
    speeds = {
        spec.settings.train.precision: estimated_flops_per_second(device, spec.settings.train.precision)
        for spec in planned.specs
    }
    console = Console(highlight=False)
    # Numbers cut off are worse than lines that a narrow terminal wraps.
    console.width = max(console.width, 110)
    console.print(f"{recipe.title} ({recipe.paper} {recipe.table}), scale {planned.scale}")
    console.print(recipe.scales[planned.scale].description)  # type: ignore[index]
    remaining = 0.0
    for column in dict.fromkeys(row["column"] for row in rows):
        table = Table(box=None, header_style="bold", pad_edge=False)
        for header in (column, "seed", "parameters", "+%", "paper's", "tokens", "FLOPs", "time", "memory", "state"):
            is_text = header in (column, "state")
            table.add_column(header, justify="left" if is_text else "right", no_wrap=True)
        for row, spec in zip(rows, planned.specs, strict=True):
            if row["column"] != column:
                continue
            seconds = row["flops"] / speeds[spec.settings.train.precision]
            if row["state"] not in ("done", "diverged"):
                remaining += seconds
            table.add_row(
                row["row"],
                str(row["seed"]),
                f"{row['parameters']:,}",
                f"{row['extra_parameters_percent']:z.2f}",
                row["paper_increase"] or "-",
                short_count(row["tokens"]),
                f"{row['flops']:.2g}",
                duration(seconds),
                f"{row['estimated_memory_bytes'] / 2**30:.1f} GiB",
                row["state"],
            )
        console.print()
        console.print(table)
    open_runs = sum(row["state"] not in ("done", "diverged") for row in rows)
    console.print(
        f"\n{len(rows)} runs, {open_runs} to do, about {duration(remaining)} on {name_of(device)}.\n"
        "Time is estimated from the speed of matrix products, memory from the tensors that the model keeps; "
        "both are rough. Tokens count padding.",
    )
