"""Verbs that use trained models. A mistake in their arguments is told before torch is imported: each body looks at
them, says what it loads, and imports what needs torch only then."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from errno import EINVAL
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import typer
from pydantic import ValidationError

from comt_cli.data.images.pictures import check_image
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.errors import UserError
from comt_cli.exchange.sources import check_source
from comt_cli.files import conversion, open_file, read_text, refuse_same
from comt_cli.recipe.settings import Kernels as Wanted
from comt_cli.tasks.settings.transformer import BeamSettings
from comt_cli.training.hardware import check_device_name
from comt_cli.verbs.loading import loading
from comt_cli.verbs.select import model_source, run_directories

if TYPE_CHECKING:
    from comt_cli.generation.caption import Said
    from comt_cli.generation.translate import Translation

Decode = TypeVar("Decode", bound=BeamSettings)
MOST_TEXTS, MOST_TOKENS = 10_000, 100_000_000
"""Of all texts together. Beyond it not even the random numbers for their draws fit into the memory."""
MOST_PROMPT_BYTES = 10_000_000
MOST_FIGURES = 20
"""Fewer than a pool of lines, which is what an output that was stopped is continued by: each is translated."""
MOST_IMAGES = 12


class Chosen(NamedTuple):
    """A run or model as the user chose it: a selector or a path, and the options of these names."""

    text: str
    runs: Path
    scale: str | None
    set_: Sequence[str] | None


@dataclass(frozen=True)
class Decoding:
    """The options of that name; None is as the run decodes. `attention` is the folder of figures."""

    beam: int | None = None
    alpha: float | None = None
    penalty: str | None = None
    n_best: int = 1
    scores: bool = False
    attention: Path | None = None
    device: str | None = None

    def of(self, decode: Decode) -> Decode:
        """How a run decodes, with what the user asks for instead."""
        given = {"beam": self.beam, "alpha": self.alpha, "penalty": self.penalty and str(self.penalty)}
        return decode.model_copy(update={key: value for key, value in given.items() if value is not None})

    def rows(self, name: str, found: Sequence[Translation | Said]) -> list[str]:
        """The lines of output of what is called `name`: `n_best` of them, with the name before each if these are more
        than one, and empty where fewer texts were found, or there was nothing to decode."""
        lines = []
        for each in (*found, *[None] * self.n_best)[: self.n_best]:
            hypothesis = each.hypothesis if each is not None else None
            columns = [name] if self.n_best > 1 else []
            if self.scores:
                numbers = () if hypothesis is None else (hypothesis.score, hypothesis.log_probability)
                columns += [f"{number:.6f}" for number in numbers] or ["", ""]
            lines.append("\t".join([*columns, each.text if each is not None else ""]))
        return lines


def _model(chosen: Chosen, device: str | None = None) -> str:
    """The model that is named or selected (see `model_source`), announced on the error stream. Raises `UserError`
    where it, or the device, is certainly not there."""
    source = model_source(*chosen)
    check_device_name(device)
    check_source(source)
    loading("the model")
    return source


def generate(
    model: Chosen,
    prompts: Sequence[str],
    prompt_file: Path | None,
    samples: int,
    sampling: Mapping[str, float],
    *,
    device: str | None,
    precision: str | None,
    kernels: Wanted,
    as_json: bool,
) -> None:
    """Let a model continue prompts, `sampling` as `Sampling` has it. Raises `UserError` where they cannot be."""
    temperature, top_p, tokens = (sampling[key] for key in ("temperature", "top_p", "max_new_tokens"))
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"--temperature {temperature:g}: it must be 0 or more", "0 takes the most likely token.")
    if not 0 < top_p <= 1:
        raise UserError(f"--top-p {top_p:g}: it must be more than 0 and at most 1", "1 draws from all tokens.")
    every = [text for text in read_prompts(prompts, prompt_file) for _ in range(samples)]
    if len(every) > MOST_TEXTS or len(every) * tokens > MOST_TOKENS:
        raise UserError(
            f"{len(every):,} texts of up to {tokens:,} tokens are too many for one call",
            f"At most {MOST_TEXTS:,} texts, and {MOST_TOKENS:,} tokens in all: lower --samples or --max-new-tokens.",
        )
    source = _model(model, device)
    from comt_cli.verbs import decode

    decode.continue_texts(source, every, sampling, device, precision, kernels, as_json=as_json)


def read_prompts(given: Iterable[str], file: Path | None) -> list[str]:
    """All prompts, those of the file last; one empty prompt where there is neither. Raises `UserError` where they are
    no text."""
    prompts = list(given)
    if file is not None:
        try:
            lines = [line for line in read_text(file, MOST_PROMPT_BYTES).splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            said = (error.strerror if isinstance(error, OSError) else None) or error
            raise UserError(f"--prompt-file {file} cannot be read: {said}") from None
        if not lines:
            raise UserError(f"--prompt-file {file} holds no prompt", "It should have one a line.")
        prompts += lines
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise UserError(f"--prompt {prompt!r} is not UTF-8") from None
    return prompts or [""]


def translate(model: Chosen, given: Path, out: Path | None, decoding: Decoding, batch_tokens: int) -> None:
    """Translate the lines of a file, or of the standard input. Raises `UserError` where the input cannot be read, or
    would be lost."""
    if out is not None:
        refuse_same(out, given)
        refuse_same(out.with_name(f"{out.name}.part"), given)
    lines: Iterable[str] = _lines(given)
    if decoding.attention is not None or str(given) != "-":  # what is wrong with a file is told first
        lines = list(lines)
        if decoding.attention is not None and len(lines) > MOST_FIGURES:
            raise UserError(
                f"--attention draws at most {MOST_FIGURES} lines, and the input has {len(lines):,}",
                "Give it a file with the lines that are to be drawn.",
            )
    source = _model(model, decoding.device)
    from comt_cli.verbs import decode

    decode.translate_lines(source, lines, out, decoding, batch_tokens)


def _lines(given: Path) -> Iterator[str]:
    """The lines of a file, or of the standard input as they come: what lies between two line breaks. Raises `UserError`
    at a file that cannot be read, and at a line that is not UTF-8."""
    is_standard = str(given) == "-"
    try:
        with nullcontext(sys.stdin.buffer) if is_standard else open_file(given) as handle:
            for number, line in enumerate(handle, 1):
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError:
                    name = "the standard input" if is_standard else given
                    hint = f"Convert it, for instance: {conversion(given, line if number == 1 else b'')}"
                    raise UserError(f"{name} is not UTF-8 text (line {number:,})", hint) from None
    except OSError as error:
        is_stream = error.errno == EINVAL and not given.is_dir()  # a pipe or a device
        piped = "What comes through a pipe is read from the standard input: -i -" if is_stream else None
        raise UserError(f"--input {given} cannot be read: {error.strerror or error}", piped) from None


def caption(model: Chosen, images: Sequence[Path], decoding: Decoding) -> None:
    """Say what images show. Raises `UserError` with all that cannot be read, after the others were captioned."""
    wrong = {path: error for path in images if (error := check_image(path))}
    if len(wrong) == len({*images}):  # else the others are captioned first
        raise together(wrong)
    source = _model(model, decoding.device)
    from comt_cli.verbs import decode

    status = decode.caption_images(source, images, decoding, wrong)
    if wrong:
        raise together(wrong, status)


def together(wrong: Mapping[Path, UserError], status: int = 2) -> UserError:
    """All that is wrong with images as one error."""
    hints = dict.fromkeys(error.hint for error in wrong.values() if error.hint)
    error = UserError("\n".join(error.message for error in wrong.values()), "\n  ".join(hints) or None)
    error.exit_status = status
    return error


def average(run: Chosen, last: int, out: Path | None) -> None:
    """Write the mean of a run's last kept weights. Raises `UserError` where there are none."""
    folder = Path(model_source(*run))
    if not folder.is_dir():
        raise UserError(f"there is no run {run.text}", "Give a run directory.")
    loading("the weights")
    from comt_cli.exchange.average import average as write_average
    from comt_cli.exchange.average import kept_weights

    if out is not None:
        refuse_same(out, folder / "checkpoint.pt", *kept_weights(folder).values())
    written, chosen = write_average(folder, last, out)
    typer.echo(f"{written}  the mean of {len(chosen)} steps: {', '.join(f'{step:,}' for step in chosen)}")


