"""`comt export`: a trained model in another program's layout."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options


class Layout(StrEnum):
    """The layouts that can be written."""

    huggingface = "huggingface"


def export(
    checkpoint: Annotated[
        str, options.run_argument(help=f"A checkpoint.pt, a run directory, or a .gguf file; {options.SELECTOR}.")
    ],
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.", file_okay=False, show_default=False)],
    to: Annotated[Layout, typer.Option("--to", help="The layout to write.")] = Layout.huggingface,  # noqa: ARG001 - there is one
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = options.DEFAULT_RUNS,
) -> None:
    """Write a model as a folder for the transformers library. It reads it as LlamaForCausalLM, BertForMaskedLM or,
    where it was fine-tuned, BertForSequenceClassification.

    Only models without gates can be expressed there, pre-norm language models and post-norm BERTs; weights keep their
    types. The tokenizer is written too.

    Example:

      comt export table3:pre-ln exported --to huggingface
    """
    from comt_cli.verbs import models

    models.export(models.Chosen(checkpoint, runs, scale, set_), folder)
