"""The command line: registers the verbs and prints what they raise. Imports nothing heavy."""

from __future__ import annotations

import sys

import typer

from comt_cli import __version__
from comt_cli.commands import (
    ablate,
    analyze_gates,
    bench,
    completion,
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
    show,
    status,
    train_lm,
    train_resnet,
)
from comt_cli.errors import UserError

app = typer.Typer(
    name="comt",
    help="Train, measure and look inside networks with learnable or input-dependent residual connections.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# In the order in which a newcomer meets them; `--help` keeps it.
app.command("recipes")(recipes.recipes)
app.command("show")(show.show)
app.command("train-lm")(train_lm.train_lm)
app.command("train-resnet")(train_resnet.train_resnet)
app.command("ablate")(ablate.ablate)
app.command("status")(status.status)
app.command("runs")(runs.runs)
app.command("rm")(rm.rm)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.command("analyze-gates")(analyze_gates.analyze_gates)
app.command("plot-cosine")(plot_cosine.plot_cosine)
app.command("plot-gradients")(plot_gradients.plot_gradients)
app.command("plot-images")(plot_images.plot_images)
app.command("diagnose")(diagnose.diagnose)
app.command("generate")(generate.generate)
app.command("export")(export.export)
app.add_typer(bench.app, name="bench")
app.command("doctor")(doctor.doctor)


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
    completion.join_colons()
    try:
        app()
    except UserError as error:
        sys.stdout.flush()
        typer.secho(f"comt: {error.message}", err=True, fg="red" if sys.stderr.isatty() else None)
        if error.hint:
            typer.echo(f"  {error.hint}", err=True)
        sys.exit(error.exit_status)
