"""Verbs that draw trained models, runs and data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from comt_cli.commands import completion, options
from comt_cli.commands.options import Figures, OfRuns
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.errors import UserError
from comt_cli.verbs.loading import loading
from comt_cli.verbs.models import announced_model
from comt_cli.verbs.select import run_directories

MOST_IMAGES = 12


def analyze_gates(
    checkpoint: Annotated[
        str,
        options.run_argument(
            f"A checkpoint.pt or a run directory; {options.SELECTOR}. Hugging Face folders and .gguf files are read "
            "too, but hold no gates."
        ),
    ],
    *,
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
    of: OfRuns,
    own_axes: options.OwnAxes = False,
    files: Figures,
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
    numbers = None if images is None else image_numbers(images)
    source = announced_model(checkpoint, of)
    from comt_cli.analysis import verbs
    from comt_cli.analysis.subject import Request

    request = Request(text, site, numbers)
    verbs.analyze_gates(source, request, shared=not own_axes, out=files.out, results=files.results)


def image_numbers(text: str) -> list[int]:
    """The images that `--images` asks for: `3` is the first three, `3,8` those numbers, `3,` that one. Raises
    `UserError`."""
    parts = [part.strip() for part in text.split(",")]
    listed = len(parts) > 1
    numbers = [part for part in parts if part or not listed]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in numbers):
        raise UserError(f"--images {text}: should be a number of images, or numbers with commas", "4, or 3,8,15")
    found = list(dict.fromkeys(map(int, numbers))) if listed else list(range(min(int(text), MOST_IMAGES + 1)))
    if not 1 <= len(found) <= MOST_IMAGES:
        raise UserError(f"--images {text}: 1 to {MOST_IMAGES} images are shown at once")
    return found


def plot_cosine(
    model: Annotated[
        str,
        options.run_argument(
            f"A checkpoint.pt or run directory; {options.SELECTOR}; a Hugging Face folder or hub name of a LLaMA, "
            "or a .gguf file."
        ),
    ],
    text: Annotated[
        str | None,
        typer.Option(help="The text to observe the model on, 2 to 512 tokens; by default a sentence about a castle."),
    ] = None,
    *,
    of: OfRuns,
    files: Figures,
) -> None:
    """Draw how alike every layer's input and output are. Shows their cosine similarity and norm ratio, per token.

    This is CoMT's Figure 1, for any LLaMA or BERT. Writes PNG, PDF, caption and the CSV it was drawn from, which also
    has the angular distance, and the cosine between a layer's input and its change.

    Examples:

      comt plot-cosine table3:pre-ln

      comt plot-cosine SmolLM2-135M-Instruct.Q4_1.gguf --text "Once upon a time"

      comt plot-cosine HuggingFaceTB/SmolLM2-135M
    """
    source = announced_model(model, of)
    from comt_cli.analysis import verbs

    verbs.plot_cosine(source, text, out=files.out, results=files.results)


def plot_gradients(
    chosen: options.ManyRuns,
    epochs: Annotated[float, typer.Option(help="How much of the training is shown.", min=0)] = 5.0,
    *,
    of: OfRuns,
    files: Figures,
) -> None:
    """Draw the L2 norm of every convolution's gradient. Shows it over depth and training steps, for one run or several.

    This is CoMT's Figure 3, of any runs of image classifiers that logged these norms: those trained with --set
    train.gradient_norms_every=10 (every tenth step). An unfinished run is drawn as far as it is. Writes PNG, PDF,
    caption and the CSV it was drawn from: of one run among its figures, of several under a name of all of them.

    Examples:

      comt plot-gradients figure3:baseline

      comt plot-gradients table1::glyphs10-resnet152:1 --epochs 1 --out figures
    """
    directories = run_directories(chosen, of)
    loading("the logged norms")
    from comt_cli.analysis import verbs

    verbs.plot_gradients(directories, epochs, out=files.out, results=files.results)


def plot_images(
    images: Annotated[
        str,
        typer.Argument(help="glyphs10, glyphs100, cifar10, cifar100 or imagenet.", show_default=False),
    ],
    size: Annotated[int | None, typer.Option(help="Height and width in pixels: 32, and 224 for imagenet.")] = None,
    augmentation: Annotated[str, typer.Option(help="none, crop, crop-flip or resized-crop-flip.")] = "none",
    folder: Annotated[
        Path | None, typer.Option(help="Where cifar10, cifar100 or imagenet lies, if not in the cache.")
    ] = None,
    *,
    files: Figures,
) -> None:
    """Draw images of the training split as a network sees them. One row a class, for 20 classes at most.

    Of more classes 20 are shown, at even distances. The images are the first of each class in the order of seed 0,
    augmented as they are then. Writes PNG, PDF and the CSV of which image stands where.

    Examples:

      comt plot-images glyphs10

      comt plot-images glyphs100 --size 64 --augmentation crop

      comt plot-images imagenet --folder /data/imagenet --augmentation resized-crop-flip
    """
    if images.startswith("glyphs") and folder is not None:
        raise UserError("--folder is for cifar10, cifar100 and imagenet", f"{images} is drawn into the cache.")
    given = {
        "images": images,
        "size": size if size is not None else 224 if images == "imagenet" else 32,
        "augmentation": augmentation,
        "folder": None if folder is None else str(folder),
    }
    try:
        data = ImageDataSettings.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        said = problem["msg"].removeprefix("Value error, ")
        raise UserError(f"{key}: {said}" if key else said, "comt plot-images --help has examples.") from error
    loading("the images")
    from comt_cli.analysis import image_samples

    image_samples.plot_images(data, files.out or files.results / "figures" / "images")
