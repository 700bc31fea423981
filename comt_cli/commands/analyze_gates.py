"""`comt analyze-gates`: what the gates of a trained model do with a text, or with images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import completion, figure_options, options
from comt_cli.commands.loading import loading_model

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from comt_cli.exchange.loaded_images import LoadedImageModel
    from comt_cli.exchange.loaded_text import LoadedText
    from comt_cli.report.caption import Caption

Drawings = list[tuple[str, tuple["Figure", "pd.DataFrame"], "Caption"]]

_IMAGES = "4"
_MOST_IMAGES = 12


def analyze_gates(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help=f"A checkpoint.pt or a run directory; {options.SELECTOR}. Hugging Face folders and .gguf files are "
            "read too, but hold no gates.",
            show_default=False,
            autocompletion=completion.selectors,
        ),
    ],
    text: figure_options.Text = None,
    site: Annotated[
        str | None, typer.Option(help="The projection whose channel-wise gates are drawn; down_proj if not given.")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            metavar="N or A,B",
            help="Of an image classifier: how many validation images are shown, or their numbers, from 0 (one: 7,); "
            f"{_IMAGES} if not given.",
        ),
    ] = None,
    scale: options.ScaleOfRuns = None,
    runs: options.Runs = Path("runs"),
    own_axes: figure_options.OwnAxes = False,
    out: figure_options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Draw the values that a trained model's gates take on a text, or on validation images.

    Of a language model: scalar gates per token across layers, channel-wise gates as surfaces and maps, and mean, spread
    and saturation per layer and module. Of an image classifier: maps of its gates beside the images, and mean, spread
    and saturation per block and site; where the gates are those of its residual connections (SAS, Highway), or these
    have learned numbers, their means per block. Each as PNG, PDF, caption (text and LaTeX) and the CSV
    it was drawn from.

    Examples:

      comt analyze-gates table3:pre-ln+comt

      comt analyze-gates checkpoint.pt --text "The king left the castle." --out figures

      comt analyze-gates table1:pixel:glyphs10-resnet18 --images 3,8,15
    """
    from comt_cli.commands.run_selectors import model_source
    from comt_cli.errors import UserError

    checkpoint = model_source(checkpoint, runs, scale)
    if images is not None:
        image_numbers(images)
    loading_model(checkpoint)
    from comt_cli.exchange.load import load, who_takes
    from comt_cli.exchange.loaded import Loaded
    from comt_cli.exchange.loaded_images import LoadedImageModel
    from comt_cli.exchange.loaded_text import LoadedText
    from comt_cli.report import figures

    loaded: Any = load(checkpoint, Loaded)
    options_of: dict[type[Loaded], dict[str, str | None]] = {
        LoadedText: {"--text": text, "--site": site},
        LoadedImageModel: {"--images": images},
    }
    draw = {
        LoadedText: lambda: _of_text(loaded, text, site, shared=not own_axes),
        LoadedImageModel: lambda: _of_images(loaded, images, shared=not own_axes),
    }
    own = next((kind for kind in draw if isinstance(loaded, kind)), None)
    if own is None:
        raise UserError(f"{checkpoint} is {loaded.kind()}, whose gates are not drawn", who_takes(loaded.run.task))
    for kind, given in options_of.items():
        for option in (option for option, value in given.items() if value is not None and kind is not own):
            raise UserError(
                f"{option}: {checkpoint} is {loaded.kind()}; {option} is for {kind.kind().partition(' ')[2]}s",
                f"{next(iter(options_of[own]))} says what it is observed on.",
            )
    drawings = draw[own]()
    folder = figure_options.figure_folder(loaded, out, results)
    for stem, (figure, drawn), caption in drawings:
        figures.sign(figure, caption.trained)
        for path in figures.write_figure(figure, drawn, folder, stem, caption):
            typer.echo(path)


def _of_text(loaded: LoadedText, text: str | None, site: str | None, *, shared: bool) -> Drawings:
    from comt_cli.analysis import gates
    from comt_cli.errors import UserError
    from comt_cli.report import figures
    from comt_cli.report.figure_captions import caption, summary_caption

    values = gates.gate_values(loaded, text)
    channel_sites = values.sites("channel")
    if site is not None and not channel_sites:
        raise UserError(f"--site {site}: the gates of {loaded.name} are scalars", "--site is for channel-wise gates.")
    trained = figure_options.trained_words(loaded)
    summary = gates.summary_frame(values)
    drawings = [("gate-summary", figures.draw_gate_summary(summary), summary_caption(trained, summary))]
    if values.sites("scalar"):
        lines = figures.draw_gate_lines(gates.scalar_frame(values), shared=shared)
        said = caption("gate-values", "Scalar gates of every token across layers", trained, lines[1])
        drawings.append(("gate-values-by-token", lines, said))
    if channel_sites:
        chosen = site or ("down_proj" if "down_proj" in channel_sites else channel_sites[-1])
        surfaces = figures.draw_gate_surfaces(gates.channel_frame(values, chosen, figures.MAX_CHANNELS), chosen)
        said = caption("channel-gates", f"Channel-wise gates at {chosen} on every token", trained, surfaces[1])
        drawings.append((f"gate-values-by-channel-{chosen}", surfaces, said))
    return drawings


def _of_images(loaded: LoadedImageModel, images: str | None, *, shared: bool) -> Drawings:
    from comt_cli.analysis.image_gates import gate_maps, gate_sites, gate_summary, map_frame
    from comt_cli.analysis.residual_shares import has_shares, residual_shares
    from comt_cli.errors import UserError
    from comt_cli.report import figures
    from comt_cli.report.figure_captions import caption, maps_caption, summary_caption

    trained = figure_options.trained_words(loaded)
    drawings: Drawings = []
    if gate_sites(loaded):
        maps = gate_maps(loaded, image_numbers(images or _IMAGES))
        drawn = figures.draw_gate_maps(map_frame(maps), list(maps.pixels), shared=shared)
        drawings.append(("gate-maps", drawn, maps_caption(trained, shared=shared)))
        summary = gate_summary(loaded)
        observed = f"block ({int(summary['examples'].max()):,} images)"
        drawings.append(
            ("gate-summary", figures.draw_gate_summary(summary, observed), summary_caption(trained, summary))
        )
    elif images is not None and has_shares(loaded):
        raise UserError(
            f"--images: {loaded.name} has no gates that are maps over an image, only those of its residual connections",
            "Leave --images out: their means are over the validation images.",
        )
    if has_shares(loaded):
        shares = figures.draw_residual_shares(residual_shares(loaded))
        said = caption("residual-shares", "Shares of the residual connections in every block", trained, shares[1])
        drawings.append(("residual-shares", shares, said))
    if not drawings:
        raise UserError(f"{loaded.name} has no gates to analyse: it holds {loaded.description}")
    return drawings


def image_numbers(text: str) -> list[int]:
    """The images that `--images` asks for: `3` is the first three, `3,8` those numbers, `3,` that one.

    Raises:
        UserError: it is neither, or asks for none or for too many.
    """
    from comt_cli.errors import UserError

    parts = [part.strip() for part in text.split(",")]
    listed = len(parts) > 1
    numbers = [part for part in parts if part or not listed]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in numbers):
        raise UserError(f"--images {text}: should be a number of images, or numbers with commas", "4, or 3,8,15")
    found = list(dict.fromkeys(map(int, numbers))) if listed else list(range(min(int(text), _MOST_IMAGES + 1)))
    if not 1 <= len(found) <= _MOST_IMAGES:
        raise UserError(f"--images {text}: 1 to {_MOST_IMAGES} images are shown at once")
    return found
