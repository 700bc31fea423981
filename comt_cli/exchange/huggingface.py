"""Plain LLaMAs in files of other programs: Hugging Face folders (tensor names, keys of `config.json`) and GGUF files
(llama.cpp's)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from comt_cli.data.gguf_files import read_gguf_file, tokenizer_in
from comt_cli.data.published import CONFIG, folder_tokenizer, read_object, weight_files
from comt_cli.data.tokenizer import LibraryTokenizer
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import misfits, problem_of
from comt_cli.exchange.codecs import LibraryCodec
from comt_cli.exchange.loaded import LoadedModel, text_network
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.norm_placement import ScaledInit
from comt_cli.methods import method_from
from comt_cli.models.build import empty_network
from comt_cli.models.flops import parameter_count
from comt_cli.models.llama import Llama
from comt_cli.recipe.settings import MAX_VOCABULARY
from comt_cli.tasks.settings.language import ModelSettings

_SIZES = {
    "width": "hidden_size",
    "ffn_width": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
}
"""Names of our settings -> keys of `config.json`."""
OUTER = {
    "embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
INNER = {
    "attention_connection.norm.weight": "input_layernorm.weight",
    "mlp_connection.norm.weight": "post_attention_layernorm.weight",
}
SITES = {
    **{site: f"self_attn.{site}" for site in ("q_proj", "k_proj", "v_proj", "o_proj")},
    **{site: f"mlp.{site}" for site in ("gate_proj", "up_proj", "down_proj")},
}
"""Public names of parameters outside blocks, in a block after its number, and of a block's projections."""
_LLAMA_OPTIONS = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "hidden_act": ("silu", "swish"),
    "quantization_config": (None,),
    "partial_rotary_factor": (None, 1.0),
}
"""Options of `config.json` that change the network, with the values that ours supports; they may be absent."""


def plain_llama(settings: ModelSettings, vocabulary: int) -> Llama:
    """A LLaMA without gates and with plain residual connections, on the meta device."""
    return empty_network(settings, method_from({"name": "pre-ln"}).wiring(), vocabulary=vocabulary)


def split(model: Llama) -> dict[str, Tensor]:
    """A plain model's tensors by public name, with fused projections split by site (views, not copies). Both programs
    order rotary channels alike (i is rotated with i + E/2), so nothing is permuted."""
    found = {OUTER[name]: tensor for name, tensor in model.state_dict().items() if name in OUTER}
    for layer, block in enumerate(model.blocks):
        inner: dict[str, Tensor] = {public: block.get_parameter(own) for own, public in INNER.items()}
        for projections in (module for module in block.modules() if isinstance(module, Projections)):
            inner |= {f"{SITES[site]}.weight": weight for site, weight in projections.site_weights().items()}
        found |= {f"model.layers.{layer}.{public}": tensor.detach() for public, tensor in inner.items()}
    return found


def is_plain_llama(model: Llama) -> bool:
    """Whether transformers' LLaMA class can represent a model: pre-norm, without gates or other parts."""
    plain = plain_llama(model.settings, model.vocabulary)
    # The scale of the initialisation does not matter after training.
    return {type(part) for part in model.modules()} <= {type(part) for part in plain.modules()} | {ScaledInit}


def llama_config(model: Llama, context_length: int | None) -> dict[str, Any]:
    """`config.json` of a plain model, trained on texts of a length. `rope_theta` is at the top level, where every
    version of transformers reads it."""
    shape, settings = model.shape, model.settings
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocabulary,
        **{public: getattr(shape, own) for own, public in _SIZES.items()},
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.width // shape.heads,
        "hidden_act": "silu",
        "rms_norm_eps": settings.norm_eps,
        "rope_theta": settings.rope_theta,
        "tie_word_embeddings": settings.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": settings.init_std,
        "torch_dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
        # transformers' defaults (1, 2) are other tokens in most vocabularies
        "bos_token_id": None,
        "eos_token_id": None,
    }
    # Our models have no built-in limit; this is the length in training.
    return config if context_length is None else {**config, "max_position_embeddings": context_length}


