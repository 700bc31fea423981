"""SentencePiece: the tokenizer trained on a corpus, and the class that also runs T5's vocabulary."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from comt_cli.data.special_tokens import EXTRA_PIECES, Extra, SpecialTokens, in_order
from comt_cli.data.tokenizer import TOKENIZER_FORMAT, Tokenizer
from comt_cli.errors import UserError
from comt_cli.files import sha256

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


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model. `vocabulary_size` and the special ids are the model's own."""

    def __init__(self, model: bytes) -> None:
        """Build from the bytes of a `.model` file. Raises `ValueError` when they are not one."""
        import sentencepiece

        self._model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(f"it holds no SentencePiece model ({error})") from error
        self.vocabulary_size = int(self._processor.vocab_size())
        self.pad_id = int(self._processor.pad_id())
        self.eos_id = int(self._processor.eos_id())
        if self.pad_id < 0 or self.eos_id < 0:
            raise ValueError("its SentencePiece model has no padding or no end-of-text token")

    @property
    def special(self) -> SpecialTokens:
        """The model's own; mask and separator are its control pieces of these names, never a piece of text."""

        def known(i: int) -> int | None:
            return i if i >= 0 else None

        def control(name: str) -> int | None:
            i = int(self._processor.piece_to_id(name))
            return i if self._processor.is_control(i) else None

        return SpecialTokens(
            pad=self.pad_id,
            end=self.eos_id,
            begin=known(int(self._processor.bos_id())),
            mask=control(EXTRA_PIECES["mask"]),
            separator=control(EXTRA_PIECES["separator"]),
            unknown=known(int(self._processor.unk_id())),
        )

    def encode(self, text: str) -> list[int]:
        """The ids of `text`. A literal '▁' (U+2581) comes back as a space: SentencePiece uses it to mean one."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of every text, on all cores; the order is kept."""
        ids: list[list[int]] = self._processor.encode(list(texts), out_type=int)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens stand for no text."""
        text: str = self._processor.decode([int(i) for i in ids])
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        r"""The model's pieces: '▁castle' begins a word, '</s>' ends a text, '\\n' is a line break."""
        return [str(self._processor.id_to_piece(int(i))).replace("\n", "\\n") for i in ids]

    def to_json(self) -> dict[str, Any]:
        """The model in base64 with its hash."""
        model = base64.b64encode(self._model).decode("ascii")
        return {"format": TOKENIZER_FORMAT, "kind": "sentencepiece", "sha256": sha256(self._model), "model": model}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SentencePieceTokenizer:
        """The inverse of `to_json`. Raises `ValueError` when `value` is incomplete or its hash does not fit."""
        try:
            model = base64.b64decode(str(value.get("model")), validate=True)
        except binascii.Error as error:
            raise ValueError("its model is not base64") from error
        if sha256(model) != value.get("sha256"):
            raise ValueError("its model is not the one that was stored (the hash differs)")
        return cls(model)


def train_sentencepiece(
    texts: Iterable[str], vocabulary: int, extras: Collection[Extra] = (), key: str = "vocabulary", *, own: bool = True
) -> SentencePieceTokenizer:
    """Train a unigram vocabulary of exactly `vocabulary` pieces (bytes and special tokens included) on `texts`.

    `extras` are special tokens beside padding, end and unknown; they have the ids from 3 on, in the order of
    `special_tokens.EXTRA_PIECES`. Without any the vocabulary is what it always was. Text never becomes one of them.

    Deterministic: the same texts in the same order give the same model, byte for byte, whatever the machine's number
    of cores. At most `TRAINING_CHARACTERS` are read. `own` text has its long lines cut (see `_PART_OF_LINE`).

    Raises:
        UserError: the texts cannot carry a vocabulary of this size; the hint says to what a recipe's `key` must be set.
        Exception: what reading the texts raises.
    """
    import sentencepiece

    model, options = io.BytesIO(), dict(TRAINER)
    failed: list[Exception] = []
    wanted = in_order(extras)
    if "begin" in wanted:
        options |= {"bos_id": 3, "bos_piece": EXTRA_PIECES["begin"]}
    if controls := [EXTRA_PIECES[extra] for extra in wanted if extra != "begin"]:
        options["control_symbols"] = controls
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_noting(_lines(texts, own), failed),
            model_writer=model,
            vocab_size=vocabulary,
            minloglevel=2,  # the C++ side logs to stderr past Python; its errors still come as exceptions
            **options,
        )
    except RuntimeError as error:
        if failed:  # told in words of SentencePiece's
            raise failed[0] from None
        raise UserError(
            f"{key}: no SentencePiece vocabulary of {vocabulary} pieces fits this corpus", _mend(error, key)
        ) from error
    return SentencePieceTokenizer(model.getvalue())


def _noting(texts: Iterator[str], failed: list[Exception]) -> Iterator[str]:
    """The texts; an error in reading them is put into `failed`."""
    try:
        yield from texts
    except Exception as error:
        failed.append(error)
        raise


def _lines(texts: Iterable[str], own: bool) -> Iterator[str]:
    """The lines of the texts up to the training limit, long ones in parts (see `_PART_OF_LINE`).

    No piece reaches over a line break, and from texts of many lines the trainer learns worse pieces than from lines.
    """
    budget = TRAINING_CHARACTERS
    for text in texts:
        for line in text[:budget].split("\n"):
            cuts = range(0, len(line), _SLICE)
            yield from _PART_OF_LINE.findall(line) if own else (line[start : start + _SLICE] for start in cuts)
        budget -= len(text)
        if budget <= 0:
            return


def _mend(error: RuntimeError, key: str) -> str:
    """Turn SentencePiece's C++ message into advice."""
    reason = str(error)
    if found := re.search(r"value <= (\d+)", reason):
        return f"The corpus is small: set {key} to {found[1]} or less, or use more text or tokenizer: bytes."
    if "required_chars" in reason or "smaller than" in reason:
        return f"The special tokens, 256 bytes and the corpus's characters must fit: set a larger {key}."
    return f"SentencePiece says: {reason}"
