"""`comt analyze-gates`: what the gates of a trained model do with a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import figure_options, options


def analyze_gates(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint.pt or a run directory.", show_default=False)],
    text: figure_options.Text = None,
    site: Annotated[
        str | None, typer.Option(help="The projection whose channel-wise gates are drawn; down_proj if not given.")
    ] = None,
    out: figure_options.Out = None,
    results: options.Results = Path("results"),
) -> None:
    """Draw the values that a trained model's gates take on a text.

    Writes scalar gates per token across layers, channel-wise gates as surfaces, and mean, spread and saturation per
    layer and module; each as PNG, PDF and the CSV it was drawn from.

    Examples:

      comt analyze-gates runs/comt/table3/pre-ln+comt/130m/seed1-0123456789ab

      comt analyze-gates checkpoint.pt --text "The king left the castle." --out figures
    """
    from comt_cli.analysis import gates
    from comt_cli.errors import UserError
    from comt_cli.models.load import load_model
    from comt_cli.report import figures

    loaded = load_model(checkpoint)
    values = gates.gate_values(loaded, text)
    folder = figure_options.figure_folder(loaded, out, results)
    channel_sites = values.sites("channel")
    if site is not None and not channel_sites:
        raise UserError(f"--site {site}: the gates of {loaded.name} are scalars", "--site is for channel-wise gates.")
    drawings = [("gate-summary", figures.draw_gate_summary(gates.summary_frame(values)))]
    if values.sites("scalar"):
        drawings.append(("gate-values-by-token", figures.draw_gate_lines(gates.scalar_frame(values))))
    if channel_sites:
        chosen = site or ("down_proj" if "down_proj" in channel_sites else channel_sites[-1])
        frame = gates.channel_frame(values, chosen, figures.MAX_CHANNELS)
        drawings.append((f"gate-values-by-channel-{chosen}", figures.draw_gate_surfaces(frame, chosen)))
    for stem, (figure, drawn) in drawings:
        for path in figures.write_figure(figure, drawn, folder, stem):
            typer.echo(path)
