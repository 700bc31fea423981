"""GGUF files (llama.cpp's format) of LLaMA networks, read through the `gguf` package."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.exchange.gguf_tokenizer import gguf_codec
from comt_cli.exchange.huggingface_layout import context_length
from comt_cli.exchange.huggingface_llama import LAYOUT
from comt_cli.exchange.loaded import LoadedModel, describe
from comt_cli.installing import install_extra

MAGIC = b"GGUF"
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
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
_OPTIONAL = ("num_key_value_heads", "rope_theta", "max_position_embeddings")


def read_gguf(path: Path) -> LoadedModel:
    """Read a LLaMA from a GGUF file of any quantisation that the `gguf` package can undo; weights become fp32.

    Raises:
        UserError: the package is not installed; the file is cut short, foreign, or one part of several; or its
            architecture, an option or its tokenizer is one that comt does not have.
    """
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"{path}: reading GGUF files needs the package gguf", install_extra("gguf"))
    metadata, tensors = _read(path)
    config = config_from(metadata, tensors, str(path))
    settings, vocabulary = LAYOUT.settings_from(config, str(path))
    shape, weights = settings.shape(), {}
    _check_head_width(metadata, shape, str(path))
    for name, array in tensors.items():
        heads = {"attn_q.weight": shape.heads, "attn_k.weight": shape.kv_heads}.get(name.split(".", 2)[-1])
        tensor = torch.from_numpy(array)
        weights[_public_name(name)] = tensor if heads is None else unpermute(tensor, heads)
    model = LAYOUT.join(settings, vocabulary, weights, str(path))
    basename, size = metadata.get("general.basename"), metadata.get("general.size_label")
    return LoadedModel(
        model=model,
        name=f"{basename}-{size}" if basename and size else path.stem,
        description=describe(model),
        codec=gguf_codec(metadata, str(path)),
        context_length=context_length(config),
    )


def config_from(metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]], origin: str) -> dict[str, Any]:
    """Hugging Face configuration of a GGUF file. Raises `UserError` naming what cannot be expressed,
    or is missing."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UserError(f"{origin} holds a network of architecture {architecture!r}", "comt reads llama.")
    if metadata.get("split.count", 1) > 1:
        raise UserError(
            f"{origin} is one of {metadata['split.count']} parts", "Join them first: llama-gguf-split --merge"
        )
    if metadata.get("llama.expert_count", 0):
        raise UserError(f"{origin} is a mixture of experts, which comt's LLaMA is not")
    config = {ours: metadata.get(f"llama.{theirs}") for ours, theirs in _CONFIG.items()}
    if missing := [_CONFIG[key] for key, value in config.items() if value is None and key not in _OPTIONAL]:
        raise UserError(f"{origin} does not say llama.{missing[0]}")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    return {
        "model_type": "llama",
        **{key: value for key, value in config.items() if value is not None},
        "vocab_size": len(tensors.get("token_embd.weight", ())),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_scaling": None if scaling == "none" else {"rope_type": scaling},
    }


def _check_head_width(metadata: Mapping[str, Any], shape: Any, origin: str) -> None:
    head_width = shape.width // shape.heads
    for key in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        if (found := metadata.get(f"llama.{key}", head_width)) != head_width:
            raise UserError(f"{origin}: {key} = {found} is not supported: heads are {head_width} wide")


def unpermute(weight_ND: Tensor, heads: int) -> Tensor:
    """Put the rows of a query or key projection in our order.

    llama.cpp turns neighbouring channels (2i, 2i + 1) of a head together, we channels i and i + E/2: its converter
    moved row (half, i) of every head to (i, half), and this moves it back.
    """
    if weight_ND.ndim != 2 or weight_ND.shape[0] % (2 * heads):
        return weight_ND  # of a wrong shape: `Layout.join` says so by name
    rows, width = weight_ND.shape
    return weight_ND.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def _public_name(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    block, layer, rest = ([*name.split(".", 2), "", ""])[:3]
    known = block == "blk" and rest in _INNER
    return f"model.layers.{layer}.{_INNER[rest]}" if known else name  # `Layout.join` refuses the unknown by name


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Metadata, and every tensor in fp32, [rows, columns]."""
    import gguf

    try:
        with path.open("rb") as handle:
            magic = handle.read(4)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if magic != MAGIC:
        raise UserError(f"{path} is not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
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