# ---- folders


def read_huggingface(folder: Path, name: str | None = None) -> LoadedModel:
    """Read a LLaMA from a folder with config.json, model.safetensors (one or several files) and tokenizer.json. `name`
    replaces the folder's name. Raises `UserError` if a file is missing, damaged, or of another architecture, or has an
    option that our models lack."""
    config = read_object(folder / CONFIG)
    llama_settings(config, str(folder))  # report an unsupported architecture before missing weights
    own = name or folder.resolve().name
    return load_llama(config, weights_in(folder), str(folder), own, folder_tokenizer(folder, config))


def load_llama(
    config: Mapping[str, Any], given: Mapping[str, Tensor], origin: str, name: str, tokenizer: LibraryTokenizer | None
) -> LoadedModel:
    """The plain LLaMA of a `config.json` with the tensors `given` by public name. Raises `UserError` if a tensor does
    not fit the configuration, or as `llama_settings` does."""
    settings, vocabulary = llama_settings(config, origin)
    given = {
        public: tensor
        for public, tensor in given.items()
        # Old versions store rotary frequencies, which are recomputed.
        if not public.endswith("rotary_emb.inv_freq") and not (settings.tied_embeddings and public == "lm_head.weight")
    }
    model = plain_llama(settings, vocabulary)
    fill(model, given, split, origin)
    said = f"a plain LLaMA, {text_network(model)}, {parameter_count(model):,} parameters"
    length = config.get("max_position_embeddings")
    codec = None if tokenizer is None else LibraryCodec(tokenizer)
    return LoadedModel(model, name, said, codec, length if isinstance(length, int) and length > 0 else None)


def fill(model: Any, given: Mapping[str, Tensor], public: Callable[[Any], Mapping[str, Tensor]], origin: str) -> None:
    """Fill a model on the meta device with the tensors `given` by `public` names, in their type (fp32 if they have
    several). Raises `UserError` if one is missing, unexpected, of another shape, or not floating-point."""
    wrong = misfits(given, public(model))
    if wrong or not all(tensor.is_floating_point() for tensor in given.values()):
        said = wrong or "some are not floating-point numbers"
        raise UserError(f"{origin}: its tensors do not fit its config: {said}")
    kinds = {tensor.dtype for tensor in given.values()}
    model.to(kinds.pop() if len(kinds) == 1 else torch.float32).to_empty(device="cpu")
    with torch.no_grad():
        for name, tensor in public(model).items():
            tensor.copy_(given[name])


