"""`comt score`: BLEU and chrF of a file of translations, or of a run's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import completion, options


def score(
    hypotheses: Annotated[
        str,
        options.run_argument(
            metavar="HYP",
            help=f"A file of translations, one a line; or a finished run, as a run directory or {options.SELECTOR}.",
        ),
    ],
    references: Annotated[
        Path | None,
        typer.Argument(
            metavar="[REF]", help="A file of references, line by line; left out for a run.", show_default=False
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="bleu, bleu_tokenised, bleu_intl, bleu_intl_lc, bleu_compound or chrf; several with commas.",
            autocompletion=completion.metrics,
        ),
    ] = "bleu,chrf",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="HYP2",
            help="Another file of translations: is the difference to it more than chance? Of a run another run, or "
            "copy (the sources themselves) or nearest (the target of the most similar training source).",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Of a run: which of its splits; test if not given, of almanac also unseen.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = options.DEFAULT_RUNS,
) -> None:
    """Score translations against references with sacreBLEU. Its signature stands beside every number.

    The files are plain text, neither tokenised nor escaped; only bleu_tokenised takes the tokens that stand there, and
    splits at spaces alone. A run is scored on what it wrote when it was done. Numbers of different metrics, or with
    different signatures, cannot be compared. --against prints the p-value of sacreBLEU's paired bootstrap: below 0.05 a
    difference is rarely chance.

    Examples:

      comt score hypotheses.txt references.txt

      comt score hypotheses.txt references.txt --metric bleu,bleu_compound --against baseline.txt

      comt score sas/table3:sas::1 --against sas/table3:baseline::1

      comt score sas/table3:baseline::1 --against nearest --split unseen
    """
    from comt_cli.verbs import score

    score.score(hypotheses, references, metric, against, split, runs, scale, set_, as_json=as_json)
