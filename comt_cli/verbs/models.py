"""Verbs that use trained models, or draw models, runs and data sets. Each checks its arguments, announces what it
loads, and only then imports torch, so that mistakes are reported at once."""

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

_A_RUN = f"A checkpoint.pt, a run directory, {options.SELECTOR}."
_RUN = options.run_argument(_A_RUN, "RUN")
_NUCLEUS = "Sample from the likeliest tokens up to this total probability."
_PICTURES = "Images (PNG, JPEG) of any size; for models of MSCOCO feature files (.npy, .npz)."
_ANY = f"A checkpoint.pt, run directory, Hugging Face folder or hub name, or .gguf file; {options.SELECTOR}."


def loading(what: str, device: str | None = None) -> None:
    """Print on the error stream that `what` is being loaded, unless torch is imported already (that takes seconds).
    Raises `UserError` if `device` certainly does not exist."""
    check_device_name(device)
    if "torch" not in sys.modules:
        typer.echo(f"loading {what} ...", err=True)


def announced_model(checkpoint: str, of: OfRuns, device: str | None = None) -> str:
    """The named or selected model (see `model_source`), announced on the error stream. Raises `UserError` if the model
    or the device certainly does not exist."""
    source = model_source(checkpoint, of)
    check_source(source)
    loading("the model", device)
    return source


def generate(
    checkpoint: Annotated[str, options.run_argument(_ANY, "MODEL")],
    *,
    prompt: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="The start of the text; repeatable.")] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Maximum number of new tokens.")
    ] = 64,
    temperature: Annotated[
        float, typer.Option(min=0, max=1000, metavar="X", help="Sampling temperature; 0 takes the likeliest token.")
    ] = 0.8,
    top_p: Annotated[float, typer.Option(min=0.001, max=1, metavar="X", help=_NUCLEUS)] = 0.95,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed; the same seed gives the same text.")] = 0,
    samples: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Texts per prompt.")] = 1,
    device: options.Device = None,
    precision: Annotated[
        Literal["fp32", "bf16"] | None, typer.Option(help="Data type; the type of the file if not given.")
    ] = None,
    of: OfRuns,
    as_json: options.AsJson = False,
) -> None:
    """Continue a text with a language model, using a key-value cache.

    One text is printed token by token; several are generated as a batch. A text does not depend on the others of the
    batch. It ends where the model ends it, or after --max-new-tokens.

    Examples:
      comt generate table3:pre-ln+comt --prompt "The function returns"
      comt generate HuggingFaceTB/SmolLM2-135M --prompt "Once" --temperature 0 --precision bf16
    """
    source = announced_model(checkpoint, of, device)
    from comt_cli.verbs import decode

    sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    every = [text for text in prompt or [""] for _ in range(samples)]
    decode.continue_texts(source, every, sampling, device, precision, as_json=as_json)


def translate(
    checkpoint: Annotated[str, _RUN],
    given: Annotated[
        Path, typer.Option("--input", "-i", metavar="FILE", help="Source lines; - is standard input.")
    ] = Path("-"),
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file; standard output if not given.")
    ] = None,
    *,
    decoding: Decoding,
    of: OfRuns,
) -> None:
    """Translate lines with a trained model by beam search, one line of output per line of input.

    Empty lines stay empty. A line longer than the training lines is cut, with a warning. With --output, finished lines
    are kept in FILE.part-...; the same command resumes there after a stop. With --n-best N every line has N lines of
    output; missing translations are empty lines.

    Examples:
      comt translate sas/table3:sas -i sentences.en -o sentences.de
      comt translate checkpoint.pt -i sentences.en --beam 8 --n-best 4 --scores
    """
    if out is not None:
        refuse_same(out, given)
    lines: Iterable[str] = _lines(given)
    if str(given) != "-":  # so that an unreadable file is reported before the model is loaded
        lines = list(lines)
    source = announced_model(checkpoint, of, decoding.device)
    from comt_cli.verbs import decode

    decode.translate_lines(source, lines, out, decoding)


