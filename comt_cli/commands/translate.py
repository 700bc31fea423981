"""`comt translate`: a trained model translates lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import completion, options
from comt_cli.commands.loading import loading_model
from comt_cli.errors import UserError

if TYPE_CHECKING:
    from comt_cli.exchange.loaded_translation import LoadedTranslator
    from comt_cli.generation.part_file import PartFile
    from comt_cli.generation.translate import Options, Translation, Translator

MOST_FIGURES = 20
"""Fewer than a pool of lines, which is what an output that was stopped is continued by: each is translated."""


class Penalty(StrEnum):
    """What log-probabilities are divided by."""

    gnmt = "gnmt"
    average = "average"


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
    beam: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Hypotheses that are kept; 1 is greedy. As the run's if not given."),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(min=0, max=10, help="How much longer translations are favoured. As the run's if not given."),
    ] = None,
    penalty: Annotated[
        Penalty | None,
        typer.Option(help="Divide by ((5 + length) / 6)^alpha (gnmt) or length^alpha (average). As the run's."),
    ] = None,
    n_best: Annotated[
        int, typer.Option(min=1, help="Translations of each line, under each other behind the line's number.")
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="Score and log-probability before each translation, with tabs.")
    ] = False,
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
    runs: options.Runs = Path("runs"),
) -> None:
    """Translate lines with a trained model by beam search; as many lines come out as go in.

    Empty lines stay empty. A line that is longer than those of training is cut, with a warning. What a line is
    translated to does not depend on the others. With --output the lines stand in FILE.part until all are done: the
    same command, given again after it was stopped, continues there. With --n-best N every line has N lines of output,
    empty ones where fewer translations were found.

    Examples:

      comt translate table3:post-ln -i sentences.en -o sentences.de

      comt translate checkpoint.pt -i sentences.en --beam 8 --alpha 1 --n-best 4 --scores

      comt translate checkpoint.pt -i sentences.en --attention figures
    """
    from comt_cli.commands.run_selectors import model_source

    lines: Iterable[str] = _lines(given)
    if attention is not None:
        lines = list(lines)
        if len(lines) > MOST_FIGURES:
            raise UserError(
                f"--attention draws at most {MOST_FIGURES} lines, and the input has {len(lines):,}",
                "Give it a file with the lines that are to be drawn.",
            )
    checkpoint = model_source(checkpoint, runs, scale)
    loading_model(checkpoint, device)
    from comt_cli.exchange.load import load
    from comt_cli.exchange.loaded_translation import LoadedTranslator
    from comt_cli.generation.translate import Options, translator
    from comt_cli.training.devices import pick_device

    where = pick_device(device)
    loaded = load(checkpoint, LoadedTranslator)
    given_options = {"beam": beam, "alpha": alpha, "penalty": None if penalty is None else penalty.value}
    decode = loaded.decode.model_copy(update={key: value for key, value in given_options.items() if value is not None})
    chosen = Options(decode, n_best, batch_tokens)
    using = translator(loaded, where, lambda text: typer.echo(f"comt: {text}", err=True))
    file, done = None, 0
    if out is not None:
        lines = list(lines)
        file, done = _part_file(lines, chosen, out, scores=scores, model=_stamp(checkpoint))
        lines = lines[done:]
    numbers = count(done + 1)
    for pool in using.pools(lines, chosen, done + 1):
        numbered = list(zip(pool, numbers, strict=False))  # in this order: the other takes a number too many
        rows = [row for found, number in numbered for row in _rows(number, found, n_best, scores=scores)]
        if file is None:
            typer.echo("\n".join(rows))
        else:
            file.add(rows)
        if attention is not None:
            for found, number in numbered:
                _draw(using, number, found[0], loaded, attention)
    if file is not None:
        file.finish()


def _rows(number: int, found: Sequence[Translation], n_best: int, *, scores: bool) -> list[str]:
    """The lines of output of a line of input."""
    rows = []
    for place in range(n_best):
        each = found[place] if place < len(found) else None
        hypothesis = each.hypothesis if each is not None else None
        columns = [str(number)] if n_best > 1 else []
        if scores and hypothesis is None:
            columns += ["", ""]
        elif scores and hypothesis is not None:
            columns += [f"{hypothesis.score:.6f}", f"{hypothesis.log_probability:.6f}"]
        rows.append("\t".join([*columns, each.text if each is not None else ""]))
    return rows


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
    if done:
        typer.echo(f"comt: {file.part} has the first {done:,} of {len(lines):,} lines", err=True)
    return file, done


def _draw(using: Translator, number: int, best: Translation, loaded: LoadedTranslator, folder: Path) -> None:
    """The figure of a line; none of an empty one."""
    if best.hypothesis is None:
        return
    from comt_cli.report import figures
    from comt_cli.report.caption import Caption
    from comt_cli.report.trained import of_runs

    weights_TS, target, source = using.attention(best)
    figure, frame = figures.draw_attention(weights_TS.numpy(), target, source)
    said = Caption(
        "What each token of a translation is predicted from",
        of_runs([loaded.run]),
        ("The weights of the last decoder block's cross-attention, the mean over its heads; each row sums to 1.",),
    )
    figures.sign(figure, said.trained)
    for path in figures.write_figure(figure, frame, folder, f"attention-{number}", said):
        typer.echo(path, err=True)


def _lines(given: Path) -> Iterator[str]:
    """The lines of a file, or of the standard input as they come: what lies between two line breaks. Raises `UserError`
    at a file that cannot be opened, at once, and at a line that is not UTF-8, where it comes."""
    if str(given) == "-":
        return _decoded(nullcontext(sys.stdin.buffer), "the standard input")
    try:
        given.open("rb").close()
    except OSError as error:
        raise UserError(f"--input {given} cannot be read: {error.strerror or error}") from None
    return _decoded(given, str(given))


def _decoded(given: Path | AbstractContextManager[IO[bytes]], name: str) -> Iterator[str]:
    with given.open("rb") if isinstance(given, Path) else given as handle:
        for number, line in enumerate(handle, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError:
                raise UserError(f"{name} is not UTF-8 text (line {number:,})") from None


def _stamp(checkpoint: str) -> list[object]:
    """What tells a file of weights from another, and from itself after it was trained on."""
    path = Path(checkpoint)
    status = (path / "checkpoint.pt" if path.is_dir() else path).stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]
