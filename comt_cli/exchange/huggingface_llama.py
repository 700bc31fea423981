"""`config.json`: the settings of a plain LLaMA as `transformers` writes and reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from comt_cli.errors import UserError
from comt_cli.models.llama import Llama
from comt_cli.recipe.settings import MAX_VOCABULARY
from comt_cli.tasks.settings.llama import ModelSettings

ARCHITECTURE = "LlamaForCausalLM"
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "hidden_act": ("silu", "swish"),
    "quantization_config": (None,),
    "partial_rotary_factor": (None, 1.0),
}
"""Options of a configuration that change the network, and the values that our LLaMA has; absent is fine."""


def huggingface_config(model: Llama, context_length: int | None) -> dict[str, Any]:
    """`config.json` of a plain LLaMA. `rope_theta` stands at the top, where every version of transformers reads it."""
    shape, settings = model.shape, model.settings
    config = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "vocab_size": model.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.width // shape.heads,
        "hidden_act": "silu",
        "rms_norm_eps": settings.norm_eps,
        "rope_theta": settings.rope_theta,
        "tie_word_embeddings": settings.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": settings.init_std,
        "torch_dtype": type_name(model),
        # transformers' defaults (1, 2) would point at ids that mean something else in most vocabularies
        "bos_token_id": None,
        "eos_token_id": None,
    }
    # Ours have no limit built in; this is the length the model has seen.
    return config if context_length is None else {**config, "max_position_embeddings": context_length}


def settings_from_config(config: Mapping[str, Any], origin: str) -> tuple[ModelSettings, int]:
    """Our settings and the vocabulary of a `config.json`. Raises `UserError` naming what cannot be expressed."""
    kind, architectures = config.get("model_type"), config.get("architectures") or [ARCHITECTURE]
    if kind != "llama" or architectures != [ARCHITECTURE]:
        raise UserError(f"{origin} describes {architectures} of type {kind!r}", f"comt reads {ARCHITECTURE}, 'llama'.")
    for key, allowed in _UNSUPPORTED.items():
        if key in config and config[key] not in allowed:
            raise UserError(
                f"{origin}: {key} = {json.dumps(config[key])} is not supported", "Our LLaMA has no such part."
            )
    rope = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    for key, options in (("rope_parameters", rope), ("rope_scaling", scaling)):
        if not isinstance(options, dict) or options.get("rope_type", options.get("type", "default")) != "default":
            raise UserError(
                f"{origin}: {key} = {json.dumps(options)} is not supported", "Only unscaled rotary positions."
            )
    try:
        heads = config["num_attention_heads"]
        settings = ModelSettings(
            width=config["hidden_size"],
            ffn_width=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            tied_embeddings=config.get("tie_word_embeddings", False),
            rope_theta=rope.get("rope_theta", config.get("rope_theta", 10000.0)),
            norm_eps=config.get("rms_norm_eps", 1e-6),
        )
        vocabulary = config["vocab_size"]
    except KeyError as error:
        raise UserError(f"{origin} does not say {error.args[0]}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(f"{origin}: {'.'.join(map(str, problem['loc']))} {problem['msg']}") from None
    shape = settings.shape()
    if config.get("head_dim") not in (None, shape.width // shape.heads):
        raise UserError(
            f"{origin}: head_dim = {json.dumps(config['head_dim'])} is not supported",
            f"Ours is hidden_size / num_attention_heads = {shape.width // shape.heads}.",
        )
    if type(vocabulary) is not int or not 1 <= vocabulary <= MAX_VOCABULARY:  # a bool is an int, and no number
        raise UserError(f"{origin}: vocab_size = {json.dumps(vocabulary)} is not a number of tokens")
    return settings, vocabulary


def type_name(model: Llama) -> str:
    """The type that the weights are stored in, `float32` or `bfloat16`."""
    return str(model.embedding.weight.dtype).removeprefix("torch.")
