"""`comt plot-cosine`: what each layer of a model makes of the residual stream."""

from __future__ import annotations

from typing import Annotated

from comt_cli.commands import options


def plot_cosine(
    model: Annotated[
        str,
        options.run_argument(
            f"A checkpoint.pt or run directory; {options.SELECTOR}; a Hugging Face folder or hub name of a LLaMA or "
            "BERT, or a .gguf file."
        ),
    ],
    text: options.Text = None,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = options.DEFAULT_RUNS,
    out: options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Draw how alike every layer's input and output are. Shows their cosine similarity and norm ratio, per token.

    This is CoMT's Figure 1, for any LLaMA or BERT. Writes PNG, PDF, caption and the CSV it was drawn from, which also
    has the angular distance, and the cosine between a layer's input and its change.

    Examples:

      comt plot-cosine table3:pre-ln

      comt plot-cosine SmolLM2-135M-Instruct.Q4_1.gguf --text "Once upon a time"

      comt plot-cosine HuggingFaceTB/SmolLM2-135M
    """
    from comt_cli.verbs import models

    models.plot_cosine(models.Chosen(model, runs, scale, set_), text, out=out, results=results)
