"""The command line: registers the verbs and prints what they raise. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

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
    evaluate,
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
from comt_cli.errors import UserError
from comt_cli.tasks import tasks
from comt_cli.words import printed_lines

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
app.command("evaluate", cls=Verb)(evaluate.evaluate)
app.command("average", cls=Verb)(average.average)
app.command("export", cls=Verb)(export.export)
app.add_typer(bench.app, name="bench")
app.command("doctor", cls=Verb)(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),  # noqa: ARG001 - its callback
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
    _print_anything()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # what cannot be written is told here, not by the interpreter when it ends
    except UserError as error:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        for line in printed_lines(f"comt: {error.message}", sys.stderr):
            typer.secho(line, err=True, fg="red" if sys.stderr.isatty() else None)
        for line in printed_lines(f"  {error.hint}" if error.hint else "", sys.stderr):
            typer.echo(line, err=True)
        sys.exit(error.exit_status)
    except OSError as error:
        # What goes to a file by name is told as a StorageError; that of a descriptor without a name was printed.
        if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        _let_go_of_stdout()
        if error.errno != errno.EPIPE:  # of a reader that has seen enough, `comt recipes | head`, nothing is said
            typer.echo(f"comt: cannot write the output: {error.strerror or error}", err=True)
        sys.exit(1)


def _print_anything() -> None:
    """Where the terminal's encoding lacks a letter, print its code: a plus-minus sign must not end a report."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _let_go_of_stdout() -> None:
    """Have what is left in the buffer go nowhere, so that the interpreter can end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
