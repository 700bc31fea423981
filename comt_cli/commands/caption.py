"""`comt caption`: a trained model says what images show."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import completion, options
from comt_cli.commands.decoding import Alpha, Beam, PenaltyOption, Scores, as_asked, rows
from comt_cli.commands.loading import loading_model
from comt_cli.errors import UserError

if TYPE_CHECKING:
    from comt_cli.exchange.loaded import LoadedCaptioner
    from comt_cli.generation.caption import ImageCaptioner, Said, Seen


def caption(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help=f"A checkpoint.pt or run directory; {options.SELECTOR}.",
            show_default=False,
            autocompletion=completion.selectors,
        ),
    ],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE...",
            help="Pictures (PNG, JPEG) of any size, or, of a model of MSCOCO, files of features (.npy, .npz).",
            show_default=False,
        ),
    ],
    beam: Beam = None,
    alpha: Alpha = None,
    penalty: PenaltyOption = None,
    n_best: Annotated[
        int, typer.Option(min=1, help="Captions of each image, under each other behind the image's name.")
    ] = 1,
    scores: Scores = False,
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
    runs: options.Runs = Path("runs"),
) -> None:
    """Say what images show, with a trained model. Prints a caption a line, found by beam search.

    A picture is made as large as those of training, whatever its size and shape. What cannot be read is told in the
    end, with status 1 where others were captioned and else 2.

    Examples:

      comt caption sas/table5:sas photo.png

      comt caption checkpoint.pt one.png two.jpg --beam 8 --n-best 4 --scores

      comt caption checkpoint.pt one.png --attention figures
    """
    from comt_cli.commands.run_selectors import model_source
    from comt_cli.data.images.pictures import check_image

    wrong: dict[Path, UserError] = {}
    for path in images:
        if error := check_image(path):
            wrong[path] = error
    if len(wrong) == len({*images}):  # else the others are captioned first
        raise _together(wrong)
    checkpoint = model_source(checkpoint, runs, scale, set_)
    loading_model(checkpoint, device)
    from comt_cli.exchange.load import load
    from comt_cli.exchange.loaded import LoadedCaptioner
    from comt_cli.generation.caption import ImageCaptioner, look_at
    from comt_cli.training.devices import pick_device

    where = pick_device(device)
    loaded = load(checkpoint, LoadedCaptioner)
    decode = as_asked(loaded.decode, beam, alpha, penalty)
    if n_best > decode.beam:
        raise UserError(
            f"{n_best} captions of each image cannot be had from a beam of {decode.beam}",
            f"Give --beam {n_best} or more.",
        )
    using, status = ImageCaptioner(loaded, where), 2
    for number, path in enumerate(images, 1):
        try:
            image = look_at(path, loaded.data)
        except UserError as error:
            wrong[path] = error
            continue
        found = using.captions(image, decode, n_best)
        typer.echo("\n".join(rows(str(path), found, n_best, scores=scores)))
        status = 1
        if attention is not None:
            _draw(using, f"caption-{number}", image, found[0], loaded, attention)
    if wrong:
        raise _together(wrong, status)


def _together(wrong: Mapping[Path, UserError], status: int = 2) -> UserError:
    """All that is wrong with images as one error."""
    hints = dict.fromkeys(error.hint for error in wrong.values() if error.hint)
    error = UserError("\n".join(error.message for error in wrong.values()), "\n  ".join(hints) or None)
    error.exit_status = status
    return error


def _draw(using: ImageCaptioner, stem: str, image: Seen, best: Said, loaded: LoadedCaptioner, folder: Path) -> None:
    from comt_cli.report import figures
    from comt_cli.report.caption import Caption
    from comt_cli.report.terminal import say_written
    from comt_cli.report.words import of_runs

    weights_TR, words = using.attention(image, best)
    if image.pixels is not None:
        figure, frame = figures.draw_captioned(image.pixels, best.text, weights_TR, words)
        title = f"An image, its caption ({best.text}), and where the model looks as it says each word"
        drawn = ["Over them the image in black, as far as it differs from its paper."]
    else:
        names = ["region"] * weights_TR.shape[1]
        figure, frame = figures.draw_attention(weights_TR, words, names, ("word", "region of the image"))
        title = f"Which regions of an image the model looks at as it says each word of “{best.text}”"
        drawn = []
    said = Caption(
        title,
        of_runs([loaded.run]),
        (
            "The weights of the last decoder block's cross-attention, the mean over its heads; each word's sum to 1.",
            *drawn,
        ),
    )
    figures.sign(figure, said.trained)
    say_written(figures.write_figure(figure, frame, folder, stem, said), sys.stderr)
