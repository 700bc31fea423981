"""`comt analyze-gates`: what the gates of a trained model do with a text, a sentence pair or images."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import completion, options


def analyze_gates(
    checkpoint: Annotated[
        str,
        options.run_argument(
            f"A checkpoint.pt or a run directory; {options.SELECTOR}. Hugging Face folders and .gguf files are read "
            "too, but hold no gates."
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
            "4 if not given. Of a captioner: which of its test images (7,); the first if not given.",
        ),
    ] = None,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = options.DEFAULT_RUNS,
    own_axes: options.OwnAxes = False,
    out: options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Draw the values that a trained model's gates take. They are those on a text, a sentence pair, or images.

    Of a language model: scalar gates per token across layers, channel-wise gates as surfaces and maps, and mean, spread
    and saturation per layer and module. Of a translator the same for each stack and branch, on one sentence and what
    beam search makes of it; of a captioner, on one image, region by region, and what is said of it, word by word. An
    Evaluator-Adjuster Unit has its evaluator's mean and spread. Of all these: where residual connections have gates or
    learned numbers (SAS, GRC, Highway, ReZero), what these give to skip path and branch at every residual add; where
    they mix several streams or earlier outputs (Hyper-Connections, mHC, Attention Residuals, MUDD ...), or attention
    keys and values of earlier blocks (LIMe), these mixtures, that behind the last block with them, and how far apart
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
    from comt_cli.verbs import models

    model = models.Chosen(checkpoint, runs, scale, set_)
    models.analyze_gates(model, text, site, images, shared=not own_axes, out=out, results=results)
