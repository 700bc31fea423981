"""Verbs that use trained models, or draw them, runs and data sets. A mistake in their arguments is told before torch is
imported: each looks at them, says what it loads, and imports what needs torch only then."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from comt_cli.commands import completion, options
from comt_cli.commands.options import Decoding, Figures, OfRuns
from comt_cli.data.images.pictures import check_image
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.errors import UserError
from comt_cli.exchange import check_source
from comt_cli.files import conversion, open_file, refuse_same
from comt_cli.runs.directory import RunDirectory
from comt_cli.training.hardware import check_device_name
from comt_cli.verbs.select import model_source, run_directories

_RUN = options.run_argument(f"A checkpoint.pt or run directory; {options.SELECTOR}.", "RUN")
_PICTURES = "Pictures (PNG, JPEG) of any size, or, of a model of MSCOCO, files of features (.npy, .npz)."
_ANY = f"A checkpoint.pt or run directory; {options.SELECTOR}; a Hugging Face folder or hub name, or a .gguf file."


def loading(what: str, device: str | None = None) -> None:
    """Say on the error stream that `what` is being loaded, unless torch, which takes seconds, is there already. Raises
    `UserError` where `device` is certainly not here."""
    check_device_name(device)
    if "torch" not in sys.modules:
        typer.echo(f"loading {what} ...", err=True)


def announced_model(checkpoint: str, of: OfRuns, device: str | None = None) -> str:
    """The model that is named or selected (see `model_source`), announced on the error stream. Raises `UserError`
    where it, or the device, is certainly not there."""
    source = model_source(checkpoint, of)
    check_source(source)
    loading("the model", device)
    return source


def generate(
    checkpoint: Annotated[str, options.run_argument(_ANY)],
    *,
    prompt: Annotated[list[str] | None, typer.Option(help="The beginning of a text; repeatable.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens after which a text is cut.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, max=1000, help="0 takes the likeliest token.")] = 0.8,
    top_p: Annotated[float, typer.Option(min=0.001, max=1, help="Draw from the likeliest tokens up to this.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw. The same seed gives the same text.")] = 0,
    samples: Annotated[int, typer.Option(min=1, max=10_000, help="Texts for every prompt.")] = 1,
    device: options.Device = None,
    precision: Annotated[
        Literal["fp32", "bf16"] | None, typer.Option(help="Type to compute in; else the file's.")
    ] = None,
    of: OfRuns,
    as_json: options.AsJson = False,
) -> None:
    """Let a model continue a text. Uses a key-value cache.

    A single text is printed as it comes; several are generated side by side and printed under each other. A text does
    not depend on the others; it ends where the model ends it, or after --max-new-tokens.

    Examples:

      comt generate table3:pre-ln+comt --prompt "The function returns"

      comt generate HuggingFaceTB/SmolLM2-135M --prompt "Once" --temperature 0 --precision bf16 --json
    """
    source = announced_model(checkpoint, of, device)
    from comt_cli.verbs import decode

    sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    every = [text for text in prompt or [""] for _ in range(samples)]
    decode.continue_texts(source, every, sampling, device, precision, as_json=as_json)


def translate(
    checkpoint: Annotated[str, _RUN],
    given: Annotated[Path, typer.Option("--input", "-i", metavar="FILE", help="Lines; - is stdin.")] = Path("-"),
    out: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Else standard output.")] = None,
    *,
    decoding: Decoding,
    of: OfRuns,
) -> None:
    """Translate lines with a trained model by beam search. As many lines come out as go in.

    Empty lines stay empty. A line that is longer than those of training is cut, with a warning. With --output the lines
    stand in FILE.part-... until all are done: the same command, given again after it was stopped, continues there. With
    --n-best N every line has N lines of output, empty ones where fewer translations were found.

    Examples:

      comt translate table3:post-ln -i sentences.en -o sentences.de

      comt translate checkpoint.pt -i sentences.en --beam 8 --n-best 4 --scores
    """
    if out is not None:
        refuse_same(out, given)
    lines: Iterable[str] = _lines(given)
    if str(given) != "-":  # what is wrong with a file is told first
        lines = list(lines)
    source = announced_model(checkpoint, of, decoding.device)
    from comt_cli.verbs import decode

    decode.translate_lines(source, lines, out, decoding)


def _lines(given: Path) -> Iterator[str]:
    """The lines of a file, or of the standard input as they come. Raises `UserError` at what cannot be read."""
    is_standard, number, line = str(given) == "-", 0, b""
    try:
        with nullcontext(sys.stdin.buffer) if is_standard else open_file(given) as handle:
            for number, line in enumerate(handle, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        name = "the standard input" if is_standard else given
        hint = f"Convert it, for instance: {conversion(given, line if number == 1 else b'')}"
        raise UserError(f"{name} is not UTF-8 text (line {number:,})", hint) from None
    except OSError as error:
        raise UserError(f"--input {given} cannot be read: {error.strerror or error}") from None


def caption(
    checkpoint: Annotated[str, _RUN],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help=_PICTURES, show_default=False)],
    decoding: Decoding,
    of: OfRuns,
) -> None:
    """Say what images show, with a trained model. Prints a caption a line, found by beam search.

    A picture is made as large as those of training, whatever its size and shape.

    Example:

      comt caption sas/table5:sas one.png two.jpg --beam 8 --n-best 4 --scores
    """
    if wrong := [error for path in images if (error := check_image(path))]:
        hints = dict.fromkeys(error.hint for error in wrong if error.hint)
        raise UserError("\n".join(error.message for error in wrong), "\n  ".join(hints) or None)
    source = announced_model(checkpoint, of, decoding.device)
    from comt_cli.verbs import decode

    decode.caption_images(source, images, decoding)


def average(
    run: Annotated[str, _RUN],
    last: Annotated[int, typer.Option(min=1, help="How many of the kept weights, the last by step.")] = 10,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Else average-<first>-<last>.pt in the run.")] = None,
    *,
    of: OfRuns,
) -> None:
    """Write the mean of the weights of a run's last steps. It is a checkpoint, which every verb reads.

    Weights are there of runs that were trained with --set train.keep_every=N: of every N-th step, or with 0.1 of every
    tenth of the steps. The setting changes no number and no id.

    Examples:

      comt average table3:pre-ln+comt --last 5

      comt average runs/by-id/0123456789ab --last 10 -o averaged.pt
    """
    folder = Path(model_source(run, of))
    if not folder.is_dir():
        raise UserError(f"there is no run {run}", "Give a run directory.")
    loading("the weights")
    from comt_cli.exchange.checkpoint import average as write_average
    from comt_cli.exchange.checkpoint import kept_weights

    if out is not None:
        refuse_same(out, folder / "checkpoint.pt", *kept_weights(folder).values())
    written, chosen = write_average(folder, last, out)
    typer.echo(f"{written}  the mean of {len(chosen)} steps: {', '.join(f'{step:,}' for step in chosen)}")


def export(
    checkpoint: Annotated[
        str, options.run_argument(f"A checkpoint.pt, a run directory, or a .gguf file; {options.SELECTOR}.")
    ],
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.", file_okay=False, show_default=False)],
    to: Annotated[Literal["huggingface"], typer.Option(help="The layout to write.")] = "huggingface",  # noqa: ARG001 - there is one
    *,
    of: OfRuns,
) -> None:
    """Write a model as a folder for the transformers library, with its tokenizer and a card.

    It reads language models of Pre-LN without gates as LlamaForCausalLM, those of all other methods by the file of code
    in the folder, with trust_remote_code=True, and post-norm BERTs without gates as its own. An image classifier's
    folder has a file of code for torch alone. Translators and captioners are refused. Weights keep their types.

    Example:

      comt export table3:pre-ln exported --to huggingface
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not an empty folder", "Name a new one; nothing is overwritten.")
    source = announced_model(checkpoint, of)
    from comt_cli.exchange.loaded import Loaded
    from comt_cli.library.export_any import write_model
    from comt_cli.library.restored import load

    home = Path(source).parent if Path(source).is_file() else Path(source)
    result = RunDirectory(home).result() if (home / "checkpoint.pt").is_file() else None
    for path, words in write_model(load(source, Loaded), folder, result):
        typer.echo(f"{path}  {words}")


