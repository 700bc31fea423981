"""GGUF files (llama.cpp's format), read through the `gguf` package: what they hold, and their tokenizers. No torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from comt_cli.data.tokenizer import LibraryTokenizer
from comt_cli.errors import UserError
from comt_cli.installing import install_extra

_KEY = "tokenizer.ggml."
_SPECIAL = (3, 4)
"""llama.cpp's token types for control and user-defined tokens: matched before the text is cut."""
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_gguf_file(path: Path, *, tensors: bool) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """The metadata of a GGUF file, and every tensor in fp32, [rows, columns], if `tensors` are wanted. Raises
    `UserError` where the package is missing, or the file is damaged."""
    try:
        import gguf
        from gguf.quants import dequantize
    except ImportError:
        raise UserError(f"{path}: reading GGUF files needs the package gguf", install_extra("gguf")) from None

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **orders: Any) -> NDArray[Any]:
            """As the package's, which reads nothing behind the end: of an array of 2^60 bytes for ever."""
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("it is cut short")
            found: NDArray[Any] = super()._get(offset, dtype, count, *order, **orders)
            return found

    try:
        # numpy warns where numbers of a damaged file overflow, just before the package gives up on it
        with warnings.catch_warnings(action="ignore"):
            reader = Reader(path)
            every = ((each.name, dequantize(each.data, each.tensor_type)) for each in reader.tensors if tensors)
            numbers = {name: np.array(each, dtype=np.float32) for name, each in every}
            return {name: field.contents() for name, field in reader.fields.items()}, numbers
    except NotImplementedError as error:
        raise UserError(f"{path}: {error}", "Use another quantisation of the model.") from None
    except Exception as error:  # the reader trusts the file: whatever is wrong surfaces as any kind of error
        raise UserError(f"{path} is not a whole GGUF file: {error}", "Copy it again.") from None


def tokenizer_in(metadata: Mapping[str, Any], origin: str) -> LibraryTokenizer:
    """The tokenizer that `metadata` describes, adding a beginning-of-text token where llama.cpp would. Raises
    `UserError` where it is of a kind, or cuts text by a rule, that comt does not know."""
    kind, tokens = metadata.get(f"{_KEY}model"), metadata.get(f"{_KEY}tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{origin} holds no token list, so it cannot be fed text")
    kinds = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in kinds:
        raise UserError(f"{origin}: comt cannot read a tokenizer of kind {kind!r}", "It reads gpt2 and llama.")
    try:
        tokenizer, adds_bos = kinds[kind](metadata, tokens, origin)
    except UserError:
        raise
    except Exception as error:  # the library raises bare `Exception`, for instance where a merge makes no token
        raise UserError(f"{origin}: its tokenizer is damaged: {error}") from None
    types = metadata.get(f"{_KEY}token_type") or []
    special = [token for token, type_ in zip(tokens, types, strict=False) if type_ in _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    given = [metadata.get(f"{_KEY}{name}_token_id") for name in ("bos", "eos", "eot")]
    bos, *ends = [id_ if isinstance(id_, int) and 0 <= id_ < len(tokens) else None for id_ in given]
    if metadata.get(f"{_KEY}add_bos_token", adds_bos) and bos is not None:
        # A list is how the library takes a piece whose text has the template's own signs ($, :) in it.
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"], special_tokens=[(tokens[bos], bos)]
        )
    return LibraryTokenizer(tokenizer, bos, [end for end in ends if end is not None])


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], origin: str) -> tuple[Tokenizer, bool]:
    """GPT-2's kind: byte-level BPE with merges; and whether text begins with a special token by default."""
    rule = metadata.get(f"{_KEY}pre")
    whole = rule in _LLAMA3_NAMES
    cuts: dict[Any, list[pre_tokenizers.PreTokenizer]] = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
        **{name: [pre_tokenizers.Split(Regex(_LLAMA3), "isolated")] for name in _LLAMA3_NAMES},
    }
    if not isinstance(rule, str) or rule not in cuts:
        raise UserError(f"{origin}: comt does not know the cutting rule {rule!r}", f"It knows {', '.join(cuts)}.")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get(f"{_KEY}merges") or []]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=whole))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not whole)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts[rule], byte_level]) if cuts[rule] else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, whole


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str], origin: str) -> tuple[Tokenizer, bool]:
    """LLaMA's kind: SentencePiece BPE. It merges the pair whose joint piece scores highest, so the merges follow."""
    scores = metadata.get(f"{_KEY}scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise UserError(f"{origin}: its tokenizer has no score for every token")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [
        (-scores[vocabulary[piece]], vocabulary[piece[:cut]], vocabulary[piece[cut:]], (piece[:cut], piece[cut:]))
        for piece in vocabulary
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    pairs, unknown = [pair for *_, pair in sorted(merges)], tokens[metadata.get(f"{_KEY}unknown_token_id", 0)]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = [normalizers.Prepend("▁")] if metadata.get(f"{_KEY}add_space_prefix", True) else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer, True
