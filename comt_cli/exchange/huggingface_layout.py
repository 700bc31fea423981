"""Layouts of `transformers` by family of models: names of tensors, keys of `config.json`, and what can be expressed;
and the way from its tensors to our fused ones and back."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from comt_cli.data.tokenizer import PAD
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import misfits, problem_of
from comt_cli.exchange.codecs import TextCodec
from comt_cli.exchange.loaded import LoadedMaskedModel, LoadedModel, LoadedText, text_network
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.layers.residual.norm_placement import PostNorm, PreNorm, ScaledInit
from comt_cli.methods import method_from
from comt_cli.models.bert import INIT_STD, SEGMENTS, Bert, BertClassifier
from comt_cli.models.build import empty_network
from comt_cli.models.flops import parameter_count
from comt_cli.models.llama import Llama
from comt_cli.recipe.settings import MAX_VOCABULARY
from comt_cli.tasks.settings.bert import BertSettings
from comt_cli.tasks.settings.llama import ModelSettings

READ_HERE = "comt reads LlamaForCausalLM, and BertForMaskedLM and BertForPreTraining."
_SIZES = {
    "width": "hidden_size",
    "ffn_width": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
}
"""Keys of `config.json` by those of our settings."""


class Layout(ABC):
    """How `transformers` lays out the plain models of one family, which is its `model_type` too.

    Attributes:
        ours: the family's name.
        loaded: the class of a loaded one; `architectures`: the classes of transformers, of which the first is written.
        method: the plain model's; `connections`: what joins its blocks, `joined` in words; `norm`: its norms' class,
            `outer_norms`: where those outside of its blocks are.
        outer: public names of the parameters outside of blocks; `inner`: of those in a block, below `blocks`, a dot and
            its number; `sites`: of the projections there.
        shared: tensors that a checkpoint may hold a second time, and the one of ours whose copy each must be.
        supported: options of a configuration that change the network, and the values that ours has; absent is fine.
    """

    ours: ClassVar[str]
    loaded: ClassVar[type[LoadedText]]
    architectures: ClassVar[tuple[str, ...]]
    method: ClassVar[str]
    connections: ClassVar[tuple[type[ResidualConnection], ...]]
    joined: ClassVar[str]
    norm: ClassVar[type[nn.Module]]
    outer_norms: ClassVar[tuple[str, ...]]
    outer: ClassVar[Mapping[str, str]]
    inner: ClassVar[Mapping[str, str]]
    sites: ClassVar[Mapping[str, str]]
    blocks: ClassVar[str]
    shared: ClassVar[Mapping[str, str]] = {}
    supported: ClassVar[Mapping[str, tuple[Any, ...]]]

    @abstractmethod
    def config(self, model: Any, context_length: int | None) -> dict[str, Any]:
        """`config.json` of a plain model."""

    @abstractmethod
    def settings(self, config: Mapping[str, Any], origin: str) -> Any:
        """Our settings of a `config.json`. Raises `KeyError`, `ValidationError` or `UserError`."""

    @abstractmethod
    def weight_name(self, public: str, settings: Any) -> str | None:
        """A tensor's name as it is written today; None for one that is no weight of such a model."""

    def settings_from(self, config: Mapping[str, Any], origin: str) -> tuple[Any, int]:
        """Our settings and the vocabulary of a `config.json`. Raises `UserError` naming what cannot be expressed."""
        architectures = config.get("architectures") or list(self.architectures[:1])
        if not isinstance(architectures, list) or [one for one in architectures if one not in self.architectures]:
            raise UserError(f"{origin} describes {architectures} of type {config['model_type']!r}", READ_HERE)
        for key, allowed in self.supported.items():
            if key in config and config[key] not in allowed:
                raise _unsupported(origin, key, config[key])
        try:
            settings = self.settings(config, origin)
            vocabulary = config["vocab_size"]
        except KeyError as error:
            raise UserError(f"{origin} does not say {error.args[0]}") from None
        except ValidationError as error:
            raise UserError(f"{origin}: {problem_of(error)}") from None
        if type(vocabulary) is not int or not 1 <= vocabulary <= MAX_VOCABULARY:  # a bool is an int, and no number
            raise UserError(f"{origin}: vocab_size = {json.dumps(vocabulary)} is not a number of tokens")
        return settings, vocabulary

    def split(self, model: Any) -> dict[str, Tensor]:
        """A plain model's tensors under their public names, the fused projections split by site (views, no copies)."""
        return {public: tensor for parts in self._parts(model).values() for public, tensor in parts.items()}

    def load(
        self, config: Mapping[str, Any], given: Mapping[str, Tensor], origin: str, name: str, codec: TextCodec | None
    ) -> LoadedText:
        """The plain model of a configuration that holds the tensors `given` under their public names; their types are
        kept. Raises `UserError` where one is missing, has another shape than the configuration says, has no place in
        this model, or is not the copy of another that it must be; see `settings_from`."""
        settings, vocabulary = self.settings_from(config, origin)
        for copy, original in self.shared.items():
            one, other = given.get(copy), given.get(original)
            if one is None or other is None or (one.shape == other.shape and torch.equal(one.float(), other.float())):
                continue
            raise UserError(f"{origin}: {copy} is not {original}, and our {self.ours} has one tensor for both")
        known = {public: self.weight_name(public, settings) for public in given}
        given = {today: given[public] for public, today in known.items() if today is not None}
        model = empty_network(settings, method_from({"name": self.method}).wiring(), vocabulary=vocabulary)
        if wrong := misfits(given, self.split(model)):
            raise UserError(f"{origin}: its tensors are not those of a {self.ours} of its configuration: {wrong}")
        if whole := next((key for key, tensor in given.items() if not tensor.is_floating_point()), None):
            raise UserError(f"{origin}: {whole} is of {given[whole].dtype}, not of floating-point numbers")
        found = {own: [given[public] for public in parts] for own, parts in self._parts(model).items()}
        state = {own: torch.cat(parts) if len(parts) > 1 else parts[0] for own, parts in found.items()}
        model.load_state_dict(state, assign=True)
        said = f"a plain {self.ours}, {text_network(model)}, {parameter_count(model):,} parameters"
        length = config.get("max_position_embeddings")
        return self.loaded(model, name, said, codec, length if isinstance(length, int) and length > 0 else None)

    def _parts(self, model: Any) -> dict[str, dict[str, Tensor]]:
        """Each of the model's parameters by name: the public tensors it is made of, in the order of its rows."""
        fused = {path: module for path, module in model.named_modules() if isinstance(module, Projections)}
        found = {}
        for name, tensor in model.state_dict().items():
            if name in self.outer:
                found[name] = {self.outer[name]: tensor}
                continue
            _, layer, rest = name.split(".", 2)
            prefix = f"{self.blocks}.{layer}"
            if rest in self.inner:
                found[name] = {f"{prefix}.{self.inner[rest]}": tensor}
            else:
                path, _, kind = name.rpartition(".")  # its weight, or its bias
                rows = zip(fused[path].sites, torch.split(tensor, fused[path].widths), strict=True)
                found[name] = {f"{prefix}.{self.sites[site.name]}.{kind}": part.detach() for site, part in rows}
        return found


