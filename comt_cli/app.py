"""The command line: registers the verbs and prints what they raise. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

import typer

from comt_cli import __version__
from comt_cli.commands import (
    ablate,
    analyze_gates,
    average,
    bench,
    caption,
    compare,
    completion,
    curves,
    diagnose,
    doctor,
    export,
    generate,
    plot_cosine,
    plot_gradients,
    plot_images,
    recipes,
    report,
    reproduce,
    rm,
    runs,
    score,
    show,
    status,
    translate,
)
from comt_cli.commands.ending import end_of_torchrun
from comt_cli.commands.examples import Verb, VerbGroup
from comt_cli.commands.train_recipe import training_verb
from comt_cli.errors import UserError, of_surroundings, of_system
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

# In the order in which a newcomer meets them; `--help` keeps it.
app.command("recipes", cls=Verb)(recipes.recipes)
app.command("show", cls=Verb)(show.show)
for task in tasks().values():
    app.command(task.command, cls=Verb)(training_verb(task))
app.command("ablate", cls=Verb)(ablate.ablate)
app.command("status", cls=Verb)(status.status)
app.command("runs", cls=Verb)(runs.runs)
app.command("rm", cls=Verb)(rm.rm)
app.command("report", cls=Verb)(report.report)
app.command("curves", cls=Verb)(curves.curves)
app.command("compare", cls=Verb)(compare.compare)
app.command("reproduce", cls=Verb)(reproduce.reproduce)
app.command("analyze-gates", cls=Verb)(analyze_gates.analyze_gates)
app.command("plot-cosine", cls=Verb)(plot_cosine.plot_cosine)
app.command("plot-gradients", cls=Verb)(plot_gradients.plot_gradients)
app.command("plot-images", cls=Verb)(plot_images.plot_images)
app.command("diagnose", cls=Verb)(diagnose.diagnose)
app.command("generate", cls=Verb)(generate.generate)
app.command("translate", cls=Verb)(translate.translate)
app.command("caption", cls=Verb)(caption.caption)
app.command("score", cls=Verb)(score.score)
app.command("average", cls=Verb)(average.average)
app.command("export", cls=Verb)(export.export)
app.add_typer(bench.app, name="bench")
app.command("doctor", cls=Verb)(doctor.doctor)


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
    """Run the command line, and end the process with its status.

    One of torchrun's that has trained is ended as `end_of_torchrun` says.
    """
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
    except OSError as error:
        # What goes to a file by name is told as a StorageError; that of a descriptor without a name was printed.
        if error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO):
            let_go(sys.stdout)
            if error.errno != errno.EPIPE:  # of a reader that has seen enough, `comt recipes | head`, nothing is said
                typer.echo(f"comt: cannot write the output: {error.strerror or error}", err=True)
            sys.exit(1)
        told = of_system(error)
        if told is None:
            raise
        _tell(told)
    except (MemoryError, ImportError, UnicodeEncodeError) as error:
        told = of_surroundings(error, sys.argv[1:])
        if told is None:
            raise
        _tell(told)


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