def _lines(given: Path) -> Iterator[str]:
    """The lines of a file, or of standard input as they arrive. Raises `UserError` at an unreadable line."""
    is_standard, number, line = str(given) == "-", 0, b""
    try:
        with nullcontext(sys.stdin.buffer) if is_standard else open_file(given) as handle:
            for number, line in enumerate(handle, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        name = "the standard input" if is_standard else given
        hint = f"Convert it, for example: {conversion(given, line if number == 1 else b'')}"
        raise UserError(f"{name} is not UTF-8 text (line {number:,})", hint) from None
    except OSError as error:
        raise UserError(f"--input {given} cannot be read: {error.strerror or error}") from None


def caption(
    checkpoint: Annotated[str, _RUN],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help=_PICTURES, show_default=False)],
    decoding: Decoding,
    of: OfRuns,
) -> None:
    """Caption images with a trained model by beam search, one caption per line.

    Every image is scaled to the size of the training images.

    Examples:
      comt caption sas/table5:sas one.png two.jpg
      comt caption sas/table5:sas one.png --beam 8 --n-best 4 --scores
    """
    if wrong := [error for path in images if (error := check_image(path))]:
        hints = dict.fromkeys(error.hint for error in wrong if error.hint)
        raise UserError("\n".join(error.message for error in wrong), "\n  ".join(hints) or None)
    source = announced_model(checkpoint, of, decoding.device)
    from comt_cli.verbs import decode

    decode.caption_images(source, images, decoding)


def average(
    run: Annotated[str, options.run_argument(f"A run directory, {options.SELECTOR}.", "RUN")],
    last: Annotated[int, typer.Option(min=1, metavar="N", help="Number of kept weights, counted from the end.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Output file; average-FIRST-LAST.pt in the run folder if not given."
        ),
    ] = None,
    *,
    of: OfRuns,
) -> None:
    """Average the weights of a run's last steps. Write a checkpoint that every command reads.

    Train the run with --set train.keep_every=N: it then keeps the weights of every N-th step. N may be a share: 0.1
    keeps them at every tenth of the training. The setting changes no number and no id.

    Examples:
      comt average table3:pre-ln+comt --last 5
      comt average runs/by-id/0123456789ab --last 10 -o averaged.pt
    """
    folder = Path(model_source(run, of))
    if not folder.is_dir():
        raise UserError(f"there is no run directory {run}", "comt runs lists the runs.")
    loading("the weights")
    from comt_cli.exchange.checkpoint import average as write_average
    from comt_cli.exchange.checkpoint import kept_weights

    if out is not None:
        refuse_same(out, folder / "checkpoint.pt", *kept_weights(folder).values())
    written, chosen = write_average(folder, last, out)
    typer.echo(f"{written}  the mean of {len(chosen)} steps: {', '.join(f'{step:,}' for step in chosen)}")


