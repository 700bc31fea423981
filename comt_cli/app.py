"""The command line: finds the verbs and prints what they raise. Imports nothing heavy: a verb's file is imported when
it is used."""

from __future__ import annotations

import errno
import functools
import importlib
import os
import signal
import sys
from typing import Any, NoReturn

import typer
from typer.main import get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from comt_cli import __version__
from comt_cli.commands.options import Verb, VerbGroup, grouped
from comt_cli.errors import UserError, of_surroundings
from comt_cli.streams import let_go, mend_streams
from comt_cli.tasks import tasks
from comt_cli.words import printed_lines

VERBS = {
    "recipes": ("verbs.recipes", "List the recipes, one a line."),
    "show": ("verbs.show", "Print the plan of a recipe: every run and what it costs."),
    **{command: ("verbs.train", str(type(task).__doc__)) for command, task in tasks().items()},
    "ablate": ("verbs.train", "Train, tabulate and draw an ablation of the papers."),
    "status": ("verbs.runs", "Show how far the runs of each table are."),
    "runs": ("verbs.runs", "List every run, with its metric or state."),
    "rm": ("verbs.runs", "Delete runs: their folders, and the links of all tables."),
    "report": ("verbs.report", "Write the tables of finished runs."),
    "curves": ("verbs.compare", "Draw what a recipe's rows learn while they train."),
    "compare": ("verbs.compare", "Compare two runs, or two cells over their seeds."),
    "reproduce": ("verbs.train", "Train every recipe that has the scale."),
    "analyze-gates": ("verbs.models", "Draw the values that a trained model's gates take."),
    "plot-cosine": ("verbs.models", "Draw how alike every layer's input and output are."),
    "plot-gradients": ("verbs.models", "Draw the L2 norm of every convolution's gradient."),
    "plot-images": ("verbs.models", "Draw images of the training split as a network sees them."),
    "diagnose": ("lab.diagnose", "Look at residual connections before any training."),
    "generate": ("verbs.models", "Let a model continue a text."),
    "translate": ("verbs.models", "Translate lines with a trained model by beam search."),
    "caption": ("verbs.models", "Say what images show, with a trained model."),
    "score": ("verbs.score", "Score translations against references with sacreBLEU."),
    "evaluate": ("verbs.evaluate", "Evaluate finished runs again, or language models on tasks."),
    "average": ("verbs.models", "Write the mean of the weights of a run's last steps."),
    "export": ("verbs.models", "Write a model as a folder for the transformers library."),
    "doctor": ("doctor.checks", "Check what training needs."),
    "bench": ("lab.bench", "Measure speed and memory, as ratios of interleaved runs."),
}
"""The file that has the function of its name, and the line of `--help`; in the order in which a newcomer meets them."""


@functools.cache
def _verb(name: str) -> Any:
    """The verb of that name, whose file is imported for it."""
    module = importlib.import_module(f"comt_cli.{VERBS[name][0]}")
    common: dict[str, Any] = {"pretty_exceptions_short": True, "rich_markup_mode": None}
    if name == "bench":
        return get_group_from_info(TyperInfo(module.app, name=name), suggest_commands=True, **common)
    function = getattr(module, name.replace("-", "_"), None) or module.training_verb(tasks()[name])
    return get_command_from_info(CommandInfo(name, cls=Verb, callback=grouped(function)), **common)


class _Program(VerbGroup):
    """The program. Help and completion read stand-ins; the file of a verb is imported when that is called."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name, (_, help) in VERBS.items():
            self.commands[name] = Verb(name, short_help=f"{help.partition('. ')[0].rstrip('.')}.")

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The verb that is called, in place of its stand-in."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, _verb(name) if name in VERBS else None, rest


app = typer.Typer(
    name="comt",
    cls=_Program,
    help="""Train, measure and look inside networks with learnable or input-dependent residual connections.

    Examples:

      comt show table3.yaml

      comt train-lm --recipe table3.yaml

      comt report
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from comt_cli.commit import git_commit

        commit = git_commit()
        typer.echo(f"{__version__} (commit {commit})" if commit is not None else __version__)
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print version, commit."),  # noqa: ARG001 - its callback
) -> None:
    """Options of the program itself."""
    try:
        os.getcwd()  # noqa: PTH109 - libraries deeper down end without a word of this
    except OSError as error:
        raise UserError(
            f"the folder that comt was started in cannot be used: {error.strerror}",
            "It was removed, or may not be read: change to another one.",
        ) from error


def main() -> None:
    """Run the command line, and end the process with its status. A `UserError` prints its message and hint, without a
    traceback."""
    try:
        _run()
    except SystemExit as ended:
        if "TORCHELASTIC_RUN_ID" in os.environ and "torch.distributed" in sys.modules:
            # A process of torchrun's that has trained has threads that outlive the interpreter's end.
            end_process = importlib.import_module("comt_cli.training.processes").end_process
            end_process(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise


def _run() -> None:
    mend_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # else it is ignored in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)  # so that what is half written is removed
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # what cannot be written is told here, not by the interpreter when it ends
    except KeyboardInterrupt:  # before or after the verb, which has its own way of ending
        sys.exit(128 + signal.SIGINT)
    except UserError as error:
        _tell(error)
    except (OSError, MemoryError, ImportError, UnicodeEncodeError, TypeError) as error:
        if (told := of_surroundings(error, sys.argv[1:])) is not None:
            _tell(told)
        # What goes to a file by name is told as a StorageError; that of a descriptor without a name was printed.
        if getattr(error, "errno", None) not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        let_go(sys.stdout)
        if not isinstance(error, BrokenPipeError):  # of a reader that has seen enough, `comt recipes | head`
            typer.echo(f"comt: cannot write the output: {getattr(error, 'strerror', None) or error}", err=True)
        sys.exit(1)


def _tell(error: UserError) -> NoReturn:
    """Print an error, and end with its status."""
    colour = "red" if sys.stderr.isatty() else None
    for line in printed_lines(f"comt: {error.message}", sys.stderr):
        typer.secho(line, err=True, fg=colour)
    for line in printed_lines(f"  {error.hint}" if error.hint else "", sys.stderr):
        typer.echo(line, err=True)
    sys.exit(error.exit_status)
