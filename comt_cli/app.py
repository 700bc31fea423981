"""The command line: registers the verbs and prints what they raise. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

import typer

from comt_cli import __version__
from comt_cli.commands import completion
from comt_cli.commands.examples import Verb, VerbGroup
from comt_cli.commands.train import end_of_torchrun, training_verb
from comt_cli.errors import UserError, of_surroundings
from comt_cli.streams import let_go, mend_streams
from comt_cli.tasks import tasks
from comt_cli.words import printed_lines

WIDEST_HELP = 120
"""Columns: longer lines are harder to read, not easier."""

app = typer.Typer(
    name="comt",
    cls=VerbGroup,
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

BEFORE_TRAINING = "recipes show"
AFTER = """ablate status runs rm report curves compare reproduce analyze-gates plot-cosine plot-gradients plot-images
diagnose generate translate caption score evaluate average export"""
"""In the order in which a newcomer meets them; `--help` keeps it."""
LAB = {"diagnose": "comt_cli.lab.diagnose", "bench": "comt_cli.lab.bench"}
"""The modules of the verbs that measure instead of training, by name: nothing imports the lab."""


def _add(verbs: str) -> None:
    """Each is the function of its name, in the file of its name."""
    for verb in verbs.split():
        name = verb.replace("-", "_")
        module = importlib.import_module(LAB.get(verb, f"comt_cli.commands.{name}"))
        app.command(verb, cls=Verb)(getattr(module, name))


_add(BEFORE_TRAINING)
for task in tasks().values():
    app.command(task.command, cls=Verb)(training_verb(task))
_add(AFTER)
app.add_typer(importlib.import_module(LAB["bench"]).app, name="bench")
_add("doctor")


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
    """Run the command line, and end the process with its status."""
    completion.join_colons()
    try:
        _run()
    except SystemExit as ended:
        end_of_torchrun(ended.code)
        raise


def _run() -> None:
    """Run the command line. A `UserError` prints its message and hint, without a traceback, and sets the status."""
    mend_streams()
    try:
        with _interruptible():
            try:
                # A pipe, and what it is read by, has 80 columns.
                app(max_content_width=WIDEST_HELP if sys.stdout.isatty() else None)
            finally:
                sys.stdout.flush()  # what cannot be written is told here, not by the interpreter when it ends
    except KeyboardInterrupt:  # before or after the verb, which has its own way of ending
        sys.exit(128 + signal.SIGINT)
    except UserError as error:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
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
    for line in printed_lines(f"comt: {error.message}", sys.stderr):
        typer.secho(line, err=True, fg="red" if sys.stderr.isatty() else None)
    for line in printed_lines(f"  {error.hint}" if error.hint else "", sys.stderr):
        typer.echo(line, err=True)
    sys.exit(error.exit_status)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt` here, so that what is half written is removed; outside, where the interpreter
    would print a traceback, it ends the process."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_DFL:  # ignored in the background of a script, or not ours to change
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