def evaluate(
    chosen: Sequence[str], device: str | None, runs: Path, scale: str | None, set_: Sequence[str] | None
) -> None:
    """Evaluate finished runs again, and add what their results lack. Raises `NotAsBefore` where one got nothing."""
    directories = run_directories(chosen, runs, scale, set_)
    # A run that was moved aside has the id of the one in its place.
    every = {(directory.spec().id, directory.path.resolve()): directory for directory in directories}
    loading("PyTorch", device)
    from comt_cli.training.again import NotAsBefore, evaluate_again
    from comt_cli.training.devices import pick_device
    from comt_cli.training.parallel import World

    refused = 0
    for directory in every.values():
        typer.echo(f"evaluating {directory.shown} ...", err=True)
        try:
            added, off = evaluate_again(directory, World(pick_device(device)))
        except UserError as error:
            if len(every) == 1:
                raise
            refused += 1
            typer.echo(f"comt: {error}", err=True)
            continue
        said = ", ".join(added) or "nothing, it lacks nothing"
        typer.echo(f"{directory.shown}: all as before (largest difference {off:.1e} of a value); added: {said}")
    if refused:
        raise NotAsBefore(f"{refused} of {len(every)} runs got nothing", "The lines above say why.")


def export(model: Chosen, folder: Path) -> None:
    """Write a model as a folder of the transformers library. Raises `UserError` where it cannot be expressed there."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not an empty folder", "Name a new one; nothing is overwritten.")
    source = _model(model)
    from comt_cli.exchange.huggingface import write_huggingface
    from comt_cli.exchange.load import load
    from comt_cli.exchange.loaded import LoadedText

    for path, words in write_huggingface(load(source, LoadedText), folder):
        typer.echo(f"{path}  {words}")


def analyze_gates(
    model: Chosen,
    text: str | None,
    site: str | None,
    images: str | None,
    *,
    shared: bool,
    out: Path | None,
    results: Path,
) -> None:
    """Draw the values that a model's gates take. Raises as `analysis.verbs.analyze_gates`."""
    numbers = None if images is None else image_numbers(images)
    source = _model(model)
    from comt_cli.analysis import verbs
    from comt_cli.analysis.subject import Request

    verbs.analyze_gates(source, Request(text, site, numbers), shared=shared, out=out, results=results)


