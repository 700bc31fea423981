"""Verbs that use trained models. A mistake in their arguments is told before torch is imported: each looks at them,
says what it loads, and imports what needs torch only then."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options
from comt_cli.commands.options import Decoding, OfRuns
from comt_cli.data.images.pictures import check_image
from comt_cli.errors import UserError
from comt_cli.exchange import check_source
from comt_cli.files import conversion, open_file, read_text, refuse_same
from comt_cli.training.hardware import check_device_name
from comt_cli.verbs.loading import loading
from comt_cli.verbs.select import model_source, run_directories

MOST_TEXTS, MOST_TOKENS = 10_000, 100_000_000
"""Of all texts together. Beyond it not even the random numbers for their draws fit into the memory."""
MOST_PROMPT_BYTES = 10_000_000
MOST_FIGURES = 20
"""Fewer than a pool of lines, which is what an output that was stopped is continued by: each is translated."""
_RUN = options.run_argument(f"A checkpoint.pt or run directory; {options.SELECTOR}.", "RUN")


class Precision(StrEnum):
    """The types that a model can be computed in, other than that of its file."""

    fp32 = "fp32"
    bf16 = "bf16"


class Kernels(StrEnum):
    """How gates are computed."""

    auto = "auto"
    reference = "reference"
    fused = "fused"


class Layout(StrEnum):
    """The layouts that can be written."""

    huggingface = "huggingface"


def announced_model(checkpoint: str, of: OfRuns, device: str | None = None) -> str:
    """The model that is named or selected (see `model_source`), announced on the error stream. Raises `UserError`
    where it, or the device, is certainly not there."""
    source = model_source(checkpoint, of)
    check_device_name(device)
    check_source(source)
    loading("the model")
    return source


def generate(
    checkpoint: Annotated[
        str,
        options.run_argument(
            f"A checkpoint.pt or run directory; {options.SELECTOR}; a Hugging Face LLaMA folder or hub name, or a "
            ".gguf file."
        ),
    ],
    *,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="The beginning of a text; repeatable. Without any, the model begins by itself."),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="A file with one prompt a line; empty lines are left out.", dir_okay=False)
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Tokens after which a text is cut off.")
    ] = 64,
    temperature: Annotated[
        float, typer.Option(help="What the logits are divided by before the draw; 0 takes the most likely token.")
    ] = 0.8,
    top_p: Annotated[
        float, typer.Option(help="Draw from the fewest tokens whose probability reaches this; 1 is all tokens.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw. The same seed gives the same text.")] = 0,
    samples: Annotated[int, typer.Option(min=1, max=MOST_TEXTS, help="Texts for every prompt.")] = 1,
    device: options.Device = None,
    precision: Annotated[
        Precision | None, typer.Option(help="The type to compute in; that of the file if not given.")
    ] = None,
    kernels: Annotated[
        Kernels, typer.Option(help="How gates are computed: auto takes fused kernels where they were measured faster.")
    ] = Kernels.auto,
    of: OfRuns,
    as_json: options.AsJson = False,
) -> None:
    """Let a model continue a text. Uses a key-value cache, and says how fast it was.

    A single text is printed as it comes; several are generated side by side and printed under each other. The last
    line, on stderr, has the tokens generated, the time for the prompt up to the first token, and the time of each
    later one. A text does not depend on the others; it ends where the model ends it, or after --max-new-tokens.

    Examples:

      comt generate table3:pre-ln+comt --prompt "The function returns"

      comt generate checkpoint.pt --prompt "Once" --prompt "Twice" --samples 3 --temperature 1 --top-p 0.9

      comt generate HuggingFaceTB/SmolLM2-135M --prompt-file prompts.txt --temperature 0 --precision bf16 --json
    """
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"--temperature {temperature:g}: it must be 0 or more", "0 takes the most likely token.")
    if not 0 < top_p <= 1:
        raise UserError(f"--top-p {top_p:g}: it must be more than 0 and at most 1", "1 draws from all tokens.")
    every = [text for text in _prompts(prompt or [], prompt_file) for _ in range(samples)]
    if len(every) > MOST_TEXTS or len(every) * max_new_tokens > MOST_TOKENS:
        raise UserError(
            f"{len(every):,} texts of up to {max_new_tokens:,} tokens are too many for one call",
            f"At most {MOST_TEXTS:,} texts, and {MOST_TOKENS:,} tokens in all: lower --samples or --max-new-tokens.",
        )
    source = announced_model(checkpoint, of, device)
    from comt_cli.verbs import decode

    sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    decode.continue_texts(source, every, sampling, device, precision, kernels.value, as_json=as_json)


def _prompts(given: list[str], file: Path | None) -> list[str]:
    """All prompts, those of the file last; one empty prompt where there is neither."""
    try:
        "".join(given).encode()
        lines = [] if file is None else read_text(file, MOST_PROMPT_BYTES).splitlines()
    except UnicodeEncodeError:
        raise UserError(f"--prompt {given!r} is not UTF-8") from None
    except (OSError, ValueError) as error:
        raise UserError(f"--prompt-file {file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    prompts = [*given, *(line for line in lines if line.strip())]
    if file is not None and len(prompts) == len(given):
        raise UserError(f"--prompt-file {file} holds no prompt", "It should have one a line.")
    return prompts or [""]


def translate(
    checkpoint: Annotated[str, _RUN],
    given: Annotated[
        Path, typer.Option("--input", "-i", metavar="FILE", help="Lines to translate; - is the standard input.")
    ] = Path("-"),
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the lines go; the standard output if not given."),
    ] = None,
    *,
    decoding: Decoding,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Source tokens that are translated together, padding included.")
    ] = 2048,
    of: OfRuns,
) -> None:
    """Translate lines with a trained model by beam search. As many lines come out as go in.

    Empty lines stay empty. A line that is longer than those of training is cut, with a warning. What a line is
    translated to does not depend on the others. With --output the lines stand in FILE.part until all are done: the same
    command, given again after it was stopped, continues there. With --n-best N every line has N lines of output, empty
    ones where fewer translations were found.

    Examples:

      comt translate table3:post-ln -i sentences.en -o sentences.de

      comt translate checkpoint.pt -i sentences.en --beam 8 --alpha 1 --n-best 4 --scores

      comt translate checkpoint.pt -i sentences.en --attention figures
    """
    for written in () if out is None else (out, out.with_name(f"{out.name}.part")):
        refuse_same(written, given)
    lines: Iterable[str] = _lines(given)
    if decoding.attention is not None or str(given) != "-":  # what is wrong with a file is told first
        lines = list(lines)
        if decoding.attention is not None and len(lines) > MOST_FIGURES:
            raise UserError(
                f"--attention draws at most {MOST_FIGURES} lines, and the input has {len(lines):,}",
                "Give it a file with the lines that are to be drawn.",
            )
    source = announced_model(checkpoint, of, decoding.device)
    from comt_cli.verbs import decode

    decode.translate_lines(source, lines, out, decoding, batch_tokens)


def _lines(given: Path) -> Iterator[str]:
    """The lines of a file, or of the standard input as they come. Raises `UserError` at what cannot be read."""
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
        raise UserError(f"--input {given} cannot be read: {error.strerror or error}") from None


def caption(
    checkpoint: Annotated[str, _RUN],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE...",
            help="Pictures (PNG, JPEG) of any size, or, of a model of MSCOCO, files of features (.npy, .npz).",
            show_default=False,
        ),
    ],
    decoding: Decoding,
    of: OfRuns,
) -> None:
    """Say what images show, with a trained model. Prints a caption a line, found by beam search.

    A picture is made as large as those of training, whatever its size and shape. What cannot be read is told in the
    end, with status 1 where others were captioned and else 2.

    Examples:

      comt caption sas/table5:sas photo.png

      comt caption checkpoint.pt one.png two.jpg --beam 8 --n-best 4 --scores

      comt caption checkpoint.pt one.png --attention figures
    """
    wrong = {path: error for path in images if (error := check_image(path))}
    if len(wrong) == len({*images}):  # else the others are captioned first
        raise _together(wrong, 2)
    source = announced_model(checkpoint, of, decoding.device)
    from comt_cli.verbs import decode

    status = decode.caption_images(source, images, decoding, wrong)
    if wrong:
        raise _together(wrong, status)


def _together(wrong: Mapping[Path, UserError], status: int) -> UserError:
    hints = dict.fromkeys(error.hint for error in wrong.values() if error.hint)
    error = UserError("\n".join(error.message for error in wrong.values()), "\n  ".join(hints) or None)
    error.exit_status = status
    return error


def average(
    run: Annotated[str, options.run_argument(f"A run directory; {options.SELECTOR}.", "RUN")],
    last: Annotated[int, typer.Option(min=1, help="How many of the kept weights, the last by step.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; average-<first>-<last>.pt in the run if not given."),
    ] = None,
    *,
    of: OfRuns,
) -> None:
    """Write the mean of the weights of a run's last steps. It is a checkpoint, which every verb reads.

    Weights are there of runs that were trained with --set train.keep_every=N: of every N-th step, or with 0.1 of every
    tenth of the steps. The setting changes no number and no id. While a run trains it also has those of the steps that
    train.average_last and train.average_every name, with whose average it ends. Each parameter's mean is taken by
    itself, all weights alike.

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


