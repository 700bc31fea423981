"""Options that several verbs share, defined once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from comt_cli.commands import completion
from comt_cli.errors import UserError


def run_argument(help: str, metavar: str | None = None) -> Any:
    """The argument by which verbs take a run, or a model."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=completion.selectors)


RECIPE_HELP = "A recipe file, or the name of one that came with the program: table3.yaml, comt/table3."

RecipeArgument = Annotated[str, typer.Argument(help=RECIPE_HELP, autocompletion=completion.recipes)]
Recipes = Annotated[
    list[str] | None, typer.Argument(metavar="[RECIPE]...", help=RECIPE_HELP, autocompletion=completion.recipes)
]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", help="The same, as an option.", autocompletion=completion.recipes)
]
RecipeOrOption = Annotated[
    str | None, typer.Argument(metavar="RECIPE", help=RECIPE_HELP, autocompletion=completion.recipes)
]
Scale = Annotated[
    str,
    typer.Option(
        help="smoke (a laptop, minutes), evening (a laptop, hours), small (one GPU), paper, or what else a recipe has.",
        autocompletion=completion.scales,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override a setting; repeatable.",
        autocompletion=completion.settings,
    ),
]
SetOfRuns = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Runs that were trained with this instead of the recipe's setting; repeatable. table3@steps-12:ROW says "
        "the same.",
        autocompletion=completion.settings,
    ),
]
Rows = Annotated[str | None, typer.Option(metavar="A,B", help="Only these rows.", autocompletion=completion.rows)]
Columns = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these columns.", autocompletion=completion.columns)
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="SECTION.KEY=A,B,C",
        help="First try these values for every row, by runs with other seeds; show each row at its best.",
        autocompletion=completion.settings,
    ),
]
Seeds = Annotated[str | None, typer.Option(metavar="1,2 or 1-3", help="These seeds instead of the recipe's.")]
Also = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="METHOD or NAME=METHOD",
        help="Add a row that the paper does not have: half-gate, or wide='{name: comt, hidden: 64}'; repeatable.",
        autocompletion=completion.methods,
    ),
]
Runs = Annotated[Path, typer.Option(help="Folder of the run directories.", file_okay=False)]
ScaleOfRuns = Annotated[
    str | None,
    typer.Option("--scale", help="Only runs of this scale; of any if not given.", autocompletion=completion.scales),
]
ManyRuns = Annotated[
    list[str],
    run_argument(
        "Run directories, or checkpoints in them; runs as recipe:row:column:seed, where what is left out means "
        "all there are, or by the beginning of an id.",
        "RUN...",
    ),
]
SELECTOR = "a run as recipe:row:column:seed, as far as is needed (table3:pre-ln+comt), or by the beginning of its id"
DEFAULT_RUNS = Path("runs")
Results = Annotated[Path, typer.Option(help="Folder that the tables and figures are written to.", file_okay=False)]
DEFAULT_RESULTS = Path("runs/results")
"""Not `results`: what a clone comes with is written by `make record` alone."""
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a table even if it has finished runs that the new one lacks.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Train anew; earlier runs are moved aside, kept.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and print the plan; train nothing.")]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1, mps or cpu; the best there is if not given.")]
Gpus = Annotated[
    int, typer.Option(min=1, help="Processes sharing every batch of a run, one per GPU (or all on the CPU).")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Runs trained at once, each in a process of its own, with its share of the processor's threads. "
        "If not given: as many as there are GPUs; on the CPU one per core, fewer where the command has fewer runs or "
        "the memory is short. More than there are GPUs share them. Not with --gpus.",
    ),
]
Slurm = Annotated[
    Path | None,
    typer.Option(
        metavar="SITE.YAML",
        dir_okay=False,
        help="Submit each run that is open as a job to Slurm, asking for what this file says, and return.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Also log to tensorboard or wandb; repeatable. $COMT_TRACK if not given.",
        autocompletion=completion.trackers,
    ),
]
Text = Annotated[
    str | None,
    typer.Option(help="The text to observe the model on, 2 to 512 tokens; by default a sentence about a castle."),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the figures; below --results if not given.", file_okay=False)
]
OwnAxes = Annotated[
    bool,
    typer.Option(
        "--own-axes", help="Every panel has its own range of values and colours, instead of one range for all panels."
    ),
]


class Penalty(StrEnum):
    """What log-probabilities are divided by."""

    gnmt = "gnmt"
    average = "average"


Beam = Annotated[
    int | None,
    typer.Option(min=1, max=1000, help="Hypotheses that are kept; 1 is greedy. As the run's if not given."),
]
Alpha = Annotated[
    float | None,
    typer.Option(min=0, max=10, help="How much longer texts are favoured. As the run's if not given."),
]
PenaltyOption = Annotated[
    Penalty | None,
    typer.Option(
        "--penalty", help="Divide by ((5 + length) / 6)^alpha (gnmt) or length^alpha (average). As the run's."
    ),
]
Scores = Annotated[bool, typer.Option("--scores", help="Score and log-probability before each text, with tabs.")]


def one_of(argument: str | None, option: str | None, name: str, example: str) -> str | None:
    """What was said as an argument, as the option `name`, or as both; None where it was not. Raises `UserError` where
    both are given and differ."""
    if argument is not None and option is not None and argument != option:
        raise UserError(f"{argument} and {name} {option}: which of them?", f"Say one: {example}")
    return argument if argument is not None else option
