"""T5's SentencePiece vocabulary, the one of the papers' scripts: where it comes from and how it is checked."""

from __future__ import annotations

import os
from pathlib import Path

from comt_cli.data.sentencepiece_tokenizer import SentencePieceTokenizer
from comt_cli.data.storage import ProgressCallback, first_line, hash_file, make_folder, no_progress
from comt_cli.errors import UserError
from comt_cli.files import atomic_file, cache_folder, read_bytes, sha256

T5_REPOSITORY = "google-t5/t5-base"
T5_REVISION = "a9723ea7f1b39c1eae772870f3b547bf6ef7e6c1"
T5_FILE = "spiece.model"
T5_SHA256 = "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86"
T5_VARIABLE = "COMT_T5_SPM"


def t5_path() -> Path:
    """Where the cache keeps the model file once it was fetched and checked."""
    return cache_folder() / "tokenizers" / "t5-base.spiece.model"


def t5_tokenizer(progress: ProgressCallback = no_progress) -> SentencePieceTokenizer:
    """T5's tokenizer: 32000 pieces, 0 padding, 1 end of text, 2 unknown.

    Taken from the file `$COMT_T5_SPM` if that is set, else from the cache, else fetched once from the Hugging Face hub
    at a pinned revision. Wherever it comes from, its SHA-256 is compared with T5's before it is used, since other
    pieces would make other tokens under the same name. The 100 sentinels that transformers adds are left out.

    Raises:
        UserError: the file cannot be had, or is not T5's.
    """
    local = os.environ.get(T5_VARIABLE)
    if local:
        return SentencePieceTokenizer(_checked(Path(local).expanduser(), f"${T5_VARIABLE}"))
    path = t5_path()
    if not path.exists():
        progress("fetching the T5 vocabulary", 0, None)
        model = _checked(_fetch(), f"the download of {T5_REPOSITORY}")
        make_folder(path.parent)
        with atomic_file(path) as handle:
            handle.write(model)
    return SentencePieceTokenizer(_checked(path, "the cache"))


def _checked(path: Path, origin: str) -> bytes:
    """The file's content, if it is T5's model."""
    try:
        model = read_bytes(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read the T5 vocabulary {path} (from {origin}): {getattr(error, 'strerror', None) or error}",
            f"Set {T5_VARIABLE} to a copy of {T5_FILE} from huggingface.co/{T5_REPOSITORY}, or unset it to download.",
        ) from error
    if sha256(model) != T5_SHA256:
        raise UserError(
            f"{path} (from {origin}) is not the T5 vocabulary: its SHA-256 is {hash_file(path)}",
            f"It must be {T5_SHA256}. Delete the file, or point {T5_VARIABLE} at the right one, and run again.",
        )
    return model


def _fetch() -> Path:
    """Download the file (about 800 KB) into the hub's own cache."""
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(T5_REPOSITORY, T5_FILE, revision=T5_REVISION))
    # The hub's client raises its own, the HTTP library's and the system's errors; all mean the same to the user.
    except Exception as error:
        raise UserError(
            f"cannot fetch the T5 vocabulary ({T5_REPOSITORY}/{T5_FILE}): {first_line(error)}",
            f"Where there is network, run: curl -LO https://huggingface.co/{T5_REPOSITORY}/resolve/{T5_REVISION}/{T5_FILE}"
            f" - then here: export {T5_VARIABLE}=/path/to/{T5_FILE}",
        ) from error