_TEXT = "The text, 2 to 512 tokens, the sentence to translate, or the caption; a sentence of ours if not given."
_SITE = "The projection whose channel-wise gates are drawn, in every branch; down_proj if not given."
_SITES = completion.listed("methods.base", "PROJECTIONS")
_IMAGE = "The number of the test image that a captioner sees, from 0."


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

    Of a language model: scalar gates per token across layers, channel-wise gates as maps, and mean, spread and
    saturation per layer and module. Of a translator the same on a sentence and what beam search makes of it; of a
    captioner, on one image; of an image classifier mean, spread and saturation over validation images. Of all these:
    the shares that residual connections give to skip path and branch. Each as PNG, PDF, caption (text and LaTeX) and
    the CSV it was drawn from.

    Examples:

      comt analyze-gates table3:pre-ln+comt

      comt analyze-gates sas/table3:sas --text "The train leaves at noon." --out figures

      comt analyze-gates table1:pixel:glyphs10-resnet18
    """
    source = announced_model(checkpoint, of)
    from comt_cli.analysis import verbs
    from comt_cli.exchange.loaded import Loaded
    from comt_cli.library.restored import load

    verbs.analyze_gates(load(source, Loaded), text, site, image, out=files.out, results=files.results)


def plot_cosine(
    model: Annotated[str, options.run_argument(_ANY)],
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

      comt plot-cosine HuggingFaceTB/SmolLM2-135M --text "Once upon a time"
    """
    source = announced_model(model, of)
    from comt_cli.analysis import verbs
    from comt_cli.exchange.loaded import LoadedText
    from comt_cli.library.restored import load

    verbs.plot_cosine(load(source, LoadedText), text, out=files.out, results=files.results)


def plot_gradients(
    chosen: options.ManyRuns,
    epochs: Annotated[float, typer.Option(help="How much of the training is shown.", min=0)] = 5.0,
    *,
    of: OfRuns,
    files: Figures,
) -> None:
    """Draw the L2 norm of every convolution's gradient. Shows it over depth and training steps, for one run or several.

    This is CoMT's Figure 3, of any runs of image classifiers that logged these norms: those trained with --set
    train.gradient_norms_every=10 (every tenth step). Writes PNG, PDF, caption and the CSV it was drawn from.

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

      comt plot-images glyphs10 --augmentation crop

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