def export(
    checkpoint: Annotated[
        str, options.run_argument(f"A checkpoint.pt, run directory, .gguf file, {options.SELECTOR}.", "MODEL")
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.", file_okay=False, show_default=False)
    ],
    to: Annotated[Literal["huggingface"], typer.Option(help="The layout to write.")] = "huggingface",  # noqa: ARG001 - there is one
    *,
    of: OfRuns,
) -> None:
    """Export a model for the transformers library. Write a folder with weights, tokenizer and model card.

    Pre-LN language models load as LlamaForCausalLM, post-norm BERTs without gates as BERT. Other language models load
    by the code file in the folder, with trust_remote_code=True. Image classifiers get a code file that needs only
    torch. Translators and captioners are refused. Weights keep their data types.

    Examples:
      comt export table3:pre-ln exported
      comt export runs/by-id/0123456789ab exported --to huggingface
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"the folder {folder} is not empty", "Name a new folder; nothing is overwritten.")
    source = announced_model(checkpoint, of)
    from comt_cli.exchange.loaded import Loaded
    from comt_cli.library.export_any import write_model
    from comt_cli.library.restored import load

    home = Path(source).parent if Path(source).is_file() else Path(source)
    result = RunDirectory(home).result() if (home / "checkpoint.pt").is_file() else None
    for path, words in write_model(load(source, Loaded), folder, result):
        typer.echo(f"{path}  {words}")


_TEXT = "Text (2 to 512 tokens), source sentence or caption; a default text if not given."
_SITE = "Projection whose channel-wise gates are drawn; down_proj if not given."
_SITES = completion.listed("methods.base", "PROJECTIONS")
_IMAGE = "Index of the test image for a captioner, from 0."


def analyze_gates(
    checkpoint: Annotated[str, options.run_argument(_A_RUN, "RUN")],
    *,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help=_TEXT)] = None,
    site: Annotated[str | None, typer.Option(metavar="NAME", help=_SITE, autocompletion=_SITES)] = None,
    image: Annotated[int | None, typer.Option(metavar="N", help=_IMAGE)] = None,
    of: OfRuns,
    files: Figures,
) -> None:
    """Draw the gate values of a trained model. The input is a text, a sentence pair, or images.

    Language models: scalar gates per token and layer, channel-wise gates as maps, and mean, spread and saturation
    per layer and module. Translators: the same on a sentence and its translation. Captioners: on one image. Image
    classifiers: mean, spread and saturation over validation images. All: the shares of skip path and branch. Each
    figure is written as PNG and PDF, with a caption (text and LaTeX) and its CSV. More: docs/looking-inside.md

    Examples:
      comt analyze-gates table3:pre-ln+comt
      comt analyze-gates sas/table3:sas --text "The train leaves at noon." --out figures
    """
    source = announced_model(checkpoint, of)
    from comt_cli.analysis import verbs
    from comt_cli.exchange.loaded import Loaded
    from comt_cli.library.restored import load

    verbs.analyze_gates(load(source, Loaded), text, site, image, out=files.out, results=files.results)


def plot_cosine(
    model: Annotated[str, options.run_argument(_ANY, "MODEL")],
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text of 2 to 512 tokens; a default text if not given.")
    ] = None,
    *,
    of: OfRuns,
    files: Figures,
) -> None:
    """Draw how similar each layer's input and output are. Show cosine similarity and norm ratio per token.

    This is CoMT's Figure 1 for any LLaMA or BERT. The figure is written as PNG and PDF, with a caption and its CSV. The
    CSV also has the angular distance and the cosine between a layer's input and its change.

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
    epochs: Annotated[float, typer.Option(metavar="X", help="Number of epochs to show.", min=0)] = 5.0,
    *,
    of: OfRuns,
    files: Figures,
) -> None:
    """Draw the gradient norm of each convolution. Show the L2 norm over depth and steps, for one run or several.

    This is CoMT's Figure 3 for image classifiers that logged these norms: train with --set
    train.gradient_norms_every=10 (every tenth step). The figure is written as PNG and PDF, with a caption and its CSV.

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
        str, typer.Argument(metavar="IMAGES", help="glyphs10, glyphs100, cifar10, cifar100 or imagenet.")
    ],
    size: Annotated[
        int | None, typer.Option(metavar="N", help="Height and width in pixels; 32 if not given, 224 for imagenet.")
    ] = None,
    augmentation: Annotated[
        str, typer.Option(metavar="NAME", help="none, crop, crop-flip or resized-crop-flip.")
    ] = "none",
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the images; the cache if not given.")
    ] = None,
    *,
    files: Figures,
) -> None:
    """Draw training images as a network receives them. Show one row per class, at most 20 classes.

    Of more than 20 classes, 20 at even distances are shown. The images are the first of each class in the order of seed
    0, with augmentation. The figure is written as PNG and PDF, with a CSV of the position of each image.

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
        key, wrong = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
        raise UserError(f"{key}: {wrong}" if key else wrong, "comt plot-images --help has examples.") from error
    loading("the images")
    from comt_cli.analysis import image_samples

    image_samples.plot_images(data, files.out or files.results / "figures" / "images")
