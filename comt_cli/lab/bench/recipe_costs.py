"""What `comt bench costs` does: the rows of a recipe, one network each, measured column by column and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from comt_cli.errors import UserError
from comt_cli.runs.plan import RunSpec
from comt_cli.verbs.loading import loading
from comt_cli.verbs.plan import also_rows, plan_loaded, plan_recipe


def costs_of(
    recipe: str,
    scale: str,
    rows: str | None,
    columns: str | None,
    set_: list[str] | None,
    also: list[str] | None,
    turns: int,
    seconds: float | None,
    device: str | None,
    results: Path,
    *,
    overwrite: bool,
) -> None:
    """Measure the rows of a recipe at a scale and write them after each column.

    Raises:
        UserError: the recipe or the selection is wrong, what is there is of another device, something was not
            measured, or a signal came (`measuring`).
        StorageError: a file cannot be written.
    """
    from comt_cli.report.write import costs_file

    planned = plan_recipe(recipe, scale, set_, rows=rows, columns=columns, also=also_rows(also))
    loaded, baseline = planned.loaded, planned.loaded.recipe.baseline
    if loaded.recipe.figure is not None:
        raise UserError(f"{loaded.name} is a figure, which has no rows to compare", "comt recipes lists the tables.")
    if loaded.recipe.command == "finetune" or any(spec.start is not None for spec in planned.specs):
        raise UserError(
            f"{loaded.name}: its runs start from trained weights",
            "Measure the recipe of those: the networks are the same.",
        )
    if rows is not None and baseline not in {spec.row for spec in planned.specs}:
        planned = plan_loaded(loaded, scale, rows=f"{baseline},{rows}", columns=columns)
    first: dict[str, dict[str, RunSpec]] = {}
    for spec in planned.specs:
        first.setdefault(spec.column, {}).setdefault(spec.row, spec)
    path = costs_file(results, scale, loaded)
    loading("PyTorch and the benchmarks", device)
    from comt_cli.lab.bench.costs import measure_costs
    from comt_cli.lab.bench.ending import Outcome, measuring
    from comt_cli.lab.bench.origin import origin_on
    from comt_cli.report.costs import network_key, other_device
    from comt_cli.report.costs_page import write_costs
    from comt_cli.report.terminal import say_written
    from comt_cli.training.devices import pick_device

    where, outcome = pick_device(device), Outcome()
    if not overwrite and (other := other_device(path, origin_on(where).device)) is not None:
        raise UserError(f"{path} was measured on {other}", "--results DIR writes elsewhere, --overwrite in its place.")
    written: dict[Path, None] = {}
    known: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    with measuring(outcome, seconds) as go_on:
        try:
            for column, specs in first.items():
                keys = {row: network_key(spec) for row, spec in specs.items()}
                networks = tuple(f"{row} {key}" for row, key in keys.items())
                there = [known[networks]] if networks in known else None
                for news in there or measure_costs([*specs.values()], baseline, where, turns, go_on):
                    outcome.add(news)
                    if isinstance(news, str):
                        typer.echo(news, err=True)
                        continue
                    known[networks] = news  # another column may show another number of the same runs
                    own = [
                        {
                            **row,
                            "column": column,
                            "scale": scale,
                            "network": keys[row["row"]],
                            "baseline_network": keys[baseline],
                        }
                        for row in news
                    ]
                    order = list(loaded.recipe.rows), list(loaded.columns(scale))
                    files, kept = write_costs(path, own, loaded.recipe.title, *order)
                    written.update(dict.fromkeys(files))
                    for name in kept:
                        typer.echo(f"{name}: not written, since {path} has a measurement of more rounds", err=True)
        finally:
            for each in written:
                if each.suffix == ".md":
                    typer.echo(each.read_text(encoding="utf-8"))
            say_written(written)
