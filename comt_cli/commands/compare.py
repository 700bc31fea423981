"""`comt compare`: two cells side by side, paired by seed."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import options

_RUN = f"A run directory; {options.SELECTOR}. Without a seed all seeds of the cell."
Base = Annotated[str, options.run_argument(_RUN, "BASELINE")]
Other = Annotated[str, options.run_argument("The same.", "RUN")]


def compare(
    baseline: Base,
    run: Other,
    *,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = options.DEFAULT_RUNS,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two runs, or two cells over their seeds. Shows settings, metrics, costs, and the loss at equal budgets.

    Differences are of the second to the first, paired by seed, with the interval and the verdict that tables use, and
    what so many seeds would show. What makes the comparison unfair is said first. Trains nothing, writes nothing.

    Examples:

      comt compare table3:pre-ln table3:pre-ln+comt

      comt compare table3@steps-200:pre-ln table3@steps-200:pre-ln+comt

      comt compare table3:pre-ln::1 table3:pre-ln+comt::1 --json
    """
    from comt_cli.verbs.compare import print_comparison

    print_comparison(baseline, run, runs, scale, set_, in_json=json_)
