"""Read GGUF files (llama.cpp's format) and their tokenizers with the `gguf` package. Does not import torch."""

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
"""llama.cpp's token types for control and user-defined tokens, which are matched before the text is split."""
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_gguf_file(path: Path, *, tensors: bool) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """The metadata of a GGUF file and, if `tensors`, every tensor in fp32, [rows, columns]. Raises `UserError` if the
    package is missing or the file is damaged."""
    try:
        import gguf
        from gguf.quants import dequantize
    except ImportError:
        raise UserError(f"{path}: reading GGUF files needs the package gguf", install_extra("gguf")) from None

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **orders: Any) -> NDArray[Any]:
            """The package's method, with a check for the file's end: damaged lengths would take for ever."""
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("it was cut off")
            found: NDArray[Any] = super()._get(offset, dtype, count, *order, **orders)
            return found

    try:
        # numpy warns about overflows in damaged files, just before the package fails
        with warnings.catch_warnings(action="ignore"):
            reader = Reader(path)
            every = ((each.name, dequantize(each.data, each.tensor_type)) for each in reader.tensors if tensors)
            numbers = {name: np.array(each, dtype=np.float32) for name, each in every}
            return {name: field.contents() for name, field in reader.fields.items()}, numbers
    except NotImplementedError as error:
        raise UserError(f"{path}: {error}", "Use another quantisation of the model.") from None
    except Exception as error:  # the reader does not check the file: errors can have any type
        raise UserError(f"{path} is not a complete GGUF file: {error}", "Copy it again.") from None


def tokenizer_in(metadata: Mapping[str, Any], origin: str) -> LibraryTokenizer:
    """The tokenizer in `metadata`, which adds a begin token if llama.cpp would. Raises `UserError` if its kind or its
    rule for splitting text is not supported."""
    kind, tokens = metadata.get(f"{_KEY}model"), metadata.get(f"{_KEY}tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{origin} has no token list and cannot read text")
    kinds = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in kinds:
        raise UserError(f"{origin}: tokenizers of kind {kind!r} are not supported", "comt reads gpt2 and llama.")
    try:
        tokenizer, adds_bos = kinds[kind](metadata, tokens, origin)
    except UserError:
        raise
    except Exception as error:  # the library raises bare `Exception`, for instance for a merge without a token
        raise UserError(f"{origin}: its tokenizer is damaged: {error}") from None
    types = metadata.get(f"{_KEY}token_type") or []
    special = [token for token, type_ in zip(tokens, types, strict=False) if type_ in _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    given = [metadata.get(f"{_KEY}{name}_token_id") for name in ("bos", "eos", "eot")]
    bos, *ends = [id_ if isinstance(id_, int) and 0 <= id_ < len(tokens) else None for id_ in given]
    if metadata.get(f"{_KEY}add_bos_token", adds_bos) and bos is not None:
        # As a list, because the template syntax cannot express pieces that contain $ or :.
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"], special_tokens=[(tokens[bos], bos)]
        )
    return LibraryTokenizer(tokenizer, bos, [end for end in ends if end is not None])


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], origin: str) -> tuple[Tokenizer, bool]:
    """A byte-level BPE tokenizer (GPT-2's kind), and whether texts begin with a special token by default."""
    rule = metadata.get(f"{_KEY}pre")
    whole = rule in _LLAMA3_NAMES
    cuts: dict[Any, list[pre_tokenizers.PreTokenizer]] = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
        **{name: [pre_tokenizers.Split(Regex(_LLAMA3), "isolated")] for name in _LLAMA3_NAMES},
    }
    if not isinstance(rule, str) or rule not in cuts:
        raise UserError(f"{origin}: the splitting rule {rule!r} is not supported", f"comt knows {', '.join(cuts)}.")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get(f"{_KEY}merges") or []]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=whole))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not whole)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts[rule], byte_level]) if cuts[rule] else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, whole


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str], origin: str) -> tuple[Tokenizer, bool]:
    """A SentencePiece BPE tokenizer (LLaMA's kind). Scores give the merges: the best piece comes first."""
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
