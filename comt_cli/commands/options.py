"""Help texts, and the options that several verbs share. A data class groups options that belong together: a verb takes
it as one parameter, and typer sees one option for each field."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from comt_cli.commands import completion


class _Help:
    """Help from a docstring. Paragraphs are wrapped; the lines of "Examples:" are not, so that they can be pasted."""

    help: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring."""
        self.help = inspect.cleandoc(self.help or "").replace("\n\nExamples:\n", "\n\n\b\nExamples:\n")  # \b: no wrap
        super().format_help_text(ctx, formatter)  # type: ignore[misc]


class Verb(_Help, TyperCommand):
    """A command."""


class VerbGroup(_Help, TyperGroup):
    """A group of commands."""


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with a signature for typer: one option for each annotated field of its data class parameters."""
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
    """The argument for a run or a model."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=completion.selectors)


RECIPE_HELP = "A recipe file, or the name of a shipped recipe: table3, sas/table4."

RecipeArgument = Annotated[str, typer.Argument(metavar="RECIPE", help=RECIPE_HELP, autocompletion=completion.recipes)]
Recipes = Annotated[
    list[str] | None, typer.Argument(metavar="RECIPE", help=RECIPE_HELP, autocompletion=completion.recipes)
]
_SCALES = "smoke (laptop, minutes), evening (laptop, hours), small (one GPU), paper, or one of the recipe's own."
Scale = Annotated[str, typer.Option(metavar="NAME", help=_SCALES, autocompletion=completion.scales)]
_OF_SCALE = "Only runs of this scale; of all scales if not given."
ScaleOfRuns = Annotated[
    str | None, typer.Option("--scale", metavar="NAME", help=_OF_SCALE, autocompletion=completion.scales)
]
_SETTING = "Override a setting, for example train.steps=200; repeatable."
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help=_SETTING, autocompletion=completion.settings),
]
Rows = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these rows.", autocompletion=completion.of_recipes("rows"))
]
Columns = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these columns.", autocompletion=completion.of_recipes("columns"))
]
_TRIALS = "Try these values for every row first, in runs with other seeds; show each row at its best value."
Sweep = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="KEY=A,B,C", help=_TRIALS, autocompletion=completion.settings),
]
Seeds = Annotated[str | None, typer.Option(metavar="1,2 or 1-3", help="Use these seeds instead of the recipe's.")]
_ADDED = "Add a row: half-gate, or wide='{name: comt, hidden: 64}'; repeatable."
Also = Annotated[
    list[str] | None,
    typer.Option("--also", metavar="[NAME=]METHOD", help=_ADDED, autocompletion=completion.methods),
]
Runs = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run directories.", file_okay=False)]
DEFAULT_RUNS = Path("runs")
SELECTOR = "recipe[:row[:column[:seed]]], the name of a run, or the start of its id"
SELECTORS = "Runs: recipe[:row[:column[:seed]]] (a part left out means all), a name, or the start of an id."
ManyRuns = Annotated[list[str], run_argument(f"{SELECTORS} Or directories.", "RUN")]
Results = Annotated[Path, typer.Option(metavar="DIR", help="Folder for tables and figures.", file_okay=False)]
DEFAULT_RESULTS = Path("runs/results")  # not `results`: only `make record` writes the results of a clone
_REPLACE = "Replace a table even if the new one lacks some of its runs."
Overwrite = Annotated[bool, typer.Option("--overwrite", help=_REPLACE)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the options, print the plan, train nothing.")]
_DEVICE = "cuda, cuda:1, mps or cpu; the best available device if not given."
Device = Annotated[str | None, typer.Option(metavar="NAME", help=_DEVICE)]
_GPUS = "Processes that share every batch of a run, one per GPU (or all on the CPU)."
Gpus = Annotated[int, typer.Option(min=1, metavar="N", help=_GPUS)]
_JOBS = (
    "Runs trained at once; not with --gpus. If not given: one per GPU, or one per CPU core (fewer if there are fewer "
    "runs or too little memory)."
)
Jobs = Annotated[int | None, typer.Option(min=1, metavar="N", help=_JOBS)]
_SLURM = "Submit the open runs as a Slurm array job with the resources in this file, and exit."
Slurm = Annotated[Path | None, typer.Option(metavar="SITE.YAML", dir_okay=False, help=_SLURM)]
_ENGINE = "Train in a job of SkyPilot (clouds, Kubernetes), and exit."
Engine = Annotated[Literal["skypilot"] | None, typer.Option(help=_ENGINE)]
_RESOURCES = "Machine of that job, and storage of its runs: H100:1,use_spot=true,storage=s3://BUCKET/FOLDER."
Resources = Annotated[str | None, typer.Option(metavar="LIST", help=_RESOURCES)]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Also log to tensorboard or wandb; repeatable. If not given: $COMT_TRACK.",
        autocompletion=completion.listed("training.trackers", "TRACKERS"),
    ),
]
_FIGURES = "Folder for the figures; one below --results if not given."
Out = Annotated[Path | None, typer.Option(metavar="DIR", help=_FIGURES, file_okay=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Selection:
    """Which parts of a recipe, with which settings."""

    scale: Scale = "smoke"
    rows: Rows = None
    columns: Columns = None
    seeds: Seeds = None
    set_: Set = None
    sweep: Sweep = None
    also: Also = None


@dataclass(frozen=True)
class OfRuns:
    """Where selectors look for runs."""

    scale: ScaleOfRuns = None
    runs: Runs = DEFAULT_RUNS


@dataclass(frozen=True)
class Where:
    """Devices to train on, and the folders of the files."""

    device: Device = None
    gpus: Gpus = 1
    jobs: Jobs = None
    slurm: Slurm = None
    engine: Engine = None
    resources: Resources = None
    track: Track = None
    runs: Runs = DEFAULT_RUNS
    results: Results = DEFAULT_RESULTS
    overwrite: Overwrite = False
    plan_for: str | None = None
    """A GPU of another machine; only plans use it."""
    price: float | None = None
    """Price of an hour of that GPU."""


@dataclass(frozen=True)
class Figures:
    """Folders for figures."""

    out: Out = None
    results: Results = DEFAULT_RESULTS


@dataclass(frozen=True)
class Decoding:
    """Options of beam search; None means the value of the run."""

    beam: Annotated[
        int | None, typer.Option(min=1, max=1000, metavar="N", help="Beam size; the run's if not given.")
    ] = None
    alpha: Annotated[
        float | None,
        typer.Option(min=0, max=10, metavar="X", help="Exponent of the length penalty; the run's if not given."),
    ] = None
    n_best: Annotated[
        int, typer.Option(min=1, metavar="N", help="Texts per line or image, each after its number or name.")
    ] = 1
    scores: Annotated[bool, typer.Option("--scores", help="Print score and log-probability before each text.")] = False
    device: Device = None
