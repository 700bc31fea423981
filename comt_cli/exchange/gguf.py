"""GGUF files (llama.cpp's format) of LLaMA networks, read through the `gguf` package, with their tokenizers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.exchange.codecs import LibraryCodec
from comt_cli.exchange.huggingface import llama_settings, load_llama, plain_llama, split
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.installing import install_extra

_CONFIG = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "num_key_value_heads": "attention.head_count_kv",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
}
"""The first five must be there."""
_KEY = "tokenizer.ggml."
_SPECIAL = (3, 4)
"""llama.cpp's token types for control and user-defined tokens: matched before the text is cut."""
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_gguf(path: Path) -> LoadedModel:
    """Read a LLaMA from a GGUF file of any quantisation that the `gguf` package can undo; weights become fp32. Raises
    `UserError` where the package is missing, the file is damaged, or it holds what comt does not have."""
    try:
        import gguf
    except ImportError:
        raise UserError(f"{path}: reading GGUF files needs the package gguf", install_extra("gguf")) from None
    metadata, tensors = _read(path)
    config = _config(metadata, tensors, str(path))
    settings, vocabulary = llama_settings(config, str(path))
    shape, weights = settings.shape(), {}
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape.layers)
    public = {theirs.get_name(name, (".weight",)): name for name in split(plain_llama(settings, vocabulary))}
    head_width = shape.width // shape.heads
    for key in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        if (found := metadata.get(f"llama.{key}", head_width)) != head_width:
            raise UserError(f"{path}: {key} = {found} is not supported: heads are {head_width} wide")
    for name, array in tensors.items():
        heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(name.removesuffix(".weight").rpartition(".")[2])
        tensor = torch.from_numpy(array)
        # What has no public name is refused by its own.
        weights[public.get(name, name)] = tensor if heads is None else _unpermuted(tensor, heads)
    basename, size = metadata.get("general.basename"), metadata.get("general.size_label")
    name = f"{basename}-{size}" if basename and size else path.stem
    return load_llama(config, weights, str(path), name, _codec(metadata, str(path)))


def _config(metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]], origin: str) -> dict[str, Any]:
    """Hugging Face configuration of a GGUF file. Raises `UserError` naming what cannot be expressed, or is missing."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UserError(f"{origin} holds a network of architecture {architecture!r}", "comt reads llama.")
    if metadata.get("split.count", 1) > 1:
        raise UserError(f"{origin} is one of several parts", "Join them first: llama-gguf-split --merge")
    if metadata.get("llama.expert_count", 0):
        raise UserError(f"{origin} is a mixture of experts, which comt's LLaMA is not")
    config = {ours: metadata.get(f"llama.{theirs}") for ours, theirs in _CONFIG.items()}
    if missing := [_CONFIG[key] for key in list(_CONFIG)[:5] if config[key] is None]:
        raise UserError(f"{origin} does not say llama.{missing[0]}")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    return {
        "model_type": "llama",
        **{key: value for key, value in config.items() if value is not None},
        "vocab_size": len(tensors.get("token_embd.weight", ())),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_scaling": None if scaling == "none" else {"rope_type": scaling},
    }


def _unpermuted(weight_ND: Tensor, heads: int) -> Tensor:
    """The rows of a query or key projection in our order. llama.cpp turns neighbouring channels (2i, 2i + 1) of a head
    together, we channels i and i + E/2: its converter moved row (half, i) to (i, half), and this moves it back."""
    if weight_ND.ndim != 2 or weight_ND.shape[0] % (2 * heads):
        return weight_ND  # of a wrong shape: `load_llama` says so by name
    rows, width = weight_ND.shape
    return weight_ND.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Metadata, and every tensor in fp32, [rows, columns]."""
    import gguf

    try:
        # numpy warns where numbers of a damaged file overflow, just before the package gives up on it
        with warnings.catch_warnings(action="ignore"):
            reader = gguf.GGUFReader(path)
            metadata = {name: field.contents() for name, field in reader.fields.items()}
            tensors = {
                tensor.name: np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
                for tensor in reader.tensors
            }
    except NotImplementedError as error:
        raise UserError(f"{path}: {error}", "Use another quantisation of the model.") from None
    except Exception as error:  # the reader trusts the file: whatever is wrong surfaces as any kind of error
        raise UserError(f"{path} is not a whole GGUF file: {error}", "Copy it again.") from None
    return metadata, tensors


def _codec(metadata: Mapping[str, Any], origin: str) -> LibraryCodec:
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
    return LibraryCodec(tokenizer, bos, [end for end in ends if end is not None])


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
