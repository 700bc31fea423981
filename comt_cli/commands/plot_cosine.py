"""`comt plot-cosine`: what each layer of a model makes of the residual stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import figure_options, options
from comt_cli.commands.loading import loading_model


def plot_cosine(
    model: Annotated[
        str,
        typer.Argument(
            help="A checkpoint.pt or run directory, a Hugging Face LLaMA folder or hub name, or a .gguf file.",
            show_default=False,
        ),
    ],
    text: figure_options.Text = None,
    out: figure_options.Out = None,
    results: options.Results = Path("results"),
) -> None:
    """Draw the cosine similarity and the norm ratio between every layer's input and output, per token.

    This is CoMT's Figure 1, for any LLaMA. Writes PNG, PDF and the CSV it was drawn from, which also has the angular
    distance, and the cosine between a layer's input and its change.

    Examples:

      comt plot-cosine runs/comt/table3/pre-ln/130m/seed1-0123456789ab

      comt plot-cosine SmolLM2-135M-Instruct.Q4_1.gguf --text "Once upon a time"

      comt plot-cosine HuggingFaceTB/SmolLM2-135M
    """
    loading_model(model)
    from comt_cli.analysis.residual_stream import residual_stream
    from comt_cli.models.load import load_model
    from comt_cli.report import figures

    loaded = load_model(model)
    figure, drawn = figures.draw_residual_stream(residual_stream(loaded, text))
    folder = figure_options.figure_folder(loaded, out, results)
    for path in figures.write_figure(figure, drawn, folder, "residual-stream"):
        typer.echo(path)
    typer.echo(
        f"{loaded.name}, mean over tokens and layers: cosine {drawn['cosine'].mean():.3f}, "
        f"angular distance {drawn['angle'].mean():.3f}, norm ratio {drawn['norm_ratio'].mean():.3f}"
    )
