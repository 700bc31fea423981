"""GGUF files (llama.cpp's format) of LLaMA networks, read through the `gguf` package, with their tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.data.gguf_files import read_gguf_file, tokenizer_in
from comt_cli.errors import UserError
from comt_cli.exchange.huggingface import llama_settings, load_llama, plain_llama, split
from comt_cli.exchange.loaded import LoadedModel

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


def read_gguf(path: Path) -> LoadedModel:
    """Read a LLaMA from a GGUF file of any quantisation that the `gguf` package can undo; weights become fp32. Raises
    `UserError` where the package is missing, the file is damaged, or it holds what comt does not have."""
    metadata, tensors = read_gguf_file(path, tensors=True)
    import gguf

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
    return load_llama(config, weights, str(path), name, tokenizer_in(metadata, str(path)))


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
