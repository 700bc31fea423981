"""Tokenizers: bytes, whole words, SentencePiece models, those of published weights; and their files."""

from __future__ import annotations

import base64
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from comt_cli.errors import UserError
from comt_cli.files import if_damaged, read_json, sha256, write_json

TOKENIZER_FORMAT = 1

PAD = 0
"""The id that fills padded sequences in every model. It is the padding token of our own tokenizers, whose texts never
contain it; a tokenizer from a file can have a word there, so targets tell what is padding."""

Extra = Literal["begin", "mask", "separator"]
EXTRA_PIECES: dict[Extra, str] = {"begin": "<s>", "mask": "<mask>", "separator": "<sep>"}
"""The special tokens that only some tokenizers have, in the order of their ids, with their pieces."""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of a tokenizer's special tokens (None: missing); of these, texts are only encoded to `unknown`. `pad` fills
    batches, `end` ends a text, `begin` is the first input of decoders and BERTs, `mask` hides a token, `separator`
    divides two texts."""

    pad: int | None
    end: int
    begin: int | None = None
    mask: int | None = None
    separator: int | None = None
    unknown: int | None = None

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(i for i in astuple(self) if i is not None)

    def need(self, extra: Extra | Literal["pad"]) -> int:
        """The id of a required special token. Raises `ValueError` if the tokenizer does not have it."""
        found: int | None = getattr(self, extra)
        if found is None:
            raise ValueError(f"the tokenizer has no {extra} token")
        return found


class Tokenizer(ABC):
    """Converts text to token ids in [0, vocabulary_size) and back; `encode` adds and needs no special tokens."""

    vocabulary_size: int
    special: SpecialTokens
    names: Sequence[str]  # of all tokens, for tokenizers that list them

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without an end token."""
        return self.encode_batch([text])[0]

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for every text, on all cores."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, without special tokens."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        r"""A readable name of each token, for the axes of figures: '▁castle', '</s>', '\\n'."""
        return [self.names[int(i)] for i in ids]

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything that `tokenizer_from_json` needs to build the same tokenizer."""

    def save(self, path: Path) -> None:
        """Write the tokenizer to one JSON file. Raises `StorageError`."""
        write_json(path, self.to_json())


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes: 0 is padding, 1 the end of a text, 2 + b the byte b, from 258 on the extra special tokens."""

    def __init__(self, extras: Collection[str] = ()) -> None:
        own = [extra for extra in EXTRA_PIECES if extra in extras]
        self._extras = {extra: 258 + number for number, extra in enumerate(own)}
        self.vocabulary_size = 258 + len(self._extras)
        bytes_ = (chr(b) if 0x20 < b < 0x7F else f"<0x{b:02X}>" for b in range(256))
        self.names = ["<pad>", "</s>", *bytes_, *(EXTRA_PIECES[extra] for extra in self._extras)]
        self.special = SpecialTokens(pad=0, end=1, **self._extras)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[2 + byte for byte in text.encode()] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text; bytes that are not UTF-8, such as a part of a character, become U+FFFD."""
        return bytes(int(i) - 2 for i in ids if 2 <= i < 258).decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        extras = {"extras": list(self._extras)} if self._extras else {}
        return {"format": TOKENIZER_FORMAT, "kind": "bytes", **extras}


_SPECIAL = ("<pad>", "</s>", "<s>", "<unk>")
SPECIAL_WORDS = len(_SPECIAL)


class WordTokenizer(Tokenizer):
    """Words separated by spaces: 0 is padding, 1 the end of a text, 2 its begin, 3 an unknown word, 4 + i word i."""

    special = SpecialTokens(pad=0, end=1, begin=2, unknown=3)

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.names = tuple(words), (*_SPECIAL, *words)
        self._ids = {word: SPECIAL_WORDS + number for number, word in enumerate(self.words)}
        self.vocabulary_size = len(self.names)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(word, 3) for word in text.split()] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The words separated by spaces; unknown ones become `<unk>`, other special ones are left out."""
        return " ".join(self.pieces([i for i in ids if int(i) >= 3]))

    def to_json(self) -> dict[str, Any]:
        return {"format": TOKENIZER_FORMAT, "kind": "words", "words": list(self.words)}


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model. `vocabulary_size` and special ids are the model's; mask and separator are its control
    pieces of these names, which never match text. A literal '▁' (U+2581) is decoded as a space."""

    def __init__(self, model: bytes) -> None:
        """`model` is the content of a `.model` file; without an end token, that of `special` is -1. Raises
        `RuntimeError`."""
        import sentencepiece

        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocabulary_size = int(self._processor.vocab_size())
        end, pad = int(self._processor.eos_id()), int(self._processor.pad_id())
        found = {"begin": int(self._processor.bos_id()), "unknown": int(self._processor.unk_id())}
        for extra in ("mask", "separator"):
            number = int(self._processor.piece_to_id(EXTRA_PIECES[extra]))
            found[extra] = number if self._processor.is_control(number) else -1
        self.special = SpecialTokens(pad if pad >= 0 else None, end, **{name: i for name, i in found.items() if i >= 0})

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return cast(list[list[int]], self._processor.encode(list(texts), out_type=int))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.decode([int(i) for i in ids]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(self._processor.id_to_piece(int(i))).replace("\n", "\\n") for i in ids]

    def to_json(self) -> dict[str, Any]:
        model = base64.b64encode(self._model).decode("ascii")
        return {"format": TOKENIZER_FORMAT, "kind": "sentencepiece", "sha256": sha256(self._model), "model": model}


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, as with published weights. Its post-processor may add tokens before a
    text; `ends` are the tokens that end a text, the first one ends documents. With the library's
    `encode_special_tokens`, characters that its model would turn into a special token become the unknown token, or are
    left out if there is none."""

    def __init__(self, library: Any, begin: int | None = None, ends: Sequence[int] = (), content: str = "") -> None:
        """`content` is the file of `library`; "": what the library writes."""
        self.library, self.ends, self.content = library, tuple(ends), content or str(library.to_str())
        self.vocabulary_size = 1 + max(library.get_vocab().values(), default=-1)  # ids may have gaps
        self.special = SpecialTokens(None, self.ends[0] if self.ends else -1, begin)

    @cached_property
    def _reserved(self) -> tuple[frozenset[int], list[int]]:
        """The ids that no text has, and what replaces them."""
        model = json.loads(self.content)["model"]
        given = (self.library.token_to_id(model.get("unk_token") or ""), model.get("unk_id"))
        unknown = [i for i in given if i is not None]
        added = (i for i, token in self.library.get_added_tokens_decoder().items() if token.special)
        return frozenset({*added, *self.ends, *self.special.ids} - {*unknown}), unknown[:1]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, without a final end token."""
        (never, unknown), every = self._reserved, list[list[int]]()
        for found in self.library.encode_batch(list(texts)):
            ids = list(found.ids)
            # `encode_special_tokens` does not help if the model's own vocabulary has the special token.
            if self.library.encode_special_tokens and not never.isdisjoint(ids):
                pairs = zip(ids, found.special_tokens_mask, strict=True)  # 1: by the post-processor
                ids = [each for i, is_added in pairs for each in ([i] if is_added or i not in never else unknown)]
            every.append(ids[:-1] if ids and ids[-1] in self.ends else ids)
        return every

    def decode(self, ids: Sequence[int]) -> str:
        texts = (int(i) for i in ids if i not in self._reserved[0])
        return str(self.library.decode([i for i in texts if self.library.id_to_token(i) is not None]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        from tokenizers import decoders

        names = [self.library.id_to_token(int(i)) or f"<{i}>" for i in ids]
        if '"ByteLevel"' in json.dumps(json.loads(self.content)["decoder"]):  # 'Ġcastle', 'Ċ'
            names = [decoders.ByteLevel().decode([name]) for name in names]
        return [name.replace(" ", "▁").replace("\n", "\\n") for name in names]

    def to_json(self) -> dict[str, Any]:
        own = {"tokenizer": self.content, "begin": self.special.begin, "ends": list(self.ends)}
        return {"format": TOKENIZER_FORMAT, "kind": "library", **own}


def library_of(content: str) -> Any:
    """The library's tokenizer in a tokenizer.json. Raises bare `Exception` for any damage."""
    from tokenizers import Tokenizer as Library

    library = Library.from_str(content)
    library.no_truncation()  # files may enable both
    library.no_padding()
    library.encode_special_tokens = True  # not saved by the library; text never becomes a special token
    return library


