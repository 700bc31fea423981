"""`comt translate`: a trained model translates lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from errno import EINVAL
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from zipfile import ZipFile

import typer

from comt_cli.commands import completion, options
from comt_cli.commands.decoding import Alpha, Beam, PenaltyOption, Scores, as_asked, rows
from comt_cli.commands.loading import loading_model
from comt_cli.errors import UserError
from comt_cli.files import conversion, open_file, refuse_same

if TYPE_CHECKING:
    from comt_cli.exchange.loaded import LoadedTranslator
    from comt_cli.generation.part_file import PartFile
    from comt_cli.generation.translate import Options, Translation, Translator

MOST_FIGURES = 20
"""Fewer than a pool of lines, which is what an output that was stopped is continued by: each is translated."""


def translate(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help=f"A checkpoint.pt or run directory; {options.SELECTOR}.",
            show_default=False,
            autocompletion=completion.selectors,
        ),
    ],
    given: Annotated[
        Path, typer.Option("--input", "-i", metavar="FILE", help="Lines to translate; - is the standard input.")
    ] = Path("-"),
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the lines go; the standard output if not given."),
    ] = None,
    beam: Beam = None,
    alpha: Alpha = None,
    penalty: PenaltyOption = None,
    n_best: Annotated[
        int, typer.Option(min=1, help="Translations of each line, under each other behind the line's number.")
    ] = 1,
    scores: Scores = False,
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
    runs: options.Runs = Path("runs"),
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
    from comt_cli.commands.run_selectors import model_source

    if out is not None:
        refuse_same(out, given)
        refuse_same(out.with_name(f"{out.name}.part"), given)
    lines: Iterable[str] = _lines(given)
    if attention is not None or str(given) != "-":  # what is wrong with a file is told before the model is loaded
        lines = list(lines)
        if attention is not None and len(lines) > MOST_FIGURES:
            raise UserError(
                f"--attention draws at most {MOST_FIGURES} lines, and the input has {len(lines):,}",
                "Give it a file with the lines that are to be drawn.",
            )
    checkpoint = model_source(checkpoint, runs, scale, set_)
    loading_model(checkpoint, device)
    from comt_cli.exchange.load import load
    from comt_cli.exchange.loaded import LoadedTranslator
    from comt_cli.generation.translate import Options, translator
    from comt_cli.training.devices import pick_device

    where = pick_device(device)
    loaded = load(checkpoint, LoadedTranslator)
    chosen = Options(as_asked(loaded.decode, beam, alpha, penalty), n_best, batch_tokens)
    using = translator(loaded, where, lambda text: typer.echo(f"comt: {text}", err=True))
    file, done = None, 0
    if out is not None:
        lines = list(lines)
        file, done = _part_file(lines, chosen, out, scores=scores, model=_stamp(checkpoint))
        lines = lines[done:]
    numbers = count(done + 1)
    for pool in using.pools(lines, chosen, done + 1):
        numbered = list(zip(pool, numbers, strict=False))  # in this order: the other takes a number too many
        found_rows = [row for found, number in numbered for row in rows(str(number), found, n_best, scores=scores)]
        if file is None:
            typer.echo("\n".join(found_rows))
        else:
            file.add(found_rows)
        if attention is not None:
            for found, number in numbered:
                _draw(using, number, found[0], loaded, attention)
    if file is not None:
        file.finish()


def _part_file(
    lines: Sequence[str], chosen: Options, out: Path, *, scores: bool, model: object
) -> tuple[PartFile, int]:
    """What the output is written to, and how many of the lines an earlier call has translated."""
    from comt_cli.files import canonical_json, sha256
    from comt_cli.generation.part_file import PartFile
    from comt_cli.generation.translate import POOL

    decode = chosen.decode.model_dump(mode="json")
    key = sha256(canonical_json([model, decode, chosen.n_best, chosen.batch_tokens, scores, *lines]))
    file = PartFile(out, f"comt translate {key}")
    done = file.resume(POOL * chosen.n_best) // chosen.n_best
    if file.aside:
        typer.echo(f"comt: {file.part} is of another model, input or options; it is kept as {file.aside}", err=True)
    if done:
        typer.echo(f"comt: {file.part} has the first {done:,} of {len(lines):,} lines", err=True)
    return file, done


def _draw(using: Translator, number: int, best: Translation, loaded: LoadedTranslator, folder: Path) -> None:
    """The figure of a line; none of an empty one."""
    if best.hypothesis is None:
        return
    from comt_cli.report import figures
    from comt_cli.report.caption import Caption
    from comt_cli.report.terminal import say_written
    from comt_cli.report.words import of_runs

    weights_TS, target, source = using.attention(best)
    figure, frame = figures.draw_attention(weights_TS.numpy(), target, source)
    said = Caption(
        "What each token of a translation is predicted from",
        of_runs([loaded.run]),
        ("The weights of the last decoder block's cross-attention, the mean over its heads; each row sums to 1.",),
    )
    figures.sign(figure, said.trained)
    say_written(figures.write_figure(figure, frame, folder, f"attention-{number}", said), sys.stderr)


def _lines(given: Path) -> Iterator[str]:
    """The lines of a file, or of the standard input as they come: what lies between two line breaks. Raises `UserError`
    at a file that cannot be read, and at a line that is not UTF-8."""
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
        is_stream = error.errno == EINVAL and not given.is_dir()  # a pipe or a device
        piped = "What comes through a pipe is read from the standard input: -i -" if is_stream else None
        raise UserError(f"--input {given} cannot be read: {error.strerror or error}", piped) from None


def _stamp(checkpoint: str) -> list[object]:
    """What tells the content of a file of weights from another: the checksums of its records, which loading compared.
    It stays where the file is copied, linked or mounted elsewhere."""
    path = Path(checkpoint)
    with ZipFile(path / "checkpoint.pt" if path.is_dir() else path) as archive:
        return [(info.filename, info.CRC) for info in archive.infolist()]
