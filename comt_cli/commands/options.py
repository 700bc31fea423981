"""Options that several verbs share, defined once, and those that go together as groups: a verb takes a group as one
parameter, and typer sees an option for each of its fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from comt_cli.commands import completion
from comt_cli.errors import UserError

Verb = Callable[..., None]


def grouped(verb: Verb) -> Verb:
    """The verb as typer can read it: each parameter that is a data class is an option for every field that has one."""
    hints = get_type_hints(verb, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        kind, default = inspect.Parameter.KEYWORD_ONLY, parameter.default
        if name not in groups:
            options.append(inspect.Parameter(name, kind, default=default, annotation=hints[name]))
            continue
        own = get_type_hints(groups[name], include_extras=True)
        options += [
            inspect.Parameter(each.name, kind, default=each.default, annotation=own[each.name])
            for each in fields(groups[name])
            if get_origin(own[each.name]) is Annotated
        ]

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            own = [each.name for each in fields(group) if each.name in given]
            given[name] = group(**{each: given.pop(each) for each in own})
        verb(**given)

    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def run_argument(help: str, metavar: str | None = None) -> Any:
    """The argument by which verbs take a run, or a model."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=completion.selectors)


RECIPE_HELP = "A recipe file, or the name of one that came with the program: table3.yaml, comt/table3."

RecipeArgument = Annotated[str, typer.Argument(help=RECIPE_HELP, autocompletion=completion.recipes)]
Recipes = Annotated[
    list[str] | None, typer.Argument(metavar="[RECIPE]...", help=RECIPE_HELP, autocompletion=completion.recipes)
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
Out = Annotated[
    Path | None, typer.Option(help="Folder for the figures; below --results if not given.", file_okay=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Selection:
    """What is selected and changed of a recipe."""

    scale: Scale = "smoke"
    rows: Rows = None
    columns: Columns = None
    seeds: Seeds = None
    set_: Set = None
    sweep: Sweep = None
    also: Also = None


@dataclass(frozen=True)
class OfRuns:
    """Where runs lie, and which of them selectors mean."""

    scale: ScaleOfRuns = None
    set_: SetOfRuns = None
    runs: Runs = DEFAULT_RUNS


@dataclass(frozen=True)
class Filter:
    """Which of the runs below a folder are meant."""

    scale: ScaleOfRuns = None
    rows: Rows = None
    columns: Columns = None
    seeds: Annotated[str | None, typer.Option(metavar="1,2 or 1-3", help="Only these seeds.")] = None
    set_: Set = None
    also: Also = None
    runs: Runs = DEFAULT_RUNS


@dataclass(frozen=True)
class OfTables(Filter):
    """Which runs of tables are meant: those that a training with these options has, trained by now or not."""

    scale: Annotated[
        str | None,
        typer.Option(
            help="Only this scale. If not given: of recipes that are named smoke, as in training, and what there is of "
            "the others; else every scale with runs.",
            autocompletion=completion.scales,
        ),
    ] = None
    seeds: Seeds = None


@dataclass(frozen=True)
class Where:
    """On what runs are trained, and where their files go."""

    device: Device = None
    gpus: Gpus = 1
    jobs: Jobs = None
    slurm: Slurm = None
    track: Track = None
    runs: Runs = DEFAULT_RUNS
    results: Results = DEFAULT_RESULTS
    overwrite: Overwrite = False
    plan_for: str | None = None
    """The GPU of another machine, of plans alone."""


@dataclass(frozen=True)
class Figures:
    """Where figures go."""

    out: Out = None
    results: Results = DEFAULT_RESULTS


class Penalty(StrEnum):
    """What log-probabilities are divided by."""

    gnmt = "gnmt"
    average = "average"


@dataclass(frozen=True)
class Decoding:
    """How texts are searched for; None is as the run decodes. `attention` is the folder of figures."""

    beam: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Hypotheses that are kept; 1 is greedy. As the run's if not given."),
    ] = None
    alpha: Annotated[
        float | None,
        typer.Option(min=0, max=10, help="How much longer texts are favoured. As the run's if not given."),
    ] = None
    penalty: Annotated[
        Penalty | None,
        typer.Option(help="Divide by ((5 + length) / 6)^alpha (gnmt) or length^alpha (average). As the run's."),
    ] = None
    n_best: Annotated[
        int, typer.Option(min=1, help="Texts for each line or image, under each other behind its number or name.")
    ] = 1
    scores: Annotated[bool, typer.Option("--scores", help="Score and log-probability before each text, with tabs.")] = (
        False
    )
    attention: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", file_okay=False, help="Draw where the model looks at each word: PNG, PDF and CSV."
        ),
    ] = None
    device: Device = None


def one_of(argument: str | None, option: str | None, name: str, example: str) -> str | None:
    """What was said as an argument, as the option `name`, or as both; None where it was not. Raises `UserError` where
    both are given and differ."""
    if argument is not None and option is not None and argument != option:
        raise UserError(f"{argument} and {name} {option}: which of them?", f"Say one: {example}")
    return argument if argument is not None else option
