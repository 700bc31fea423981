"""Help of verbs, and options that several share. Those that go together are a group: a verb takes it as one parameter,
and typer sees an option for each of its fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from comt_cli.commands import completion


class _Help:
    """Help of a docstring as click prints it, but an example, which begins with the program's name, on a line of its
    own that can be pasted."""

    help: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring, paragraph by paragraph."""
        self.help = inspect.cleandoc(self.help or "").replace("\n\n  comt ", "\n\n\b\n  comt ")  # \b: as it is
        super().format_help_text(ctx, formatter)  # type: ignore[misc]


class Verb(_Help, TyperCommand):
    """A command."""


class VerbGroup(_Help, TyperGroup):
    """A group of commands."""


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
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
_SCALES = "smoke (a laptop, minutes), evening (a laptop, hours), small (one GPU), paper, or what else a recipe has."
Scale = Annotated[str, typer.Option(help=_SCALES, autocompletion=completion.scales)]
ScaleOfRuns = Annotated[
    str | None,
    typer.Option("--scale", help="Only runs of this scale; of any if not given.", autocompletion=completion.scales),
]
_SETTING = "SECTION.KEY=VALUE"
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar=_SETTING, help="Override a setting; repeatable.", autocompletion=completion.settings),
]
Rows = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these rows.", autocompletion=completion.of_recipes("rows"))
]
Columns = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these columns.", autocompletion=completion.of_recipes("columns"))
]
_TRIALS = "First try these values for every row, by runs with other seeds; show each row at its best."
Sweep = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="SECTION.KEY=A,B,C", help=_TRIALS, autocompletion=completion.settings),
]
Seeds = Annotated[str | None, typer.Option(metavar="1,2 or 1-3", help="These seeds instead of the recipe's.")]
_ADDED = "Add a row that the paper does not have: half-gate, or wide='{name: comt, hidden: 64}'; repeatable."
Also = Annotated[
    list[str] | None,
    typer.Option("--also", metavar="METHOD or NAME=METHOD", help=_ADDED, autocompletion=completion.methods),
]
Runs = Annotated[Path, typer.Option(help="Folder of the run directories.", file_okay=False)]
DEFAULT_RUNS = Path("runs")
SELECTOR = (
    "a run as recipe:row:column:seed, as far as is needed (table3:pre-ln+comt), by its name, or by how its id begins"
)
SELECTORS = "Runs as recipe:row:column:seed, where what is left out means all, by a name, or by how an id begins."
ManyRuns = Annotated[list[str], run_argument(f"{SELECTORS} Or directories.", "RUN...")]
Results = Annotated[Path, typer.Option(help="Folder that results are written to.", file_okay=False)]
DEFAULT_RESULTS = Path("runs/results")  # not `results`: what a clone comes with is written by `make record` alone
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a table even if the new one lacks runs of it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and print the plan; train nothing.")]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1, mps or cpu; the best there is if not given.")]
Gpus = Annotated[int, typer.Option(min=1, help="Processes that share every batch, one per GPU (or all on the CPU).")]
_JOBS = (
    "Runs trained at once, each in a process with its share of the processor's threads. If not given, one per GPU; on "
    "the CPU one per core, fewer where runs or memory are few. Not with --gpus."
)
Jobs = Annotated[int | None, typer.Option(min=1, metavar="N", help=_JOBS)]
_SLURM = "Submit each run that is open as a job to Slurm, asking for what this file says, and return."
Slurm = Annotated[Path | None, typer.Option(metavar="SITE.YAML", dir_okay=False, help=_SLURM)]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Also log to tensorboard or wandb; repeatable. $COMT_TRACK if not given.",
        autocompletion=completion.listed("training.trackers", "TRACKERS"),
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder of the figures; else one below --results.", file_okay=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Selection:
    """Selected parts and changed settings of a recipe."""

    scale: Scale = "smoke"
    rows: Rows = None
    columns: Columns = None
    seeds: Seeds = None
    set_: Set = None
    sweep: Sweep = None
    also: Also = None


@dataclass(frozen=True)
class OfRuns:
    """The folder of runs, and the runs among them that selectors mean."""

    scale: ScaleOfRuns = None
    runs: Runs = DEFAULT_RUNS


@dataclass(frozen=True)
class Where:
    """Devices that runs are trained on, and folders of their files."""

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
    """Folders of figures."""

    out: Out = None
    results: Results = DEFAULT_RESULTS


@dataclass(frozen=True)
class Decoding:
    """Beam search for texts; None is as the run decodes."""

    beam: Annotated[int | None, typer.Option(min=1, max=1000, help="Hypotheses kept; else the run's.")] = None
    alpha: Annotated[
        float | None, typer.Option(min=0, max=10, help="Exponent of the length penalty; else the run's.")
    ] = None
    n_best: Annotated[int, typer.Option(min=1, help="Texts a line or image, each behind its number or name.")] = 1
    scores: Annotated[bool, typer.Option("--scores", help="Score and log-probability before each text.")] = False
    device: Device = None
