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
from comt_cli.verbs.models import announced_model, loading
from comt_cli.verbs.select import run_directories

_TEXT = "The text, 2 to 512 tokens, the sentence to translate, or the caption; a sentence of ours if not given."
_SITE = "The projection whose channel-wise gates are drawn, in every branch; down_proj if not given."
_IMAGE = "The number of the test image that a captioner sees, from 0."
_SITES = completion.listed("methods.base", "PROJECTIONS")
_MODEL = f"A checkpoint.pt or run directory; {options.SELECTOR}; a Hugging Face folder or hub name, or a .gguf file."


def analyze_gates(
    checkpoint: Annotated[str, options.run_argument(f"A checkpoint.pt or run directory; {options.SELECTOR}.")],
    *,
    text: Annotated[str | None, typer.Option(help=_TEXT)] = None,
    site: Annotated[str | None, typer.Option(help=_SITE, autocompletion=_SITES)] = None,
    image: Annotated[int | None, typer.Option(help=_IMAGE)] = None,
    of: OfRuns,
    files: Figures,
) -> None:
    """Draw the values that a trained model's gates take. They are those on a text, a sentence pair, or images.

    Of a language model: scalar gates per token across layers, channel-wise gates as surfaces, and mean, spread and
    saturation per layer and module. Of a translator the same for each stack and branch, on one sentence and what beam
    search makes of it; of a captioner, on one image, region by region, and word by word. Of an image classifier: mean,
    spread and saturation over validation images. Of all these: the shares that residual connections give to skip path
    and branch, and how they mix several streams or earlier outputs. Each as PNG, PDF, caption (text and LaTeX) and the
    CSV it was drawn from.

    Examples:

      comt analyze-gates table3:pre-ln+comt

      comt analyze-gates checkpoint.pt --text "The king left the castle." --out figures

      comt analyze-gates sas/table3:sas --text "The train leaves at noon."

      comt analyze-gates sas/table5:sas --image 7

      comt analyze-gates table1:pixel:glyphs10-resnet18
    """
    source = announced_model(checkpoint, of)
    from comt_cli.analysis import verbs

    verbs.analyze_gates(source, text, site, image, out=files.out, results=files.results)


def plot_cosine(
    model: Annotated[str, options.run_argument(_MODEL)],
    text: Annotated[str | None, typer.Option(help="The text, 2 to 512 tokens; of a castle if not given.")] = None,
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
    train.gradient_norms_every=10 (every tenth step). Writes PNG, PDF, caption and the CSV it was drawn from: of one run
    among its figures, of several under a name of all of them.

    Examples:

      comt plot-gradients figure3:baseline

      comt plot-gradients table1::glyphs10-resnet152:1 --epochs 1 --out figures
    """
    directories = run_directories(chosen, of)
    loading("the logged norms")
    from comt_cli.analysis import verbs

    verbs.plot_gradients(directories, epochs, out=files.out, results=files.results)


def plot_images(
    images: Annotated[str, typer.Argument(help="glyphs10, glyphs100, cifar10, cifar100 or imagenet.")],
    size: Annotated[int | None, typer.Option(help="Height and width in pixels: 32, and 224 for imagenet.")] = None,
    augmentation: Annotated[str, typer.Option(help="none, crop, crop-flip or resized-crop-flip.")] = "none",
    folder: Annotated[Path | None, typer.Option(help="Where the images lie, if not in the cache.")] = None,
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
    size = size if size is not None else 224 if images == "imagenet" else 32
    given = {"images": images, "size": size, "augmentation": augmentation, "folder": folder and str(folder)}
    try:
        data = ImageDataSettings.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        key, said = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
        raise UserError(f"{key}: {said}" if key else said, "comt plot-images --help has examples.") from error
    loading("the images")
    from comt_cli.analysis import image_samples

    image_samples.plot_images(data, files.out or files.results / "figures" / "images")
