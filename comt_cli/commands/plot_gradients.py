"""`comt plot-gradients`: how large the gradients of the convolutions were while networks learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import figure_options, options
from comt_cli.commands.loading import loading

if TYPE_CHECKING:
    from comt_cli.runs.directory import RunDirectory
    from comt_cli.runs.plan import RunSpec


_MOST_RUNS = 7
"""As many colours as can be distinguished."""


def plot_gradients(
    chosen: options.ManyRuns,
    epochs: Annotated[float, typer.Option(help="How much of the training is shown.", min=0)] = 5.0,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = Path("runs"),
    out: figure_options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Draw the L2 norm of every convolution's gradient. Shows it over depth and training steps, for one run or several.

    This is CoMT's Figure 3, of any runs of image classifiers that logged these norms: those trained with --set
    train.gradient_norms_every=10 (every tenth step). An unfinished run is drawn as far as it is. Writes PNG, PDF,
    caption and the CSV it was drawn from: of one run among its figures, of several under a name of all of them.

    Examples:

      comt plot-gradients figure3:baseline

      comt plot-gradients table1::glyphs10-resnet152:1 --epochs 1 --out figures
    """
    from comt_cli.commands.run_selectors import run_folders

    directories = _by_label(run_folders(chosen, runs, scale, set_))
    loading("the logged norms")
    from comt_cli.analysis.conv_gradients import conv_gradients
    from comt_cli.report import figures
    from comt_cli.report.figure_captions import caption
    from comt_cli.report.terminal import say_written
    from comt_cli.report.trained import of_runs

    frame = conv_gradients(directories, epochs)
    figure, drawn = figures.draw_conv_gradients(frame)
    specs = [directory.spec() for directory in directories.values()]
    trained = of_runs(specs)
    said = caption("conv-gradients", "Gradients of the convolutions over depth and training", trained, drawn)
    figures.sign(figure, trained)
    ids = [spec.id for spec in specs]
    own = figure_options.run_figure_folder(specs[0], results)
    folder = out or (own if len(ids) == 1 else own.parent)
    stem = "conv-gradients" if len(ids) == 1 else f"conv-gradients-of-{len(ids)}-runs-{figure_options.of_all(ids)}"
    say_written(figures.write_figure(figure, drawn, folder, stem, said))


def _by_label(paths: list[Path]) -> dict[str, RunDirectory]:
    """The runs by what they are called in the figure: row, column, seed and method, and the id where these are alike.

    A run that is given twice, as itself or as a copy, is taken once, which the error stream says.

    Raises:
        UserError: a path is not a run's; there are more than can be distinguished.
    """
    from comt_cli.errors import UserError
    from comt_cli.runs.directory import RunDirectory

    found: dict[str, tuple[RunDirectory, RunSpec, str]] = {}
    for path in paths:
        directory = RunDirectory(path.parent if path.is_file() else path)
        spec = directory.spec()
        if spec.id in found:
            first = found[spec.id][0].path
            typer.echo(f"comt: {path} is left out: it is the same run as {first} ({spec.id})", err=True)
            continue
        found[spec.id] = directory, spec, f"{spec.row}-{spec.column}-seed{spec.seed} ({spec.method_words})"
    if len(found) > _MOST_RUNS:
        raise UserError(f"{len(found)} runs are more than one figure can show", f"Give {_MOST_RUNS} or fewer.")
    names = [name for _, _, name in found.values()]
    return {
        name if names.count(name) == 1 else f"{name} {spec.id}": directory for directory, spec, name in found.values()
    }
