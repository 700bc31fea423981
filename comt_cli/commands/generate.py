"""`comt generate`: a trained model continues a text."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import completion, options
from comt_cli.commands.loading import loading_model
from comt_cli.errors import UserError
from comt_cli.files import read_text

if TYPE_CHECKING:
    from comt_cli.generation.completion import Completion

MAX_NEW_TOKENS = 1_000_000
MAX_TEXTS = 10_000
MAX_TOKENS = 100_000_000
"""Of all texts together. Beyond it not even the random numbers for their draws fit into the memory."""
MAX_PROMPT_BYTES = 10_000_000

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Precision(StrEnum):
    """The types that a model can be computed in, other than that of its file."""

    fp32 = "fp32"
    bf16 = "bf16"


class Kernels(StrEnum):
    """How gates are computed."""

    auto = "auto"
    reference = "reference"
    fused = "fused"


def generate(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help=f"A checkpoint.pt or run directory; {options.SELECTOR}; a Hugging Face LLaMA folder or hub name, or a "
            ".gguf file.",
            show_default=False,
            autocompletion=completion.selectors,
        ),
    ],
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="The beginning of a text; repeatable. Without any, the model begins by itself."),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="A file with one prompt a line; empty lines are left out.", dir_okay=False)
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, max=MAX_NEW_TOKENS, help="Tokens after which a text is cut off.")
    ] = 64,
    temperature: Annotated[
        float, typer.Option(help="What the logits are divided by before the draw; 0 takes the most likely token.")
    ] = 0.8,
    top_p: Annotated[
        float, typer.Option(help="Draw from the fewest tokens whose probability reaches this; 1 is all tokens.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw. The same seed gives the same text.")] = 0,
    samples: Annotated[int, typer.Option(min=1, max=MAX_TEXTS, help="Texts for every prompt.")] = 1,
    device: options.Device = None,
    precision: Annotated[
        Precision | None, typer.Option(help="The type to compute in; that of the file if not given.")
    ] = None,
    kernels: Annotated[
        Kernels, typer.Option(help="How gates are computed: auto takes fused kernels where they were measured faster.")
    ] = Kernels.auto,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with texts and speed.")] = False,
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
    prompts = _prompts(prompt, prompt_file)
    _refuse_too_many(len(prompts) * samples, max_new_tokens)
    from comt_cli.commands.run_selectors import model_source

    checkpoint = model_source(checkpoint, runs, scale, set_)
    loading_model(checkpoint, device)
    import torch

    from comt_cli.exchange.load import load
    from comt_cli.exchange.loaded import LoadedModel
    from comt_cli.generation.completion import Sampling, begin, complete
    from comt_cli.models.kernels import use_kernels
    from comt_cli.training.devices import pick_device

    where = pick_device(device)
    loaded = load(checkpoint, LoadedModel)
    texts = begin(loaded, [text for text in prompts for _ in range(samples)])
    longest = max(len(text.ids) for text in texts) + max_new_tokens
    if loaded.context_length is not None and longest > loaded.context_length:
        typer.echo(
            f"{loaded.name} was trained on texts of up to {loaded.context_length} tokens; with a text of {longest}, "
            "what comes late may make little sense",
            err=True,
        )
    wanted = {None: None, Precision.fp32: torch.float32, Precision.bf16: torch.bfloat16}[precision]
    model = loaded.model.to(where, wanted).eval()
    dtype = model.embedding.weight.dtype
    chosen = use_kernels(model, kernels.value, where, dtype, compiled=False, training=False, tokens=len(texts))
    if kernels is Kernels.fused:
        for op, choice in chosen.items():
            if not choice.fused:
                typer.echo(f"{op} has no fused kernel here: {choice.reason}", err=True)
    streams = len(texts) == 1 and not as_json
    if streams:
        _show(prompts[0])
    sampling = Sampling(max_new_tokens, temperature, top_p, seed)
    pace = complete(loaded, texts, sampling, _show if streams else None)
    if as_json:
        about = {"model": loaded.name, "device": str(where), "precision": str(dtype).removeprefix("torch.")}
        kinds = {op: str(choice) for op, choice in chosen.items()}
        typer.echo(json.dumps({**about, "kernels": kinds, "texts": _rows(texts), **pace.numbers()}, indent=2))
    elif streams:
        typer.echo()
    else:
        for number, text in enumerate(texts, 1):
            _show(f"[{number}/{len(texts)}] {text.prompt}{text.text}\n\n")
    typer.echo(pace.words(), err=True)


def _refuse_too_many(texts: int, tokens: int) -> None:
    """Raise `UserError` for more texts and tokens than any machine has room for."""
    if texts > MAX_TEXTS or texts * tokens > MAX_TOKENS:
        raise UserError(
            f"{texts:,} texts of up to {tokens:,} tokens are too many for one call",
            f"At most {MAX_TEXTS:,} texts, and {MAX_TOKENS:,} tokens in all: lower --samples or --max-new-tokens.",
        )


def _rows(texts: Sequence[Completion]) -> list[dict[str, Any]]:
    return [
        {
            "prompt": text.prompt,
            "prompt_tokens": len(text.ids),
            "text": text.text,
            "tokens": text.tokens,
            "ended": text.ended,
        }
        for text in texts
    ]


def _prompts(given: Sequence[str] | None, file: Path | None) -> list[str]:
    """All prompts, those of the file last; one empty prompt where there is neither."""
    prompts = list(given or ())
    if file is not None:
        try:
            lines = [line for line in read_text(file, MAX_PROMPT_BYTES).splitlines() if line.strip()]
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


def _show(text: str) -> None:
    """Print without ending the line. A model's text may hold anything: a terminal is not given control characters."""
    shown = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) if sys.stdout.isatty() else text
    typer.echo(shown, nl=False, color=True)  # without `color`, what looks like an escape sequence is left out
