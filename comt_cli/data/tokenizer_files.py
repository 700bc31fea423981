"""Tokenizers in files that recipes name: a `tokenizer.json` of the `tokenizers` library, a SentencePiece model, or a
repository of the Hugging Face hub with one. Imports the libraries when a tokenizer is read."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

from comt_cli.data.published import CONFIG, TOKENIZER, hub_folder, read_object
from comt_cli.data.storage import first_line
from comt_cli.data.tokenizer import LibraryTokenizer, SentencePieceTokenizer, Tokenizer, library_of
from comt_cli.errors import UserError
from comt_cli.files import read_bytes, read_text

HUB = "hf:"
FORMS = r"hf:.+|.*/.*|.*\.(json|model)"
"""Names of such tokenizers. A path has a slash or one of these endings, so that mistyped names are recognised."""

MODEL = "tokenizer.model"
CONFIGURATION = "tokenizer_config.json"
_STATING = (
    *((name, "{}_token") for name in (CONFIGURATION, "special_tokens_map.json")),
    *((name, "{}_token_id") for name in ("generation_config.json", CONFIG)),
)
"""The files that state the begin (bos) and the end token (eos), with their key; the first that states it decides."""
_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<|eos|>", "<eos>", "[EOS]", "[SEP]")
"""Usual names of the end token, for tokenizers without such files."""


def file_tokenizer(asked: str, vocabulary: int) -> Tokenizer:
    """The tokenizer of a folder, a file, or `hf:OWNER/NAME[@REVISION]`, for a model with this `vocabulary`. Raises
    `UserError` if it is missing, damaged, too large, has no end token, or is random."""
    path = _located(asked)
    try:
        return fitting(_read(path), asked, vocabulary)
    except (OSError, ValueError) as error:
        raise UserError(f"data.tokenizer: cannot read {path}: {error}") from None


def fitting(tokenizer: Tokenizer, asked: str, vocabulary: int) -> Tokenizer:
    """`tokenizer`, whose ids are below `vocabulary`. Raises `UserError` otherwise."""
    if (most := tokenizer.vocabulary_size) > vocabulary:
        said = f"data.vocabulary: {vocabulary} is too small: the tokenizer of {asked} has {most} tokens"
        raise UserError(said, f"Set data.vocabulary: {most}, or the larger size of the model's embedding.")
    return tokenizer


def _located(asked: str) -> Path:
    """The file of a tokenizer. Raises `UserError`."""
    path = _fetched(asked.removeprefix(HUB)) if asked.startswith(HUB) else Path(asked).expanduser()
    if not path.exists():
        hint = f"Paths are relative to {Path.cwd()}. Give a folder, a file, or {HUB}OWNER/NAME for the hub."
        raise UserError(f"data.tokenizer: there is no {asked}", hint)
    found = [each for each in (path / TOKENIZER, path / MODEL) if each.exists()] if path.is_dir() else [path]
    if not found:
        hint = "transformers' save_pretrained writes the first. Give a SentencePiece model of another name by its file."
        raise UserError(f"data.tokenizer: {path} has no {TOKENIZER} and no {MODEL}", hint)
    return found[0]


def hub_commit(asked: str) -> dict[str, str]:
    """The repository and commit of a tokenizer of the hub, as a version for the record of prepared data; else {}."""
    name = asked.partition("@")[0]
    return {"tokenizer": f"{name}@{_located(asked).parent.name}"} if asked.startswith(HUB) else {}


def _fetched(name: str) -> Path:
    """The cached copy of a repository, a folder with the name of its commit; without `@REVISION` that of the first
    fetch. A copy without the tokenizer, as of weights alone, is fetched again."""
    repository, _, revision = name.partition("@")
    files = [TOKENIZER, MODEL, *(each for each, _ in _STATING)]
    get = functools.partial(hub_folder, repository, files, revision=revision or None)
    with contextlib.suppress(UserError):  # nothing is cached
        if any(((folder := get(fetch=False)) / each).exists() for each in (TOKENIZER, MODEL)):
            return folder
    try:
        return get()
    except UserError as error:
        raise UserError(f"data.tokenizer: {HUB}{name}: {error.message}", error.hint) from None


def _read(path: Path) -> Tokenizer:
    is_model = path.suffix == ".model"
    content: Any = read_bytes(path) if is_model else read_text(path)
    try:
        found: Any = (SentencePieceTokenizer if is_model else library_of)(content)
    except Exception as error:  # the libraries raise bare `Exception` and `RuntimeError` for any damage
        hint = f"comt reads {TOKENIZER} of the tokenizers library, and SentencePiece models, which end in .model."
        raise UserError(f"data.tokenizer: {path} is not a tokenizer: {first_line(error)}", hint) from None
    hint = "Train it with an eos_id."
    if not is_model:
        if dropout := getattr(found.model, "dropout", None):
            said = f"data.tokenizer: {path} has a dropout of {dropout}, so texts would be encoded at random"
            raise UserError(said, 'Set "dropout": null in its model.')
        begin, end = (_stated(path, found, which) for which in ("bos", "eos"))
        usual = (i for each in _ENDS if (i := found.token_to_id(each)) is not None)
        end = next(usual, None) if end is None else end
        found = LibraryTokenizer(found, begin, [] if end is None else [end], content)
        hint = f'State {{"eos_token": "..."}} in {CONFIGURATION} beside it.'
    if found.special.end < 0:
        raise UserError(f"data.tokenizer: {path} has no token that ends a text", hint)
    tokenizer: Tokenizer = found
    return tokenizer


def _stated(path: Path, library: Any, which: str) -> int | None:
    """The id of a special token in the files beside a tokenizer; None if none states it. Raises `UserError` if it is no
    token."""
    for name, form in _STATING:
        file, key = path.with_name(name), form.format(which)
        given = read_object(file).get(key) if file.exists() else None
        given = given.get("content") if isinstance(given, dict) else given
        first = given[0] if isinstance(given, list) and given else given
        if first not in (None, []):
            found = library.token_to_id(first) if isinstance(first, str) else first
            if not isinstance(found, int) or library.id_to_token(found) is None:
                raise UserError(f"data.tokenizer: {file}: {key} is {first!r}, which is not a token of {path}")
            return found
    return None
