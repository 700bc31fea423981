"""Plain LLaMAs as folders in Hugging Face's layout: names of tensors, keys of `config.json`, what can be expressed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor

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

READ_HERE = "comt reads LlamaForCausalLM."
_SIZES = {
    "width": "hidden_size",
    "ffn_width": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
}
"""Keys of `config.json` by those of our settings."""
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
"""Public names of parameters outside of blocks; of those in a block, below its number; and of the projections there."""
_LLAMA_OPTIONS = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "hidden_act": ("silu", "swish"),
    "quantization_config": (None,),
    "partial_rotary_factor": (None, 1.0),
}
"""Options of a configuration that change the network, and the values that ours has; absent is fine."""


def plain_llama(settings: ModelSettings, vocabulary: int) -> Llama:
    """A LLaMA without gates or other connections, on the meta device."""
    return empty_network(settings, method_from({"name": "pre-ln"}).wiring(), vocabulary=vocabulary)


def split(model: Llama) -> dict[str, Tensor]:
    """A plain model's tensors under their public names, the fused projections split by site (views, no copies)."""
    return {public: tensor for parts in _parts(model).values() for public, tensor in parts.items()}


def _parts(model: Llama) -> dict[str, dict[str, Tensor]]:
    """Each of the model's parameters by name: the public tensors it is made of, in the order of its rows. Both programs
    use the same layout of rotary channels (i turns with i + E/2): nothing is permuted."""
    fused = {path: module for path, module in model.named_modules() if isinstance(module, Projections)}
    found = {}
    for name, tensor in model.state_dict().items():
        if name in OUTER:
            found[name] = {OUTER[name]: tensor}
            continue
        _, layer, rest = name.split(".", 2)
        prefix = f"model.layers.{layer}"
        if rest in INNER:
            found[name] = {f"{prefix}.{INNER[rest]}": tensor}
        else:
            path = name.removesuffix(".weight")
            rows = zip(fused[path].sites, torch.split(tensor, fused[path].widths), strict=True)
            found[name] = {f"{prefix}.{SITES[site.name]}.weight": part.detach() for site, part in rows}
    return found


def is_plain_llama(model: Llama) -> bool:
    """Whether LLaMA's own class in transformers expresses a model: pre-norm, without gates or other parts."""
    plain = plain_llama(model.settings, model.vocabulary)
    # How a network started is no part of it.
    return {type(part) for part in model.modules()} <= {type(part) for part in plain.modules()} | {ScaledInit}


def llama_config(model: Llama, context_length: int | None) -> dict[str, Any]:
    """`config.json` of a plain model that was trained on texts of a length. `rope_theta` is at the top, where every
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
        # transformers' defaults (1, 2) would point at ids that mean something else in most vocabularies
        "bos_token_id": None,
        "eos_token_id": None,
    }
    # Ours have no limit built in; this is the length the model has seen.
    return config if context_length is None else {**config, "max_position_embeddings": context_length}


# ---- folders


def read_huggingface(folder: Path, name: str | None = None) -> LoadedModel:
    """Read a LLaMA from a folder with config.json, model.safetensors (one or several files) and tokenizer.json. `name`
    replaces the folder's. Raises `UserError` where a file is missing, damaged, or of another architecture, or an option
    is one that our models lack."""
    config = read_object(folder / CONFIG)
    if config.get("model_type") != "llama":
        said = f"describes {config.get('architectures')} of type {config.get('model_type')!r}"
        raise UserError(f"{folder / CONFIG} {said}", READ_HERE)
    return load_llama(
        config, weights_in(folder), str(folder), name or folder.resolve().name, folder_tokenizer(folder, config)
    )


def load_llama(
    config: Mapping[str, Any], given: Mapping[str, Tensor], origin: str, name: str, tokenizer: LibraryTokenizer | None
) -> LoadedModel:
    """The plain LLaMA of a `config.json` that holds the tensors `given` under their public names; their types are kept.
    Raises `UserError` where a tensor does not fit the configuration, or as `llama_settings`."""
    settings, vocabulary = llama_settings(config, origin)
    given = {
        public: tensor
        for public, tensor in given.items()
        # Old versions write what all recompute.
        if not public.endswith("rotary_emb.inv_freq") and not (settings.tied_embeddings and public == "lm_head.weight")
    }
    model = plain_llama(settings, vocabulary)
    if wrong := misfits(given, split(model)):
        raise UserError(f"{origin}: its tensors are not those of a LLaMA of its configuration: {wrong}")
    if whole := next((key for key, tensor in given.items() if not tensor.is_floating_point()), None):
        raise UserError(f"{origin}: {whole} is of {given[whole].dtype}, not of floating-point numbers")
    state = {own: torch.cat([given[public] for public in parts]) for own, parts in _parts(model).items()}
    model.load_state_dict(state, assign=True)
    said = f"a plain LLaMA, {text_network(model)}, {parameter_count(model):,} parameters"
    length = config.get("max_position_embeddings")
    codec = None if tokenizer is None else LibraryCodec(tokenizer)
    return LoadedModel(model, name, said, codec, length if isinstance(length, int) and length > 0 else None)


def llama_settings(config: Mapping[str, Any], origin: str) -> tuple[ModelSettings, int]:
    """Our settings and the vocabulary of a `config.json`. Raises `UserError` naming what cannot be expressed."""
    architectures = config.get("architectures") or ["LlamaForCausalLM"]
    if architectures != ["LlamaForCausalLM"]:
        raise UserError(f"{origin} describes {architectures} of type {config['model_type']!r}", READ_HERE)
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
        raise UserError(f"{origin} does not say {error.args[0]}") from None
    except ValidationError as error:
        raise UserError(f"{origin}: {problem_of(error)}") from None
    if config.get("head_dim") not in (None, shape.width // shape.heads):
        refused.append("head_dim")
    if refused:
        raise UserError(f"{origin}: {refused[0]} = {json.dumps(config[refused[0]])} is not supported")
    if type(vocabulary) is not int or not 1 <= vocabulary <= MAX_VOCABULARY:  # a bool is an int, and no number
        raise UserError(f"{origin}: vocab_size = {json.dumps(vocabulary)} is not a number of tokens")
    return settings, vocabulary


def weights_in(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, from its one file or from those that its index names."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors.update(safetensors.torch.load_file(path))
        except FileNotFoundError:
            raise UserError(f"{folder} lacks {path.name}, which its index names") from None
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{path} is not a whole safetensors file: {error}", "Copy it again.") from None
    return tensors
