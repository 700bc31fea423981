"""The plain LLaMA as `transformers` writes and reads it.

Both use the same layout of rotary channels (i turns with i + E/2), so that nothing is permuted, only split and joined.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from comt_cli.errors import UserError
from comt_cli.exchange.huggingface_layout import Layout, type_name
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.layers.residual.norm_placement import PreNorm, ScaledInit
from comt_cli.models.llama import Llama
from comt_cli.tasks.settings.llama import ModelSettings


class LlamaLayout(Layout):
    """LlamaForCausalLM."""

    words: ClassVar = "a LLaMA"
    ours: ClassVar = "LLaMA"
    loaded: ClassVar = LoadedModel
    architectures: ClassVar = ("LlamaForCausalLM",)
    method: ClassVar = "pre-ln"
    connections: ClassVar = (PreNorm, ScaledInit)  # how a network started is no part of it
    joined: ClassVar = "pre-norm"
    norm: ClassVar = nn.RMSNorm
    norm_words: ClassVar = "RMSNorm"
    outer: ClassVar = {
        "embedding.weight": "model.embed_tokens.weight",
        "final_norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    }
    inner: ClassVar = {
        "attention_connection.norm.weight": "input_layernorm.weight",
        "mlp_connection.norm.weight": "post_attention_layernorm.weight",
    }
    sites: ClassVar = {
        **{site: f"self_attn.{site}" for site in ("q_proj", "k_proj", "v_proj", "o_proj")},
        **{site: f"mlp.{site}" for site in ("gate_proj", "up_proj", "down_proj")},
    }
    blocks: ClassVar = "model.layers"
    supported: ClassVar = {
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "hidden_act": ("silu", "swish"),
        "quantization_config": (None,),
        "partial_rotary_factor": (None, 1.0),
    }

    def config(self, model: Llama, context_length: int | None) -> dict[str, Any]:
        """`rope_theta` is at the top, where every version of transformers reads it."""
        shape, settings = model.shape, model.settings
        config = {
            "architectures": list(self.architectures),
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

    def settings(self, config: Mapping[str, Any], origin: str) -> ModelSettings:
        rope = config.get("rope_parameters") or {}
        scaling = config.get("rope_scaling") or {}
        for key, options in (("rope_parameters", rope), ("rope_scaling", scaling)):
            if not isinstance(options, dict) or options.get("rope_type", options.get("type", "default")) != "default":
                raise UserError(
                    f"{origin}: {key} = {json.dumps(options)} is not supported", "Only unscaled rotary positions."
                )
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
        shape = settings.shape()
        if config.get("head_dim") not in (None, shape.width // shape.heads):
            raise UserError(
                f"{origin}: head_dim = {json.dumps(config['head_dim'])} is not supported",
                f"Ours is hidden_size / num_attention_heads = {shape.width // shape.heads}.",
            )
        return settings

    def outer_norms(self, model: Llama) -> list[nn.Module]:
        return [model.final_norm]

    def weight_name(self, public: str, settings: ModelSettings) -> str | None:
        if public.endswith("rotary_emb.inv_freq"):  # written by old versions, recomputed by all
            return None
        return None if settings.tied_embeddings and public == "lm_head.weight" else public


LAYOUT = LlamaLayout()
