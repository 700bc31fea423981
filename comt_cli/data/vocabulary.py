"""SentencePiece vocabularies: those that are trained on a corpus, and T5's, which is fetched once and checked."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from comt_cli.data.special_tokens import EXTRA_PIECES, Extra, in_order
from comt_cli.data.storage import ProgressCallback, first_line, hash_file, make_folder, no_progress
from comt_cli.data.tokenizer import SentencePieceTokenizer
from comt_cli.errors import UserError
from comt_cli.files import atomic_file, cache_folder, read_bytes, sha256

TRAINING_CHARACTERS = 20_000_000
"""Training reads this much of the train split, from its start. More text hardly moves a vocabulary of this kind."""

VOCABULARY_VERSION = 2
"""Part of the name of every trained vocabulary in the cache: raise it when the same text may give another one
(tests/contract/test_cache_versions.py asks for it). Version 1 stood for two: trained on slices of texts, then on lines.
"""

TRAINER: dict[str, Any] = {
    "model_type": "unigram",
    # T5's special ids, so that one convention holds everywhere; T5 has no beginning-of-text token.
    "pad_id": 0,
    "eos_id": 1,
    "unk_id": 2,
    "bos_id": -1,
    # Characters outside the vocabulary are spelled as bytes: nothing is unknown.
    "byte_fallback": True,
    # Decoding gives the text back exactly: no Unicode folding, no squeezing of spaces (docstrings hold code).
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    # A line break is a token of its own; otherwise pieces such as '"))\n' are learned, unreadable on a figure's axis.
    "user_defined_symbols": ["\n"],
    # The default skips texts over 4192 bytes in silence.
    "max_sentence_length": 1 << 22,
    # Not the number of cores: partial sums are added in the order of the threads, so this number is part of the result.
    "num_threads": 4,
}
_SLICE = 1 << 18
_LONGEST_LINE = 4096
_PART_OF_LINE = re.compile(rf".{{1,{_LONGEST_LINE}}}\Z|.{{0,{_LONGEST_LINE - 1}}}\s|.{{1,{_LONGEST_LINE}}}", re.DOTALL)
"""Training takes time with the length of what occurs twice: of 20 million characters some seconds where no line is
longer than this, hours where lines of 100,000 characters repeat themselves. Such lines of text of one's own are cut,
where there is white space if there is any, and their fingerprints have a mark that says so. Lines of other corpora
are cut as ever, to stay below `max_sentence_length`: fingerprints and vocabularies of these are as they were."""
LONG_LINES_CUT = "long lines cut"


def train_sentencepiece(
    texts: Iterable[str], vocabulary: int, extras: Collection[Extra] = (), key: str = "vocabulary", *, own: bool = True
) -> SentencePieceTokenizer:
    """Train a unigram vocabulary of exactly `vocabulary` pieces (bytes and special tokens included) on `texts`.

    `extras` are special tokens beside padding, end and unknown; they have the ids from 3 on, in the order of
    `EXTRA_PIECES`. Deterministic: the same texts in the same order give the same model, byte for byte, whatever the
    machine's number of cores. At most `TRAINING_CHARACTERS` are read. `own` text has its long lines cut (see
    `_PART_OF_LINE`). Raises `UserError` where the texts cannot carry a vocabulary of this size, with what a recipe's
    `key` must be.
    """
    import sentencepiece

    model, options = io.BytesIO(), dict(TRAINER)
    lines = list(_lines(texts, own))  # SentencePiece would tell an error in reading in its own words
    wanted = in_order(extras)
    if "begin" in wanted:
        options |= {"bos_id": 3, "bos_piece": EXTRA_PIECES["begin"]}
    if controls := [EXTRA_PIECES[extra] for extra in wanted if extra != "begin"]:
        options["control_symbols"] = controls
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocabulary,
            minloglevel=2,  # the C++ side logs to stderr past Python; its errors still come as exceptions
            **options,
        )
    except RuntimeError as error:
        raise UserError(
            f"{key}: no SentencePiece vocabulary of {vocabulary} pieces fits this corpus", _mend(error, key)
        ) from error
    return SentencePieceTokenizer(model.getvalue())


def _lines(texts: Iterable[str], own: bool) -> Iterator[str]:
    """The lines of the texts up to the training limit, long ones in parts. No piece reaches over a line break, and from
    texts of many lines the trainer learns worse pieces than from lines."""
    budget = TRAINING_CHARACTERS
    for text in texts:
        for line in text[:budget].split("\n"):
            cuts = range(0, len(line), _SLICE)
            yield from _PART_OF_LINE.findall(line) if own else (line[start : start + _SLICE] for start in cuts)
        budget -= len(text)
        if budget <= 0:
            return


def _mend(error: RuntimeError, key: str) -> str:
    reason = str(error)
    if found := re.search(r"value <= (\d+)", reason):
        return f"The corpus is small: set {key} to {found[1]} or less, or use more text or tokenizer: bytes."
    if "required_chars" in reason or "smaller than" in reason:
        return f"The special tokens, 256 bytes and the corpus's characters must fit: set a larger {key}."
    return f"SentencePiece says: {reason}"


# ---- T5's, the one of the papers' scripts

T5_REPOSITORY = "google-t5/t5-base"
T5_REVISION = "a9723ea7f1b39c1eae772870f3b547bf6ef7e6c1"
T5_FILE = "spiece.model"
T5_SHA256 = "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86"
T5_VARIABLE = "COMT_T5_SPM"


def t5_path() -> Path:
    """Where the cache keeps the model file once it was fetched and checked."""
    return cache_folder() / "tokenizers" / "t5-base.spiece.model"


def t5_tokenizer(progress: ProgressCallback = no_progress) -> SentencePieceTokenizer:
    """T5's tokenizer: 32000 pieces, 0 padding, 1 end of text, 2 unknown; without the 100 sentinels that transformers
    adds.

    Taken from the file `$COMT_T5_SPM` if that is set, else from the cache, else fetched once from the Hugging Face hub
    at a pinned revision; wherever it comes from, its SHA-256 is compared with T5's. Raises `UserError` where it cannot
    be had.
    """
    if local := os.environ.get(T5_VARIABLE):
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
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(T5_REPOSITORY, T5_FILE, revision=T5_REVISION))
    # The hub's client raises its own, the HTTP library's and the system's errors; all mean the same to the user.
    except Exception as error:
        url = f"https://huggingface.co/{T5_REPOSITORY}/resolve/{T5_REVISION}/{T5_FILE}"
        raise UserError(
            f"cannot fetch the T5 vocabulary ({T5_REPOSITORY}/{T5_FILE}): {first_line(error)}",
            f"Where there is network, run: curl -LO {url} - then here: export {T5_VARIABLE}=/path/to/{T5_FILE}",
        ) from error