def tokenizer_from_json(value: Any) -> Tokenizer:
    """The tokenizer with this `to_json` value. Raises `ValueError` if `value` is not one, or is damaged."""
    if not isinstance(value, dict) or value.get("format") != TOKENIZER_FORMAT:
        raise ValueError(f"it is not a tokenizer of format {TOKENIZER_FORMAT}")
    kind = value.get("kind")
    try:
        if kind == "bytes":
            return ByteTokenizer(value.get("extras", []))
        if kind == "words":
            return WordTokenizer(value["words"])
        if kind == "library":
            content = value["tokenizer"]
            return LibraryTokenizer(library_of(content), value["begin"], value["ends"], content)
        if kind == "sentencepiece":
            model = base64.b64decode(value["model"], validate=True)
            if sha256(model) != value["sha256"]:
                raise ValueError("its model has changed (the hash differs)")
            return SentencePieceTokenizer(model)
    except Exception as error:  # the library raises bare `Exception` for any damage
        raise ValueError(f"its tokenizer is damaged: {error}") from error
    raise ValueError(f"tokenizers of kind {kind!r} are unknown")


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a file of `Tokenizer.save`. Raises `UserError` naming the file if it is missing or damaged."""
    try:
        return tokenizer_from_json(read_json(path))
    except (OSError, ValueError) as error:  # ValueError: includes damaged JSON and UTF-8
        hint = "It is damaged or not written by comt. If it is in the cache, delete it and run the same command again."
        raise UserError(f"cannot read the tokenizer {path}: {error}", if_damaged(hint, error)) from error


# ---- training

TRAINING_CHARACTERS = 20_000_000
"""The part of the train split, from its start, that trains a vocabulary. More text hardly changes it."""
VOCABULARY_VERSION = 2  # version of trained vocabularies, see tests/contract/test_cache_versions.py

TRAINER: dict[str, Any] = {
    "model_type": "unigram",
    # T5's special ids, for one convention everywhere; T5 has no begin token.
    **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "byte_fallback": True,  # characters outside the vocabulary become bytes: nothing is unknown
    # Decoding restores the text exactly: no Unicode folding, no merging of spaces (docstrings contain code).
    **{"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True},
    "user_defined_symbols": ["\n"],  # a separate token; otherwise pieces such as '"))\n' are learned
    "max_sentence_length": 1 << 22,  # the default silently skips texts over 4192 bytes
    "num_threads": 4,  # not the number of cores: partial sums are added in the order of the threads
}
_SLICE, _LONGEST_LINE = 1 << 18, 4096
_PART_OF_LINE = re.compile(rf".{{1,{_LONGEST_LINE}}}\Z|.{{0,{_LONGEST_LINE - 1}}}\s|.{{1,{_LONGEST_LINE}}}", re.DOTALL)
"""Long repetitive lines (100,000 characters) make training take hours. Lines of the user's own text are cut, at white
space if possible, and the fingerprint has a mark for it; those of other corpora are cut at `max_sentence_length`."""
LONG_LINES_CUT = "long lines cut"


def train_sentencepiece(
    texts: Iterable[str],
    vocabulary: int,
    extras: Collection[Extra] = (),
    key: str = "data.vocabulary",
    *,
    own: bool = True,
) -> SentencePieceTokenizer:
    """Train a unigram vocabulary of exactly `vocabulary` pieces (bytes and special tokens included) on the first
    `TRAINING_CHARACTERS` of `texts`; equal texts give equal models, byte for byte. `extras` have the ids from 3 on;
    long lines of `own` text are cut. Raises `UserError` naming the recipe's `key` if no such vocabulary fits."""
    import sentencepiece

    model, options = io.BytesIO(), dict(TRAINER)
    lines = list(_lines(texts, own))  # read first: SentencePiece would replace errors of reading by its own
    if not any(map(str.strip, lines)):
        raise UserError("data.corpus: it has no text to train a vocabulary on", "Look at its files, and at its splits.")
    if "begin" in extras:
        options |= {"bos_id": 3, "bos_piece": EXTRA_PIECES["begin"]}
    if controls := [EXTRA_PIECES[extra] for extra in EXTRA_PIECES if extra in extras and extra != "begin"]:
        options["control_symbols"] = controls
    try:
        options |= {"vocab_size": vocabulary, "minloglevel": 2}  # silence C++ logs; errors are raised as exceptions
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **options)
    except RuntimeError as error:
        hint = f"SentencePiece reports: {error}"
        if found := re.search(r"value <= (\d+)", str(error)):
            hint = f"The corpus is small: set {key} to {found[1]} or less, use more text, or data.tokenizer: bytes."
        elif "required_chars" in str(error) or "smaller than" in str(error):
            hint = f"It must hold the special tokens, 256 bytes and the corpus's characters: set a larger {key}."
        raise UserError(f"{key}: no SentencePiece vocabulary of {vocabulary} pieces fits this corpus", hint) from error
    return SentencePieceTokenizer(model.getvalue())


def _lines(texts: Iterable[str], own: bool) -> Iterator[str]:
    """The lines of the texts up to the training limit, long ones in parts: no piece contains a line break."""
    budget = TRAINING_CHARACTERS
    for text in texts:
        for line in text[:budget].split("\n"):
            cuts = range(0, len(line), _SLICE)
            yield from _PART_OF_LINE.findall(line) if own else (line[start : start + _SLICE] for start in cuts)
        budget -= len(text)
        if budget <= 0:
            return
