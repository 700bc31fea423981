"""`comt plot-cosine`: what each layer of a model makes of the residual stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import completion, figure_options, options
from comt_cli.commands.loading import loading_model


def plot_cosine(
    model: Annotated[
        str,
        typer.Argument(
            help=f"A checkpoint.pt or run directory; {options.SELECTOR}; a Hugging Face folder or hub name of a LLaMA "
            "or BERT, or a .gguf file.",
            show_default=False,
            autocompletion=completion.selectors,
        ),
    ],
    text: figure_options.Text = None,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = Path("runs"),
    out: figure_options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Draw how alike every layer's input and output are. Shows their cosine similarity and norm ratio, per token.

    This is CoMT's Figure 1, for any LLaMA or BERT. Writes PNG, PDF, caption and the CSV it was drawn from, which also
    has the angular distance, and the cosine between a layer's input and its change.

    Examples:

      comt plot-cosine table3:pre-ln

      comt plot-cosine SmolLM2-135M-Instruct.Q4_1.gguf --text "Once upon a time"

      comt plot-cosine HuggingFaceTB/SmolLM2-135M
    """
    from comt_cli.commands.run_selectors import model_source

    model = model_source(model, runs, scale, set_)
    loading_model(model)
    from comt_cli.analysis.residual_stream import residual_stream
    from comt_cli.exchange.load import load
    from comt_cli.exchange.loaded import LoadedText
    from comt_cli.report import figures
    from comt_cli.report.figure_captions import caption
    from comt_cli.report.terminal import say_written

    loaded = load(model, LoadedText)
    figure, drawn = figures.draw_residual_stream(residual_stream(loaded, text))
    trained = figure_options.trained_words(loaded)
    said = caption("residual-stream", "What each layer makes of the residual stream", trained, drawn)
    figures.sign(figure, trained)
    folder = figure_options.figure_folder(loaded, out, results)
    say_written(figures.write_figure(figure, drawn, folder, "residual-stream", said))
    typer.echo(
        f"{loaded.name}, mean over tokens and layers: cosine {drawn['cosine'].mean():.3f}, "
        f"angular distance {drawn['angle'].mean():.3f}, norm ratio {drawn['norm_ratio'].mean():.3f}"
    )
