"""`comt runs`: every run there is, and in what it differs from its recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import completion, options


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
    runs: options.Runs = options.DEFAULT_RUNS,
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
    from comt_cli.verbs.runs import list_runs

    list_runs(recipes or (), scale, rows, columns, seeds, state, set_ or (), also, runs, as_json=as_json)
