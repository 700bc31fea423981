"""`comt show`: what a recipe would do, what it would cost, and what of it is done."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import completion, options
from comt_cli.errors import UserError


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
    runs: options.Runs = options.DEFAULT_RUNS,
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
    from comt_cli.verbs import show
    from comt_cli.verbs.cost import Where

    where = Where(runs, device=device, gpus=gpus, jobs=jobs, plan_for=plan_for)
    if settings is None:
        show.show(recipe, scale, rows, columns, seeds, set_, sweep, also, where, costs=not no_cost, as_json=as_json)
        return
    others = {"rows": rows, "columns": columns, "seeds": seeds, "device": device, "jobs": jobs, "no-cost": no_cost}
    others |= {"plan-for": plan_for}
    if unfit := [f"--{name}" for name, given in others.items() if given] + ["--gpus"] * (gpus > 1):
        raise UserError(f"--settings does not go with {' and '.join(unfit)}: it prints the settings of one cell")
    show.print_settings(recipe, scale, settings, set_, sweep, also, as_json=as_json)
