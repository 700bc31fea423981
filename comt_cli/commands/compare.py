"""`comt compare`: two cells side by side, paired by seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import completion, options

if TYPE_CHECKING:
    from comt_cli.runs.directory import RunDirectory

_RUN = f"A run directory; {options.SELECTOR}. Without a seed all seeds of the cell."
Base = Annotated[
    str, typer.Argument(metavar="BASELINE", help=_RUN, show_default=False, autocompletion=completion.selectors)
]
Other = Annotated[
    str, typer.Argument(metavar="RUN", help="The same.", show_default=False, autocompletion=completion.selectors)
]


def compare(
    baseline: Base,
    run: Other,
    *,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = Path("runs"),
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
    from comt_cli.report import format
    from comt_cli.report.compare import HEADS, LAST, as_json, comparison, sides_frame
    from comt_cli.report.terminal import print_texts

    named = {"baseline": baseline, "run": run}
    sides = {side: (text, _directories(text, runs, scale, set_)) for side, text in named.items()}
    frame = comparison(sides_frame(sides))
    if json_:
        typer.echo(json.dumps(as_json(frame), indent=2))
        return
    for letter, side in zip("AB", frame.attrs["sides"], strict=True):
        plural = "s" * (len(side["ids"]) > 1)
        where = f"{side['table']}, {side['row']} at {side['column']}, scale {side['scale']}"
        typer.echo(f"{letter}: {where}, seed{plural} {format.seeds(side['ids'])}")
    for reason in frame.attrs["unfair"]:
        typer.echo(f"Not fair: {reason}.")
    for section, lines in frame.groupby("section", sort=False)["_texts"]:
        typer.echo()
        print_texts(HEADS[str(section)], lines)
    if "budgets" in {*frame["section"]}:
        typer.echo(f"A loss at a budget is the mean of what was logged in its last {LAST:.0%}; where one side has")
        typer.echo("more left, its rate has not fallen to the end there. Time is as measured, with the kernels used.")


def _directories(text: str, runs: Path, scale: str | None, set_: list[str] | None) -> list[RunDirectory]:
    """The runs that a path or selector means, whatever became of them: a seed that diverged must not be passed over."""
    from comt_cli.commands.run_selectors import cell_runs, is_selector
    from comt_cli.runs.directory import RunDirectory

    if Path(text).exists() or not is_selector(text):
        path = Path(text)
        return [RunDirectory(path.parent if path.is_file() else path)]
    return [run.directory for run in cell_runs(text, runs, scale, set_)]
