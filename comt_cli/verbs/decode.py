"""The bodies of `comt generate`, `translate` and `caption`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZipFile

import torch
import typer

from comt_cli.commands.options import Decoding
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedCaptioner, LoadedModel, LoadedTranslator
from comt_cli.files import canonical_json, sha256, write_text
from comt_cli.generation import completion
from comt_cli.generation import translate as translation
from comt_cli.generation.beam import Decoded
from comt_cli.generation.caption import ImageCaptioner, look_at
from comt_cli.generation.transcript import Transcript
from comt_cli.library.restored import load
from comt_cli.models import kernels as model_kernels
from comt_cli.tasks.settings.translation import BeamSettings
from comt_cli.training.devices import pick_device

Decode = TypeVar("Decode", bound=BeamSettings)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DTYPES = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16}


def continue_texts(
    source: str,
    prompts: Sequence[str],
    sampling: Mapping[str, Any],
    device: str | None,
    precision: str | None,
    *,
    as_json: bool,
) -> None:
    """Print the texts of the model at `source` for each prompt: one text token by token, several at the end."""
    where, loaded = pick_device(device), load(source, LoadedModel)
    texts = completion.begin(loaded, prompts)
    longest = max(len(text.ids) for text in texts) + sampling["max_new_tokens"]
    if loaded.context_length is not None and longest > loaded.context_length:
        typer.echo(f"comt: {longest} tokens exceed the training length of {loaded.context_length}", err=True)
    model = loaded.model.to(where, _DTYPES[precision]).eval()
    dtype = model.embedding.weight.dtype
    choices = model_kernels.use_kernels(model, "auto", where, dtype, compiled=False, training=False, tokens=len(texts))
    streams = len(texts) == 1 and not as_json
    if streams:
        show(prompts[0])
    completion.complete(loaded, texts, sampling, show if streams else None)
    if as_json:
        about = {"model": loaded.name, "device": str(where), "precision": str(dtype).removeprefix("torch.")}
        kinds = {op: str(choice) for op, choice in choices.items()}
        rows = [
            {"prompt": t.prompt, "prompt_tokens": len(t.ids), "text": t.text, "tokens": t.tokens, "ended": t.ended}
            for t in texts
        ]
        typer.echo(json.dumps({**about, "kernels": kinds, "texts": rows}, indent=2))
    elif streams:
        typer.echo()
    else:
        for number, text in enumerate(texts, 1):
            show(f"[{number}/{len(texts)}] {text.prompt}{text.text}\n\n")


def show(text: str) -> None:
    """Print without a newline. On a terminal, control characters in a model's text are replaced."""
    shown = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) if sys.stdout.isatty() else text
    typer.echo(shown, nl=False, color=True)  # without `color`, text that looks like an escape sequence is removed


def _settings(decoding: Decoding, decode: Decode) -> Decode:
    """The run's settings of beam search, with the user's overrides. Raises `UserError` if `n_best` exceeds the
    beam."""
    given = {"beam": decoding.beam, "alpha": decoding.alpha}
    settings = decode.model_copy(update={key: value for key, value in given.items() if value is not None})
    if decoding.n_best > settings.beam:
        wrong = f"--n-best {decoding.n_best} is more than the beam size {settings.beam}"
        raise UserError(wrong, f"Give --beam {decoding.n_best} or more.")
    return settings


def _rows(decoding: Decoding, name: str, found: Sequence[Decoded]) -> list[str]:
    """`n_best` lines of output. With several, `name` precedes each text. Missing texts are empty."""
    lines = []
    for each in (*found, *[None] * decoding.n_best)[: decoding.n_best]:
        hypothesis = each.hypothesis if each is not None else None
        columns = [name] if decoding.n_best > 1 else []
        if decoding.scores:
            numbers = () if hypothesis is None else (hypothesis.score, hypothesis.log_probability)
            columns += [f"{number:.6f}" for number in numbers] or ["", ""]
        lines.append("\t".join([*columns, each.text if each is not None else ""]))
    return lines


def translate_lines(source: str, lines: Iterable[str], out: Path | None, decoding: Decoding) -> None:
    """Print the translations of lines by the model at `source`, or write them to `out`, where a stopped call
    resumes."""
    where, loaded = pick_device(decoding.device), load(source, LoadedTranslator)
    settings = _settings(decoding, loaded.decode)
    using = translation.translator(loaded, where, lambda text: typer.echo(f"comt: {text}", err=True))
    transcript, done = None, 0
    if out is not None:
        lines = list(lines)
        about = [_stamp(source), settings.model_dump(mode="json"), decoding.n_best, decoding.scores, *lines]
        key = sha256(canonical_json(about))
        transcript = Transcript(out.parent, out.name, f"part-{key[:8]}", key)  # by call: none removes another's
        done = next(number for number in count() if number not in transcript.done)
        done -= done % translation.POOL  # pools must stay the same: batches decide the last bits
        if done:
            typer.echo(f"comt: resuming: {transcript.own} has {done:,} of {len(lines):,} lines", err=True)
        lines = lines[done:]
    for pool in using.pools(lines, settings, decoding.n_best, done + 1):
        texts = {
            number: "\n".join(_rows(decoding, str(number + 1), found)) for number, found in enumerate(pool, start=done)
        }
        done += len(pool)
        if transcript is None:
            typer.echo("\n".join(texts.values()))
        else:
            transcript.add(texts)
    if out is not None and transcript is not None:
        write_text(out, "".join(f"{transcript.done[number]}\n" for number in range(done)))
        transcript.own.unlink(missing_ok=True)


def _stamp(checkpoint: str) -> list[object]:
    """The checksums of the records in a file of weights. They do not change when the file is copied or moved."""
    path = Path(checkpoint)
    with ZipFile(path / "checkpoint.pt" if path.is_dir() else path) as archive:
        return [(info.filename, info.CRC) for info in archive.infolist()]


def caption_images(source: str, images: Sequence[Path], decoding: Decoding) -> None:
    """Print captions of images by the model at `source`. Raises `UserError` if an image cannot be read."""
    where, loaded = pick_device(decoding.device), load(source, LoadedCaptioner)
    settings = _settings(decoding, loaded.decode)
    using = ImageCaptioner(loaded, where)
    for path in images:
        found = using.captions(look_at(path, loaded.data), settings, decoding.n_best)
        typer.echo("\n".join(_rows(decoding, str(path), found)))