def llama_settings(config: Mapping[str, Any], origin: str) -> tuple[ModelSettings, int]:
    """Our settings and the vocabulary size of a `config.json`. Raises `UserError` naming an unsupported option."""
    kind, architectures = config.get("model_type"), config.get("architectures") or ["LlamaForCausalLM"]
    if kind != "llama" or architectures != ["LlamaForCausalLM"]:
        raise UserError(f"{origin} describes {architectures} of type {kind!r}", "comt reads LlamaForCausalLM.")
    refused = [key for key, allowed in _LLAMA_OPTIONS.items() if key in config and config[key] not in allowed]
    for key in ("rope_parameters", "rope_scaling"):
        options = config.get(key) or {}
        if not isinstance(options, dict) or options.get("rope_type", options.get("type", "default")) != "default":
            refused.append(key)
    rope = config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0)) if not refused else 10000.0
    try:
        settings = ModelSettings(
            **{own: config[public] for own, public in _SIZES.items()},
            kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            tied_embeddings=config.get("tie_word_embeddings", False),
            rope_theta=theta,
            norm_eps=config.get("rms_norm_eps", 1e-6),
        )
        shape, vocabulary = settings.shape(), config["vocab_size"]
    except KeyError as error:
        raise UserError(f"{origin} has no key {error.args[0]}") from None
    except ValidationError as error:
        raise UserError(f"{origin}: {problem_of(error)}") from None
    if config.get("head_dim") not in (None, shape.width // shape.heads):
        refused.append("head_dim")
    if refused:
        raise UserError(f"{origin}: {refused[0]} = {json.dumps(config[refused[0]])} is not supported")
    if type(vocabulary) is not int or not 1 <= vocabulary <= MAX_VOCABULARY:  # a bool is an int too
        raise UserError(f"{origin}: vocab_size = {json.dumps(vocabulary)} is not a number of tokens")
    return settings, vocabulary


def weights_in(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, from its one file or the files of its index."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors.update(safetensors.torch.load_file(path))
        except FileNotFoundError:
            raise UserError(f"{folder} has no {path.name}, which its index names") from None
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{path} is not a complete safetensors file: {error}", "Copy it again.") from None
    return tensors


# ---- GGUF

_GGUF_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "num_key_value_heads": "attention.head_count_kv",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
}
"""The first five are required."""


def read_gguf(path: Path) -> LoadedModel:
    """Read a LLaMA from a GGUF file of any quantisation that the `gguf` package can undo; weights become fp32. Raises
    `UserError` if the package is missing, the file is damaged, or its network is unsupported."""
    metadata, tensors = read_gguf_file(path, tensors=True)
    import gguf

    config = _config_of(metadata, tensors, str(path))
    settings, vocabulary = llama_settings(config, str(path))
    shape, weights = settings.shape(), {}
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape.layers)
    public = {theirs.get_name(name, (".weight",)): name for name in split(plain_llama(settings, vocabulary))}
    head_width = shape.width // shape.heads
    for key in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        if (found := metadata.get(f"llama.{key}", head_width)) != head_width:
            raise UserError(f"{path}: {key} = {found} is not supported; it should be the heads' width, {head_width}")
    for name, array in tensors.items():
        heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(name.removesuffix(".weight").rpartition(".")[2])
        tensor = torch.from_numpy(array)
        # A tensor without a public name is reported by its own name.
        weights[public.get(name, name)] = tensor if heads is None else _unpermuted(tensor, heads)
    basename, size = metadata.get("general.basename"), metadata.get("general.size_label")
    name = f"{basename}-{size}" if basename and size else path.stem
    return load_llama(config, weights, str(path), name, tokenizer_in(metadata, str(path)))


def _config_of(metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]], origin: str) -> dict[str, Any]:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UserError(f"{origin} holds a network of architecture {architecture!r}", "comt reads llama.")
    if metadata.get("split.count", 1) > 1:
        raise UserError(f"{origin} is one of several parts", "Join them first: llama-gguf-split --merge")
    if metadata.get("llama.expert_count", 0):
        raise UserError(f"{origin} is a mixture of experts", "comt reads dense LLaMAs.")
    config = {ours: metadata.get(f"llama.{theirs}") for ours, theirs in _GGUF_KEYS.items()}
    if missing := [_GGUF_KEYS[key] for key in list(_GGUF_KEYS)[:5] if config[key] is None]:
        raise UserError(f"{origin} has no key llama.{missing[0]}")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    return {
        "model_type": "llama",
        **{key: value for key, value in config.items() if value is not None},
        "vocab_size": len(tensors.get("token_embd.weight", ())),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_scaling": None if scaling == "none" else {"rope_type": scaling},
    }


def _unpermuted(weight_ND: Tensor, heads: int) -> Tensor:
    """The rows of a query or key projection in our order. llama.cpp rotates neighbouring channels (2i, 2i + 1) of a
    head together, we channels i and i + E/2: its converter moved row (half, i) to (i, half), and this reverses it."""
    if weight_ND.ndim != 2 or weight_ND.shape[0] % (2 * heads):
        return weight_ND  # of a wrong shape, which `load_llama` reports by name
    rows, width = weight_ND.shape
    return weight_ND.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)
