"""The plain BERT as `transformers` writes and reads it; one that was fine-tuned is written alone.

What a checkpoint of pre-training has beside a masked language model (the pooler, the head that tells next sentences) is
left out when it is read, and so are the decoder's matrix and bias, which must be the embedding and the head's bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from comt_cli.data.special_tokens import PAD
from comt_cli.exchange.huggingface_layout import Layout, type_name
from comt_cli.exchange.loaded import LoadedMaskedModel
from comt_cli.layers.residual.norm_placement import PostNorm
from comt_cli.models.bert import INIT_STD, SEGMENTS, Bert, BertClassifier
from comt_cli.tasks.settings.bert import BertSettings

_EMBEDDINGS, _HEAD = "bert.embeddings", "cls.predictions"


def _norm(ours: str, public: str) -> dict[str, str]:
    return {f"{ours}.{kind}": f"{public}.LayerNorm.{kind}" for kind in ("weight", "bias")}


class BertLayout(Layout):
    """BertForMaskedLM, and BertForSequenceClassification of one that was fine-tuned."""

    words: ClassVar = "a BERT"
    ours: ClassVar = "BERT"
    loaded: ClassVar = LoadedMaskedModel
    architectures: ClassVar = ("BertForMaskedLM", "BertForPreTraining")
    method: ClassVar = "post-ln"
    connections: ClassVar = (PostNorm,)
    joined: ClassVar = "post-norm"
    norm: ClassVar = nn.LayerNorm
    norm_words: ClassVar = "LayerNorm"
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
        shape, settings = model.shape, model.settings
        return {
            **_head(model),
            "model_type": "bert",
            "vocab_size": model.vocabulary,
            "hidden_size": shape.width,
            "intermediate_size": shape.ffn_width,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
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
            width=config["hidden_size"],
            ffn_width=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            positions=config["max_position_embeddings"],
            dropout=config.get("hidden_dropout_prob", 0.1),
            attention_dropout=config.get("attention_probs_dropout_prob", 0.1),
            norm_eps=config.get("layer_norm_eps", 1e-12),
        )

    def outer_norms(self, model: Bert | BertClassifier) -> list[nn.Module]:
        return [model.embedding_norm, *([model.head.norm] if isinstance(model, Bert) else [])]

    def weight_name(self, public: str, settings: BertSettings) -> str | None:
        other = ("bert.pooler.", "cls.seq_relationship.", f"{_HEAD}.decoder.", f"{_EMBEDDINGS}.position_ids")
        if public.startswith(other):
            return None
        # The first checkpoints call a norm's gain and shift so.
        return public.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _head(model: Bert | BertClassifier) -> dict[str, Any]:
    """Entries of a configuration for the head on the encoder."""
    if isinstance(model, Bert):
        return {"architectures": ["BertForMaskedLM"]}
    classes = model.classifier.weight.shape[0]
    return {
        "architectures": ["BertForSequenceClassification"],
        "problem_type": "regression" if classes == 1 else "single_label_classification",
        "id2label": {str(number): f"LABEL_{number}" for number in range(classes)},
        "label2id": {f"LABEL_{number}": number for number in range(classes)},
    }


LAYOUT = BertLayout()
