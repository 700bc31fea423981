"""`comt export`: a trained model in another program's layout."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import completion, options
from comt_cli.commands.loading import loading_model
from comt_cli.errors import UserError


class Layout(StrEnum):
    """The layouts that can be written."""

    huggingface = "huggingface"


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help=f"A checkpoint.pt, a run directory, or a .gguf file; {options.SELECTOR}.",
            show_default=False,
            autocompletion=completion.selectors,
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.", file_okay=False, show_default=False)],
    to: Annotated[Layout, typer.Option("--to", help="The layout to write.")] = Layout.huggingface,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = Path("runs"),
) -> None:
    """Write a model as a folder for the transformers library. It reads it as LlamaForCausalLM, BertForMaskedLM or,
    where it was fine-tuned, BertForSequenceClassification.

    Only models without gates can be expressed there, pre-norm language models and post-norm BERTs; weights keep their
    types. The tokenizer is written too.

    Example:

      comt export table3:pre-ln exported --to huggingface
    """
    from comt_cli.commands.run_selectors import model_source

    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not an empty folder", "Name a new one; nothing is overwritten.")
    checkpoint = model_source(checkpoint, runs, scale, set_)
    loading_model(checkpoint)
    from comt_cli.exchange.huggingface import write_huggingface
    from comt_cli.exchange.load import load
    from comt_cli.exchange.loaded import LoadedText

    writers = {Layout.huggingface: write_huggingface}
    for path, words in writers[to](load(checkpoint, LoadedText), folder):
        typer.echo(f"{path}  {words}")
