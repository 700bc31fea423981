"""`comt runs`: every run there is, and in what it differs from its recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import completion, options

if TYPE_CHECKING:
    from comt_cli.runs.known import KnownRun, Place


def runs(
    recipes: options.Recipes = None,
    *,
    scale: options.ScaleOfRuns = None,
    rows: options.Rows = None,
    columns: options.Columns = None,
    seeds: Annotated[str | None, typer.Option(metavar="1,2 or 1-3", help="Only these seeds.")] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Only runs that stand so: done, diverged, running, unfinished, failed, replaced, unreadable.",
            autocompletion=completion.standings,
        ),
    ] = None,
    set_: options.Set = None,
    also: options.Also = None,
    runs: options.Runs = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a run.")] = False,
) -> None:
    """List every run, with its metric or state. Also its row, its seed, when it was written, its size and its id.

    The heading of a group says in which settings its runs differ from their recipe, as --set takes them; --set lists
    only runs that have a setting. Replaced runs are those that --fresh moved aside. A run's folder is by-id/ID below
    the folder of the runs; wherever a verb takes a checkpoint, the beginning of the id is enough. comt rm deletes runs.

    Examples:

      comt runs

      comt runs table3.yaml --rows pre-ln,pre-ln+comt --state done

      comt runs --state unfinished,failed --json
    """
    from comt_cli.commands.planning import also_rows
    from comt_cli.commands.run_selectors import runs_of_table
    from comt_cli.commands.selected_table import recipes_by_name
    from comt_cli.report.run_list import described, print_runs, summary_text
    from comt_cli.report.terminal import say
    from comt_cli.runs.known import known_runs

    added = also_rows(also)
    every = known_runs(runs)
    found = [each for recipe in recipes or () for each in runs_of_table(recipe, runs)]
    found = list(dict.fromkeys(found)) if recipes else [(run, run.home) for run in every]
    chosen = [(run, place) for run, place in found if scale in (None, run.label("scale"))]
    chosen = _filtered(chosen, rows, columns, seeds, state, set_ or ())
    listed = described(chosen, recipes_by_name(recipes or (), added))
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
        return
    if not listed:
        typer.echo(f"There are {'no such runs' if every else 'no runs'} below {runs}.")
        return
    print_runs(listed)
    typer.echo()
    say(f"{summary_text(listed)} in {runs}/by-id/ID")
    for row in listed:
        if row["problem"] is not None:
            typer.echo(f"  {row['name']}: {row['problem']}", err=True)


def _filtered(
    chosen: Sequence[tuple[KnownRun, Place]],
    rows: str | None,
    columns: str | None,
    seeds: str | None,
    state: str | None,
    overrides: Sequence[str],
) -> list[tuple[KnownRun, Place]]:
    """Those of `chosen` that every option lets through. Raises `UserError` where an option names what is not there."""
    from comt_cli.recipe.load import select
    from comt_cli.runs.known import Standing
    from comt_cli.runs.plan import parse_seeds

    found = list(chosen)
    if rows is not None and found:
        names = select(rows, dict.fromkeys(place.row for _, place in found), "row with runs")
        found = [(run, place) for run, place in found if place.row in names]
    if columns is not None and found:
        names = select(columns, dict.fromkeys(place.column for _, place in found), "column with runs")
        found = [(run, place) for run, place in found if place.column in names]
    numbers = parse_seeds(seeds)
    if numbers is not None:
        found = [(run, place) for run, place in found if run.seed in numbers]
    if state is not None:
        states = select(state, list(Standing), "state of runs")
        found = [(run, place) for run, place in found if run.standing in states]
    has = having(overrides)
    return [(run, place) for run, place in found if has(run)]


def having(overrides: Sequence[str]) -> Callable[[KnownRun], bool]:
    """Whether a run was trained with the settings of `--set` arguments: whether setting them so would change nothing.

    Raises:
        UserError: an argument is wrong for every kind of run.
    """
    from comt_cli.recipe.merge import parse_arguments
    from comt_cli.recipe.problems import Problem, RecipeError
    from comt_cli.recipe.settings import RunSettings, overrides_of
    from comt_cli.tasks import tasks

    if not overrides:
        return lambda _: True
    values: dict[str, dict[str, dict[str, Any]]] = {}
    wrong: list[Problem] = []
    for command, task in tasks().items():
        problems: list[Problem] = []
        settings: type[RunSettings] = task.settings
        parsed = parse_arguments(overrides, overrides_of(settings), problems)
        if problems:
            wrong = wrong or problems
        else:
            values[command] = parsed.values
    if not values:
        raise RecipeError("--set", wrong)

    def fits(run: KnownRun) -> bool:
        given = values.get(run.label("command"))
        if given is None or run.spec is None:
            return False
        settings = run.spec.settings
        said = settings.model_dump(mode="json")
        changed = {section: {**keys, **given.get(section, {})} for section, keys in said.items()}
        try:
            return type(settings).model_validate(changed) == settings
        except ValueError:  # with the rest of its settings it could not be set so
            return False

    return fits
