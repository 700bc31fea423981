"""A tokenizer as the files that a Hugging Face folder carries."""

from __future__ import annotations

import base64
import json
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.exchange.codecs import LibraryCodec, OwnCodec, byte_alphabet
from comt_cli.exchange.loaded import TextCodec

Files = dict[str, tuple[bytes, str]]
"""File name -> (content, a few words for people)."""

_PROBES = (
    "Once upon a time, a king lived in a castle.",
    "def f(x):\n    return x  # twice  as long\n\n\tend",
    "  leading, trailing  ",
    "\nline\r\n",
    "naïve café — “quoted” ½ ﬁ ＡＢ 日本語 🙂 \u200b\u00ad",
    "1234567890 http://example.org/a_b?c=d&e=%20",
)
"""Texts on which a converted tokenizer must agree with the original: words, code, odd spaces, Unicode that
normalisation would change, numbers."""


def tokenizer_files(codec: TextCodec, context_length: int | None) -> tuple[Files, dict[str, int]]:
    """The files, and the special ids for config.json (`eos_token_id` ...), of the tokenizer behind `codec`.

    A SentencePiece model is written as it is, and as tokenizer.json only if that gives the same tokens on every probe
    text: T5's, which normalises, does not convert. Two differences of a tokenizer.json are known: the text '</s>' is
    read as the end-of-text token, and among equally likely ways to cut a run of one symbol ('********') the library
    may take another order of the same pieces.
    """
    if isinstance(codec, LibraryCodec):
        return {"tokenizer.json": (codec.tokenizer.to_str().encode(), "the tokenizer that the model came with")}, {}
    if not isinstance(codec, OwnCodec):
        return {}, {}
    tokenizer, files = codec.tokenizer, Files()
    converted: LibraryTokenizer | None
    if isinstance(tokenizer, ByteTokenizer):
        converted = _bytes_as_bpe(tokenizer)
    else:
        model = base64.b64decode(tokenizer.to_json()["model"])
        files["tokenizer.model"] = (model, "the SentencePiece model")
        converted = _unigram(model)
    if all(converted.encode(text).ids == tokenizer.encode(text) for text in _PROBES):
        if codec.begin_ids:
            converted.post_processor = _surrounding(codec)
        files["tokenizer.json"] = (converted.to_str().encode(), "the same tokenizer for the `tokenizers` library")
        files["tokenizer_config.json"] = (_configuration(codec, context_length), "its special tokens")
    return files, {"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}


def _surrounding(codec: OwnCodec) -> processors.TemplateProcessing:
    """Post-processor that puts the begin token before a text and the end token behind it; of a pair, separators behind
    both texts, of which the second is segment 1."""
    ids = [*codec.begin_ids, codec.close_id]
    begin, end = codec.tokenizer.pieces(ids)
    single = f"{begin} $A {end}"
    return processors.TemplateProcessing(
        single=single,
        pair=f"{single} $B:1 {end}:1" if codec.pairs else "$A:0 $B:1",
        special_tokens=list(zip((begin, end), ids, strict=True)),
    )


def _configuration(codec: OwnCodec, context_length: int | None) -> bytes:
    tokenizer = codec.tokenizer
    pad, end = tokenizer.pieces([tokenizer.pad_id, tokenizer.eos_id])
    values: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad, "eos_token": end}
    special = tokenizer.special
    named = {"cls_token": special.begin, "mask_token": special.mask, "sep_token": special.separator}
    values |= {name: tokenizer.pieces([token])[0] for name, token in named.items() if token is not None}
    if codec.pairs:
        values["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if context_length is not None:
        values["model_max_length"] = context_length
    return (json.dumps(values, indent=2) + "\n").encode()


def _special(text: str) -> AddedToken:
    return AddedToken(text, special=True, normalized=False)


def _bytes_as_bpe(own: ByteTokenizer) -> LibraryTokenizer:
    """Bytes as a byte-level vocabulary without merges: every byte stays a token of its own."""
    special = sorted(own.special.ids)
    names = own.pieces(special)
    vocabulary = dict(zip(names, special, strict=True))
    vocabulary |= {character: 2 + byte for byte, character in byte_alphabet().items()}
    tokenizer = LibraryTokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_special(name) for name in names])
    return tokenizer


def _unigram(model: bytes) -> LibraryTokenizer:
    """A SentencePiece unigram model without normalisation: pieces, scores, '▁' for a space, one put before the text."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(processor.vocab_size())
    scored = [(processor.id_to_piece(i), processor.get_score(i)) for i in ids]
    tokenizer = LibraryTokenizer(models.Unigram(scored, processor.unk_id(), byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(" ", "▁"), normalizers.Prepend("▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace(Regex(r"\A "), ""),
        ]
    )
    special = [processor.id_to_piece(i) for i in ids if processor.is_control(i) or processor.is_unknown(i)]
    tokenizer.add_special_tokens([_special(name) for name in special])
    return tokenizer