def _unsupported(origin: str, key: str, value: Any) -> UserError:
    return UserError(f"{origin}: {key} = {json.dumps(value)} is not supported")


class LlamaLayout(Layout):
    """LlamaForCausalLM. Both use the same layout of rotary channels (i turns with i + E/2): nothing is permuted."""

    ours: ClassVar = "LLaMA"
    loaded: ClassVar = LoadedModel
    architectures: ClassVar = ("LlamaForCausalLM",)
    method: ClassVar = "pre-ln"
    connections: ClassVar = (PreNorm, ScaledInit)  # how a network started is no part of it
    joined: ClassVar = "pre-norm"
    norm: ClassVar = nn.RMSNorm
    outer_norms: ClassVar = ("final_norm",)
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
            "torch_dtype": type_name(model),
            # transformers' defaults (1, 2) would point at ids that mean something else in most vocabularies
            "bos_token_id": None,
            "eos_token_id": None,
        }
        # Ours have no limit built in; this is the length the model has seen.
        return config if context_length is None else {**config, "max_position_embeddings": context_length}

    def settings(self, config: Mapping[str, Any], origin: str) -> ModelSettings:
        rope = config.get("rope_parameters") or {}
        for key in ("rope_parameters", "rope_scaling"):
            options = config.get(key) or {}
            if not isinstance(options, dict) or options.get("rope_type", options.get("type", "default")) != "default":
                raise _unsupported(origin, key, options)
        settings = ModelSettings(
            **{own: config[public] for own, public in _SIZES.items()},
            kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            tied_embeddings=config.get("tie_word_embeddings", False),
            rope_theta=rope.get("rope_theta", config.get("rope_theta", 10000.0)),
            norm_eps=config.get("rms_norm_eps", 1e-6),
        )
        shape = settings.shape()
        if config.get("head_dim") not in (None, shape.width // shape.heads):
            raise _unsupported(origin, "head_dim", config["head_dim"])
        return settings

    def weight_name(self, public: str, settings: ModelSettings) -> str | None:
        if public.endswith("rotary_emb.inv_freq"):  # written by old versions, recomputed by all
            return None
        return None if settings.tied_embeddings and public == "lm_head.weight" else public


_EMBEDDINGS, _HEAD = "bert.embeddings", "cls.predictions"


def _norm(ours: str, public: str) -> dict[str, str]:
    return {f"{ours}.{kind}": f"{public}.LayerNorm.{kind}" for kind in ("weight", "bias")}


class BertLayout(Layout):
    """BertForMaskedLM, and BertForSequenceClassification of one that was fine-tuned, which is written alone. What a
    checkpoint of pre-training has besides (pooler, next-sentence head) is left out, and so are the decoder's matrix and
    bias, which must be the embedding and the head's bias."""

    ours: ClassVar = "BERT"
    loaded: ClassVar = LoadedMaskedModel
    architectures: ClassVar = ("BertForMaskedLM", "BertForPreTraining")
    method: ClassVar = "post-ln"
    connections: ClassVar = (PostNorm,)
    joined: ClassVar = "post-norm"
    norm: ClassVar = nn.LayerNorm
    outer_norms: ClassVar = ("embedding_norm", "head.norm")
    outer: ClassVar = {
        "embedding.weight": f"{_EMBEDDINGS}.word_embeddings.weight",
        "positions.weight": f"{_EMBEDDINGS}.position_embeddings.weight",
        "segments.weight": f"{_EMBEDDINGS}.token_type_embeddings.weight",
        **_norm("embedding_norm", _EMBEDDINGS),
        "head.dense.weight": f"{_HEAD}.transform.dense.weight",
        "head.dense.bias": f"{_HEAD}.transform.dense.bias",
        **_norm("head.norm", f"{_HEAD}.transform"),
        "head.bias": f"{_HEAD}.bias",
        "pooler.weight": "bert.pooler.dense.weight",
        "pooler.bias": "bert.pooler.dense.bias",
        "classifier.weight": "classifier.weight",
        "classifier.bias": "classifier.bias",
    }
    inner: ClassVar = _norm("attention_connection.norm", "attention.output") | _norm("mlp_connection.norm", "output")
    sites: ClassVar = {
        "q_proj": "attention.self.query",
        "k_proj": "attention.self.key",
        "v_proj": "attention.self.value",
        "o_proj": "attention.output.dense",
        "up_proj": "intermediate.dense",
        "down_proj": "output.dense",
    }
    blocks: ClassVar = "bert.encoder.layer"
    shared: ClassVar = {
        f"{_HEAD}.decoder.weight": f"{_EMBEDDINGS}.word_embeddings.weight",
        f"{_HEAD}.decoder.bias": f"{_HEAD}.bias",
    }
    supported: ClassVar = {
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute",),
        "type_vocab_size": (SEGMENTS,),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
        "pad_token_id": (PAD,),
        "quantization_config": (None,),
    }

    def config(self, model: Bert | BertClassifier, context_length: int | None) -> dict[str, Any]:
        settings = model.settings
        head: dict[str, Any] = {"architectures": ["BertForMaskedLM"]}
        if isinstance(model, BertClassifier):
            classes = range(model.classifier.weight.shape[0])
            head = {
                "architectures": ["BertForSequenceClassification"],
                "problem_type": "regression" if len(classes) == 1 else "single_label_classification",
                "id2label": {str(number): f"LABEL_{number}" for number in classes},
                "label2id": {f"LABEL_{number}": number for number in classes},
            }
        return {
            **head,
            "model_type": "bert",
            "vocab_size": model.vocabulary,
            **{public: getattr(model.shape, own) for own, public in _SIZES.items()},
            "max_position_embeddings": settings.positions,
            "type_vocab_size": SEGMENTS,
            "hidden_act": "gelu",
            "hidden_dropout_prob": settings.dropout,
            "attention_probs_dropout_prob": settings.attention_dropout,
            "layer_norm_eps": settings.norm_eps,
            "position_embedding_type": "absolute",
            "initializer_range": INIT_STD,
            "tie_word_embeddings": True,
            "pad_token_id": PAD,
            "torch_dtype": type_name(model),
        }

    def settings(self, config: Mapping[str, Any], origin: str) -> BertSettings:
        return BertSettings(
            **{own: config[public] for own, public in _SIZES.items()},
            positions=config["max_position_embeddings"],
            dropout=config.get("hidden_dropout_prob", 0.1),
            attention_dropout=config.get("attention_probs_dropout_prob", 0.1),
            norm_eps=config.get("layer_norm_eps", 1e-12),
        )

    def weight_name(self, public: str, settings: BertSettings) -> str | None:
        other = ("bert.pooler.", "cls.seq_relationship.", f"{_HEAD}.decoder.", f"{_EMBEDDINGS}.position_ids")
        if public.startswith(other):
            return None
        # The first checkpoints call a norm's gain and shift so.
        return public.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


LAYOUTS: Mapping[str, Layout] = {"llama": LlamaLayout(), "bert": BertLayout()}
"""By family of models."""


def type_name(model: Any) -> str:
    """The type that the weights are stored in, `float32` or `bfloat16`."""
    return str(model.embedding.weight.dtype).removeprefix("torch.")
