"""Tokenizers of models as `TextCodec`: comt's own and those of the `tokenizers` library; and the tokenizer files of
Hugging Face folders."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Protocol

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from comt_cli.data.tokenizer import ByteTokenizer, LibraryTokenizer, Tokenizer

Files = dict[str, tuple[bytes, str]]
"""File name -> (content, short description)."""

_PROBES = (
    "Once upon a time, a king lived in a castle.",
    "def f(x):\n    return x  # twice  as long\n\n\tend",
    "  leading, trailing  ",
    "\nline\r\n",
    "naïve café — “quoted” ½ ﬁ ＡＢ 日本語 🙂 \u200b\u00ad",
    "1234567890 http://example.org/a_b?c=d&e=%20",
)
"""Texts for which a converted tokenizer must give the original's tokens: words, code, odd spaces, Unicode that
normalisation would change, numbers."""


class TextCodec(Protocol):
    """Converts text to the token ids of a model's training, and back. `end_ids` are the tokens that end a text."""

    tokenizer: Tokenizer
    end_ids: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """The ids of a whole text, with the special tokens at its beginning and end."""

    def prompt(self, text: str) -> list[int]:
        """The ids of a text to be continued: those of `encode` without the tokens that end a text. For an empty text
        the token after which texts begin; [] if there is none."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, without special and unknown tokens; bytes that are not UTF-8 become U+FFFD."""
        return self.tokenizer.decode([i for i in ids if 0 <= i < self.tokenizer.vocabulary_size])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        r"""The piece of each id: '▁castle' begins with a space, '</s>' ends a text, '\\n' is a line break."""
        return self.tokenizer.pieces(ids)


class OwnCodec(TextCodec):
    """A tokenizer of comt, with texts as in training: an optional begin token, the text, and the end token. Models of
    one text or two (`pairs`) have a separator after each text instead."""

    def __init__(self, tokenizer: Tokenizer, *, begins: bool = False, pairs: bool = False) -> None:
        """Raises `ValueError` if the tokenizer lacks a begin token or a separator that it needs."""
        self.tokenizer = tokenizer
        self.begin_ids = [tokenizer.special.need("begin")] if begins or pairs else []
        self.close_id = tokenizer.special.need("separator") if pairs else tokenizer.special.end
        self.end_ids = frozenset([tokenizer.special.end])

    def encode(self, text: str) -> list[int]:
        return [*self.begin_ids, *self.tokenizer.encode(text), self.close_id]

    def prompt(self, text: str) -> list[int]:
        # In training, a text begins after the end of the one before.
        return self.encode(text)[:-1] or [self.tokenizer.special.end]


class LibraryCodec(TextCodec):
    """A `tokenizer.json`, with the special tokens that its post-processor adds."""

    tokenizer: LibraryTokenizer

    def __init__(self, tokenizer: LibraryTokenizer) -> None:
        self.tokenizer, self.end_ids = tokenizer, frozenset(tokenizer.ends)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.library.encode(text).ids)

    def prompt(self, text: str) -> list[int]:
        ids, bare = self.encode(text), list(self.tokenizer.library.encode(text, add_special_tokens=False).ids)
        if bare:  # keep the post-processor's tokens before the text, not those after it
            before = next((n for n in range(len(ids) - len(bare) + 1) if ids[n : n + len(bare)] == bare), 0)
            return ids[: before + len(bare)]
        # The special tokens of an empty text. If that is only an end token, the next text begins after it.
        begins, begin = [i for i in ids if i not in self.end_ids], self.tokenizer.special.begin
        return begins or ids[:1] or ([begin] if begin is not None else sorted(self.end_ids)[:1])


def byte_alphabet() -> dict[int, str]:
    """The printable character of each byte in byte-level vocabularies (GPT-2's)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def tokenizer_files(codec: TextCodec, context_length: int | None) -> tuple[Files, dict[str, Any]]:
    """The tokenizer files of `codec`, and the special ids for config.json (`eos_token_id` ...).

    A SentencePiece model is written unchanged, and as tokenizer.json only if that gives the same tokens for every probe
    text: T5's, which normalises, does not convert. In a tokenizer.json, the text '</s>' becomes the end token, and
    repetitions of one symbol ('********') may be split into the same pieces in another order.
    """
    tokenizer, files = codec.tokenizer, Files()
    if isinstance(tokenizer, LibraryTokenizer):
        content = tokenizer.library.to_str().encode()
        begin, ends = tokenizer.special.begin, list(tokenizer.ends)
        special = {"bos_token_id": begin, "eos_token_id": ends[0] if len(ends) == 1 else ends or None}
        ids = {"bos_token": begin, "eos_token": ends[0] if ends else None}
        named = {key: tokenizer.library.id_to_token(own) for key, own in ids.items() if own is not None}
        files["tokenizer.json"] = content, "the tokenizer that the model came with"
        files["tokenizer_config.json"] = _configuration(named), "its special tokens"
        return files, special
    if isinstance(tokenizer, ByteTokenizer):
        converted = _bytes_as_bpe(tokenizer)
    else:
        model = base64.b64decode(tokenizer.to_json()["model"])
        files["tokenizer.model"] = (model, "the SentencePiece model")
        converted = _unigram(model)
    if all(converted.encode(text).ids == tokenizer.encode(text) for text in _PROBES):
        named_ids = {"pad_token": tokenizer.special.pad, "eos_token": tokenizer.special.end}
        values: dict[str, Any] = {key: tokenizer.pieces([i])[0] for key, i in named_ids.items() if i is not None}
        if context_length is not None:
            values["model_max_length"] = context_length
        files["tokenizer.json"] = (converted.to_str().encode(), "the same tokenizer for the `tokenizers` library")
        files["tokenizer_config.json"] = (_configuration(values), "its special tokens")
    return files, {"eos_token_id": tokenizer.special.end, "pad_token_id": tokenizer.special.pad}


def _configuration(values: dict[str, Any]) -> bytes:
    return (json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **values}, indent=2) + "\n").encode()


def _bytes_as_bpe(own: ByteTokenizer) -> Library:
    """Bytes as a byte-level vocabulary without merges: every byte is one token."""
    special = sorted(own.special.ids)
    names = own.pieces(special)
    vocabulary = dict(zip(names, special, strict=True))
    vocabulary |= {character: 2 + byte for byte, character in byte_alphabet().items()}
    tokenizer = Library(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


def _unigram(model: bytes) -> Library:
    """A SentencePiece unigram model without normalisation: pieces, scores, '▁' for spaces and before the text."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(processor.vocab_size())
    scored = [(processor.id_to_piece(i), processor.get_score(i)) for i in ids]
    tokenizer = Library(models.Unigram(scored, processor.unk_id(), byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(" ", "▁"), normalizers.Prepend("▁")])
    strip = decoders.Replace(Regex(r"\A "), "")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    special = [processor.id_to_piece(i) for i in ids if processor.is_control(i) or processor.is_unknown(i)]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer
