"""`comt generate`: a trained model continues a text."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options

MAX_NEW_TOKENS = 1_000_000
MAX_TEXTS = 10_000


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
        options.run_argument(
            f"A checkpoint.pt or run directory; {options.SELECTOR}; a Hugging Face LLaMA folder or hub name, or a "
            ".gguf file."
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
    runs: options.Runs = options.DEFAULT_RUNS,
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
    from comt_cli.verbs import models

    models.generate(
        models.Chosen(checkpoint, runs, scale, set_),
        prompt or (),
        prompt_file,
        samples,
        {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed},
        device=device,
        precision=precision,
        kernels=kernels.value,
        as_json=as_json,
    )
