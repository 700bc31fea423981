"""`comt translate`: a trained model translates lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options

MOST_FIGURES = 20


def translate(
    checkpoint: Annotated[
        str, options.run_argument(metavar="RUN", help=f"A checkpoint.pt or run directory; {options.SELECTOR}.")
    ],
    given: Annotated[
        Path, typer.Option("--input", "-i", metavar="FILE", help="Lines to translate; - is the standard input.")
    ] = Path("-"),
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the lines go; the standard output if not given."),
    ] = None,
    beam: options.Beam = None,
    alpha: options.Alpha = None,
    penalty: options.PenaltyOption = None,
    n_best: Annotated[
        int, typer.Option(min=1, help="Translations of each line, under each other behind the line's number.")
    ] = 1,
    scores: options.Scores = False,
    attention: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            file_okay=False,
            help=f"Draw what each of at most {MOST_FIGURES} lines is translated from: PNG, PDF and CSV.",
        ),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Source tokens that are translated together, padding included.")
    ] = 2048,
    device: options.Device = None,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = options.DEFAULT_RUNS,
) -> None:
    """Translate lines with a trained model by beam search. As many lines come out as go in.

    Empty lines stay empty. A line that is longer than those of training is cut, with a warning. What a line is
    translated to does not depend on the others. With --output the lines stand in FILE.part until all are done: the same
    command, given again after it was stopped, continues there; what another one left there is put aside. With --n-best
    N every line has N lines of output, empty ones where fewer translations were found.

    Examples:

      comt translate table3:post-ln -i sentences.en -o sentences.de

      comt translate checkpoint.pt -i sentences.en --beam 8 --alpha 1 --n-best 4 --scores

      comt translate checkpoint.pt -i sentences.en --attention figures
    """
    from comt_cli.verbs import models

    decoding = models.Decoding(beam, alpha, penalty, n_best, scores, attention, device)
    models.translate(models.Chosen(checkpoint, runs, scale, set_), given, out, decoding, batch_tokens)
