"""`comt analyze-gates`: what the gates of a trained model do with a text, a sentence pair or images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from comt_cli.commands import completion, figure_options, options
from comt_cli.commands.gate_drawings import IMAGES, Asked, kinds
from comt_cli.commands.loading import loading_model

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
    text: Annotated[
        str | None,
        typer.Option(
            help="The text to observe a language model on, 2 to 512 tokens, the sentence that a translator translates, "
            "or the caption that a captioner is given; by default a sentence about a castle, in the translator's "
            "language about a train, or the captioner's own caption."
        ),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="The projection whose channel-wise gates are drawn, in every branch; down_proj if not given.",
            autocompletion=completion.sites,
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            metavar="N or A,B",
            help="Of an image classifier: how many validation images are shown, or their numbers, from 0 (one: 7,); "
            f"{IMAGES} if not given. Of a captioner: which of its test images (7,); the first if not given.",
        ),
    ] = None,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = Path("runs"),
    own_axes: figure_options.OwnAxes = False,
    out: figure_options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Draw the values that a trained model's gates take. They are those on a text, a sentence pair, or images.

    Of a language model: scalar gates per token across layers, channel-wise gates as surfaces and maps, and mean, spread
    and saturation per layer and module. Of a translator the same for each stack and branch, on one sentence and what
    beam search makes of it; of a captioner, on one image, region by region, and what is said of it, word by word. An
    Evaluator-Adjuster Unit has its evaluator's mean and spread. Of all these: where residual connections have gates or
    learned numbers (SAS, GRC, Highway, ReZero), what these give to skip path and branch at every junction; where they
    mix several streams or earlier outputs (Hyper-Connections, mHC, Attention Residuals, MUDD ...), or attention keys
    and values of earlier blocks (LIMe), these mixtures, that behind the last block with them, and how far apart
    streams are, of SiameseNorm too.
    Of an image classifier: maps of its gates beside the images, and mean, spread and saturation per block and site;
    the shares of its residual connections per block. Each as PNG, PDF, caption (text and LaTeX) and the CSV it was
    drawn from.

    Examples:

      comt analyze-gates table3:pre-ln+comt

      comt analyze-gates checkpoint.pt --text "The king left the castle." --out figures

      comt analyze-gates sas/table3:sas --text "The train leaves at noon."

      comt analyze-gates sas/table5:sas --images 7,

      comt analyze-gates table1:pixel:glyphs10-resnet18 --images 3,8,15
    """
    from comt_cli import words
    from comt_cli.commands.run_selectors import model_source
    from comt_cli.errors import UserError

    checkpoint = model_source(checkpoint, runs, scale, set_)
    asked = Asked(text, site, None if images is None else image_numbers(images), shared=not own_axes)
    loading_model(checkpoint)
    from comt_cli.exchange.load import load, who_takes
    from comt_cli.exchange.loaded import Loaded
    from comt_cli.report import figures
    from comt_cli.report.terminal import say_written

    loaded: Any = load(checkpoint, Loaded)
    drawn_kinds = kinds()
    own = drawn_kinds.get(type(loaded))
    if own is None:
        raise UserError(f"{checkpoint} is {loaded.kind()}, whose gates are not drawn", who_takes(loaded.run.task))
    for option, value in {"--text": text, "--site": site, "--images": images}.items():
        if value is not None and option not in own.options:
            takers = [
                f"{kind.kind().partition(' ')[2]}s" for kind, each in drawn_kinds.items() if option in each.options
            ]
            raise UserError(
                f"{option}: {checkpoint} is {loaded.kind()}; {option} is for {words.listing(takers)}",
                f"{own.options[0]} says what it is observed on.",
            )
    drawings = own.draw(loaded, asked)
    folder = figure_options.figure_folder(loaded, out, results)
    for stem, (figure, drawn), caption in drawings:
        figures.sign(figure, caption.trained)
        say_written(figures.write_figure(figure, drawn, folder, stem, caption))


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