def evaluate(chosen: options.ManyRuns, device: options.Device = None, *, of: OfRuns) -> None:
    """Evaluate finished runs again, for metrics that came later.

    The weights that a run has ended with are evaluated on its validation and test data, and what its result lacks is
    added to it. Nothing that is there changes:
    every value must come out as it was, but for rounding, else that is said and nothing is added. The result says what
    was added, when, and by which versions and commit; tables show it when they are written anew. What a run that ends
    with an average has of its last weights alone (last_test_...) cannot be had again.

    Examples:

      comt evaluate table3:pre-ln+comt

      comt evaluate sas/table3 --scale smoke
    """
    # A run that was moved aside has the id of the one in its place.
    every = {(directory.spec().id, directory.path.resolve()): directory for directory in run_directories(chosen, of)}
    loading("PyTorch", device)
    from comt_cli.training.devices import pick_device
    from comt_cli.training.loop import NotAsBefore, evaluate_again
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


def export(
    checkpoint: Annotated[
        str, options.run_argument(f"A checkpoint.pt, a run directory, or a .gguf file; {options.SELECTOR}.")
    ],
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.", file_okay=False, show_default=False)],
    to: Annotated[Layout, typer.Option("--to", help="The layout to write.")] = Layout.huggingface,  # noqa: ARG001 - there is one
    *,
    of: OfRuns,
) -> None:
    """Write a model as a folder for the transformers library, which reads it as LlamaForCausalLM.

    Only pre-norm language models without gates can be expressed there; weights keep their types. The tokenizer is
    written too.

    Example:

      comt export table3:pre-ln exported --to huggingface
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not an empty folder", "Name a new one; nothing is overwritten.")
    source = announced_model(checkpoint, of)
    from comt_cli.exchange.huggingface import write_huggingface
    from comt_cli.exchange.load import load
    from comt_cli.exchange.loaded import LoadedModel

    for path, words in write_huggingface(load(source, LoadedModel), folder):
        typer.echo(f"{path}  {words}")
