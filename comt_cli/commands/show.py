"""`comt show`: what a recipe would do, what it would cost, and what of it is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import options

if TYPE_CHECKING:
    from comt_cli.commands.planning import Planned
    from comt_cli.recipe.plan import RunSpec


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
    """Print the plan of a recipe: every run, its parameters and overhead, its tokens or images, FLOPs, time, memory and
    state.

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
    from comt_cli.recipe.run_contents import adopt_contents
    from comt_cli.recipe.run_directory import RunDirectory
    from comt_cli.report.subject import subject_of

    rows = []
    for spec in adopt_contents(planned.specs, runs, ambiguous=True):
        cost, train = cost_of(spec), spec.settings.train
        directory = RunDirectory.of(runs, spec)
        rows.append(
            {
                "row": spec.row,
                "column": spec.column,
                "seed": spec.seed,
                "id": spec.id if spec.data_content else None,  # not known before the data is prepared
                "data_content": spec.data_content,
                "method": spec.method,
                "parameters": cost.parameters,
                "extra_parameters": cost.extra_parameters,
                "extra_parameters_percent": round(cost.extra_parameters_percent, 4),
                "paper_increase": planned.loaded.printed_increase(planned.scale, spec.row, spec.column),
                "steps": train.steps,
                subject_of(spec).counted: train.steps * train.batch_size * _length(spec),
                "flops": total_flops(spec),
                "estimated_memory_bytes": training_bytes(spec, train.micro_batch_size or train.batch_size),
                "state": directory.state().value,
                "directory": str(directory.shown) if spec.data_content else None,
            }
        )
    return rows


def _length(spec: RunSpec) -> int:
    """How many tokens a row of a batch has; a row of an image classifier's is one image."""
    from comt_cli.report.subject import TEXT, subject_of

    return spec.language.data.sequence_length if subject_of(spec) is TEXT else 1


def _memory(size: float) -> str:
    """`3.4 GiB`, of narrow networks `12 MiB`."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.0f} MiB"


def print_plan(planned: Planned, runs: Path, device_name: str | None) -> None:
    """The plan as a table, with an estimate of the time on the device that would be used."""
    from rich.console import Console
    from rich.table import Table

    from comt_cli.report.format import duration, short_count
    from comt_cli.report.subject import TEXT, subject_of
    from comt_cli.training.devices import device_name as name_of
    from comt_cli.training.devices import pick_device
    from comt_cli.training.estimate import CONVOLUTIONAL_SHARE, TYPICAL_SHARE, estimated_flops_per_second

    rows = plan_rows(planned, runs)
    device = pick_device(device_name)
    recipe, subject = planned.loaded.recipe, subject_of(planned.specs[0])
    share = TYPICAL_SHARE if subject is TEXT else CONVOLUTIONAL_SHARE
    speeds = {
        precision: estimated_flops_per_second(device, precision, share)
        for precision in {spec.settings.train.precision for spec in planned.specs}
    }
    console = Console(highlight=False)
    # Numbers cut off are worse than lines that a narrow terminal wraps.
    console.width = max(console.width, 110)
    console.print(f"{recipe.title} ({planned.loaded.name}), scale {planned.scale}")
    console.print(recipe.scales[planned.scale].description)  # type: ignore[index]
    remaining = 0.0
    for column in dict.fromkeys(row["column"] for row in rows):
        table = Table(box=None, header_style="bold", pad_edge=False)
        costs = ("parameters", "+%", "paper's", subject.counted, "FLOPs", "time", "memory")
        for header in (column, "seed", *costs, "state"):
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
                short_count(row[subject.counted]),
                f"{row['flops']:.2g}",
                duration(seconds),
                _memory(row["estimated_memory_bytes"]),
                row["state"],
            )
        console.print()
        console.print(table)
    open_runs = sum(row["state"] not in ("done", "diverged") for row in rows)
    console.print(
        f"\n{len(rows)} runs, {open_runs} to do, about {duration(remaining)} on {name_of(device)}.\n"
        "Time is estimated from the speed of matrix products, memory from the tensors that the model keeps; "
        f"both are rough.{' Tokens count padding.' if subject is TEXT else ''}",
    )
