"""The command line: registers the verbs and prints what they raise. Imports nothing heavy."""

from __future__ import annotations

import sys

import typer

from comt_cli import __version__
from comt_cli.commands import (
    ablate,
    analyze_gates,
    bench,
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
    show,
    status,
    train_lm,
    train_resnet,
)
from comt_cli.commands.examples import Verb, VerbGroup
from comt_cli.errors import UserError
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
app.command("train-lm", cls=Verb)(train_lm.train_lm)
app.command("train-resnet", cls=Verb)(train_resnet.train_resnet)
app.command("ablate", cls=Verb)(ablate.ablate)
app.command("status", cls=Verb)(status.status)
app.command("report", cls=Verb)(report.report)
app.command("reproduce", cls=Verb)(reproduce.reproduce)
app.command("analyze-gates", cls=Verb)(analyze_gates.analyze_gates)
app.command("plot-cosine", cls=Verb)(plot_cosine.plot_cosine)
app.command("plot-gradients", cls=Verb)(plot_gradients.plot_gradients)
app.command("plot-images", cls=Verb)(plot_images.plot_images)
app.command("diagnose", cls=Verb)(diagnose.diagnose)
app.command("generate", cls=Verb)(generate.generate)
app.command("export", cls=Verb)(export.export)
app.add_typer(bench.app, name="bench")
app.command("doctor", cls=Verb)(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Run the command line. A `UserError` prints its message and hint, without a traceback, and sets the status."""
    try:
        app()
    except UserError as error:
        sys.stdout.flush()
        for line in printed_lines(f"comt: {error.message}", sys.stderr):
            typer.secho(line, err=True, fg="red" if sys.stderr.isatty() else None)
        for line in printed_lines(f"  {error.hint}" if error.hint else "", sys.stderr):
            typer.echo(line, err=True)
        sys.exit(error.exit_status)
