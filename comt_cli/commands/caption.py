"""`comt caption`: a trained model says what images show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options


def caption(
    checkpoint: Annotated[
        str, options.run_argument(metavar="RUN", help=f"A checkpoint.pt or run directory; {options.SELECTOR}.")
    ],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE...",
            help="Pictures (PNG, JPEG) of any size, or, of a model of MSCOCO, files of features (.npy, .npz).",
            show_default=False,
        ),
    ],
    beam: options.Beam = None,
    alpha: options.Alpha = None,
    penalty: options.PenaltyOption = None,
    n_best: Annotated[
        int, typer.Option(min=1, help="Captions of each image, under each other behind the image's name.")
    ] = 1,
    scores: options.Scores = False,
    attention: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            file_okay=False,
            help="Draw each image with its caption, and where the model looks at each word: PNG, PDF and CSV.",
        ),
    ] = None,
    device: options.Device = None,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = options.DEFAULT_RUNS,
) -> None:
    """Say what images show, with a trained model. Prints a caption a line, found by beam search.

    A picture is made as large as those of training, whatever its size and shape. What cannot be read is told in the
    end, with status 1 where others were captioned and else 2.

    Examples:

      comt caption sas/table5:sas photo.png

      comt caption checkpoint.pt one.png two.jpg --beam 8 --n-best 4 --scores

      comt caption checkpoint.pt one.png --attention figures
    """
    from comt_cli.verbs import models

    decoding = models.Decoding(beam, alpha, penalty, n_best, scores, attention, device)
    models.caption(models.Chosen(checkpoint, runs, scale, set_), images, decoding)
