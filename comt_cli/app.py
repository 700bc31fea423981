"""The command line: finds the verbs and prints their errors. A verb's file is imported when the verb is used, so that
`comt --help` imports nothing heavy."""

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

_GROUPS = {
    "Plan": {
        "recipes": ("verbs.recipes", "List the recipes."),
        "show": ("verbs.show", "Print the plan of a recipe: its runs and their cost."),
        "doctor": ("doctor.checks", "Check that this machine can train."),
    },
    "Train": {
        **{command: ("verbs.train", str(type(task).__doc__)) for command, task in tasks().items()},
        "ablate": ("verbs.train", "Train and draw one ablation of the papers."),
        "reproduce": ("verbs.train", "Train every recipe that has a scale."),
    },
    "Runs": {
        "status": ("verbs.runs", "Show the progress of each table."),
        "runs": ("verbs.runs", "List runs with their state and metric."),
        "rm": ("verbs.runs", "Delete runs."),
        "push": ("verbs.transfer", "Copy runs to a folder, a server or a bucket."),
        "pull": ("verbs.transfer", "Copy runs from there."),
    },
    "Tables": {
        "report": ("verbs.report", "Write the tables of finished runs."),
        "curves": ("verbs.compare", "Draw the learning curves of a recipe's rows."),
        "compare": ("verbs.compare", "Compare two runs, or two cells over their seeds."),
    },
    "Inspect": {
        "analyze-gates": ("verbs.models", "Draw the gate values of a trained model."),
        "plot-cosine": ("verbs.models", "Draw how similar each layer's input and output are."),
        "plot-gradients": ("verbs.models", "Draw the gradient norm of each convolution."),
        "plot-images": ("verbs.models", "Draw training images as a network receives them."),
        "diagnose": ("lab.diagnose", "Test residual connections before training."),
    },
    "Models": {
        "generate": ("verbs.models", "Continue a text with a language model."),
        "translate": ("verbs.models", "Translate lines with a trained model."),
        "caption": ("verbs.models", "Caption images with a trained model."),
        "score": ("verbs.score", "Score translations with sacreBLEU."),
        "evaluate": ("verbs.evaluate", "Evaluate finished runs again, or models on tasks."),
        "average": ("verbs.models", "Average the weights of a run's last steps."),
        "export": ("verbs.models", "Export a model for the transformers library."),
    },
    "Speed": {"bench": ("lab.bench", "Measure speed and memory.")},
}
VERBS = {name: verb for verbs in _GROUPS.values() for name, verb in verbs.items()}
"""By name, the file that has the function, and the line of `comt --help`."""


@functools.cache
def _verb(name: str) -> Any:
    """Import the file of a verb, and return its command."""
    module = importlib.import_module(f"comt_cli.{VERBS[name][0]}")
    common: dict[str, Any] = {"pretty_exceptions_short": True, "rich_markup_mode": None}
    if name == "bench":
        return get_group_from_info(TyperInfo(module.app, name=name), suggest_commands=True, **common)
    function = getattr(module, name.replace("-", "_"), None) or module.training_verb(tasks()[name])
    return get_command_from_info(CommandInfo(name, cls=Verb, callback=grouped(function)), **common)


class _Program(VerbGroup):
    """The program. Help and completion read stand-ins; the file of a verb is imported when the verb is called."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name, (_, help) in VERBS.items():
            self.commands[name] = Verb(name, short_help=f"{help.partition('. ')[0].rstrip('.')}.")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs in groups, then the options. The name of a group is left of its first line."""
        rows = [
            (f"{'' if number else group:<9}{name}", self.commands[name].short_help or "")
            for group, verbs in _GROUPS.items()
            for number, name in enumerate(verbs)
        ]
        records = [record for parameter in self.get_params(ctx) if (record := parameter.get_help_record(ctx))]
        formatter.write_paragraph()
        formatter.write_dl(rows)
        formatter.write_dl(
            (f"{'' if number else 'Options':<9}{name}", text.partition(", to copy it")[0])
            for number, (name, text) in enumerate(records)
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The called verb, in place of its stand-in."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, _verb(name) if name in VERBS else None, rest


app = typer.Typer(
    name="comt",
    cls=_Program,
    help="""Train and compare networks with learnable residual connections and gates. A recipe (a YAML file) holds the
    runs of one published table. `comt COMMAND --help` has options and examples.

    Examples:
      comt show table3
      comt train-lm table3
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
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
        os.getcwd()  # noqa: PTH109 - libraries that fail later do not name this cause
    except OSError as error:
        raise UserError(
            f"the current folder cannot be used: {error.strerror}",
            "It was removed, or its permissions do not allow reading: change to another folder.",
        ) from error


def main() -> None:
    """Run the command line and end the process with its exit status. A `UserError` is printed without a traceback."""
    try:
        _run()
    except SystemExit as ended:
        if "TORCHELASTIC_RUN_ID" in os.environ and "torch.distributed" in sys.modules:
            # A torchrun process that has trained has threads that outlive the interpreter.
            end_process = importlib.import_module("comt_cli.training.processes").end_process
            end_process(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise


def _run() -> None:
    mend_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # else it is ignored in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)  # so that partly written files are removed
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # so that a failed write is reported here, not by the interpreter at exit
    except KeyboardInterrupt:  # before or after the verb, which handles its own
        sys.exit(128 + signal.SIGINT)
    except UserError as error:
        _fail(error)
    except (OSError, MemoryError, ImportError, UnicodeEncodeError, TypeError) as error:
        if (known := of_surroundings(error, sys.argv[1:])) is not None:
            _fail(known)
        # Files with a name raise StorageError. These errors are of the output, which has none.
        if getattr(error, "errno", None) not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        let_go(sys.stdout)
        if not isinstance(error, BrokenPipeError):  # a reader that has stopped reading: `comt recipes | head`
            typer.echo(f"comt: cannot write the output: {getattr(error, 'strerror', None) or error}", err=True)
        sys.exit(1)


def _fail(error: UserError) -> NoReturn:
    """Print an error and exit with its status."""
    colour = "red" if sys.stderr.isatty() else None
    for line in printed_lines(f"comt: {error.message}", sys.stderr):
        typer.secho(line, err=True, fg=colour)
    for line in printed_lines(f"  {error.hint}" if error.hint else "", sys.stderr):
        typer.echo(line, err=True)
    sys.exit(error.exit_status)