def image_numbers(text: str) -> list[int]:
    """The images that `--images` asks for: `3` is the first three, `3,8` those numbers, `3,` that one.

    Raises:
        UserError: it is neither, or asks for none or for too many.
    """
    parts = [part.strip() for part in text.split(",")]
    listed = len(parts) > 1
    numbers = [part for part in parts if part or not listed]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in numbers):
        raise UserError(f"--images {text}: should be a number of images, or numbers with commas", "4, or 3,8,15")
    found = list(dict.fromkeys(map(int, numbers))) if listed else list(range(min(int(text), MOST_IMAGES + 1)))
    if not 1 <= len(found) <= MOST_IMAGES:
        raise UserError(f"--images {text}: 1 to {MOST_IMAGES} images are shown at once")
    return found


def plot_cosine(model: Chosen, text: str | None, *, out: Path | None, results: Path) -> None:
    """Draw a model's residual stream. Raises as `analysis.verbs.plot_cosine`."""
    source = _model(model)
    from comt_cli.analysis import verbs

    verbs.plot_cosine(source, text, out=out, results=results)


def plot_gradients(
    chosen: Sequence[str],
    epochs: float,
    runs: Path,
    scale: str | None,
    set_: Sequence[str] | None,
    *,
    out: Path | None,
    results: Path,
) -> None:
    """Draw the logged gradients of runs. Raises as `analysis.verbs.plot_gradients`."""
    directories = run_directories(chosen, runs, scale, set_)
    loading("the logged norms")
    from comt_cli.analysis import verbs

    verbs.plot_gradients(directories, epochs, out=out, results=results)


def plot_images(images: str, size: int | None, augmentation: str, folder: Path | None, figures: Path) -> None:
    """Draw images of a data set as a network sees them, into `figures`. Raises `UserError` where the settings are
    wrong."""
    if images.startswith("glyphs") and folder is not None:
        raise UserError(
            f"--folder {folder}: --folder is for cifar10, cifar100 and imagenet; {images} is drawn into the cache",
            "Leave --folder out; COMT_CACHE=/some/folder moves the cache, --out says where the figure goes.",
        )
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
    if images.startswith("glyphs") and augmentation == "crop-flip":
        typer.echo("comt: crop-flip mirrors letters, which makes other signs of many; crop does not", err=True)
    loading("the images")
    from comt_cli.analysis import image_samples

    image_samples.plot_images(data, figures)
