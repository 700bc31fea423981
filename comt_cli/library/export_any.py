"""Models of every kind as folders for other programs. ResNets with any wiring get one code file, which needs torch and
safetensors. Published BERTs (post-norm, without gates) use transformers' classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comt_cli.data.tokenizer import PAD
from comt_cli.errors import UserError
from comt_cli.exchange.codecs import Files, OwnCodec
from comt_cli.exchange.loaded import Loaded, LoadedClassifier, LoadedImageModel, LoadedMaskedModel, LoadedModel
from comt_cli.layers.projection import Projections
from comt_cli.library.export import Parts, write_folder, write_huggingface
from comt_cli.methods import method_from
from comt_cli.models.bert import SEGMENTS, BertClassifier
from comt_cli.models.build import empty_network

RESNET = "resnet_comt.py"
OUTER = {
    "embedding": "bert.embeddings.word_embeddings",
    "positions": "bert.embeddings.position_embeddings",
    "segments": "bert.embeddings.token_type_embeddings",
    "embedding_norm": "bert.embeddings.LayerNorm",
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head": "cls.predictions",
    "pooler": "bert.pooler.dense",
    "classifier": "classifier",
}
INNER = {"attention_connection.norm": "attention.output.LayerNorm", "mlp_connection.norm": "output.LayerNorm"}
SITES = {
    **{f"{name[0]}_proj": f"attention.self.{name}" for name in ("query", "key", "value")},
    **{"o_proj": "attention.output.dense", "up_proj": "intermediate.dense", "down_proj": "output.dense"},
}
"""Public names of modules outside blocks, of modules in a block, and of its projections."""


def write_model(loaded: Loaded, folder: Path, result: Mapping[str, Any] | None = None) -> list[tuple[Path, str]]:
    """As `write_huggingface`, for a model of any task. Raises `UserError` also if no other program reads the model."""
    match loaded:
        case LoadedModel():
            return write_huggingface(loaded, folder, result)
        case LoadedMaskedModel() | LoadedClassifier():
            return write_bert(loaded, folder, result)
        case LoadedImageModel():
            return write_resnet(loaded, folder, result)
    said = f"{loaded.name} is {loaded.kind()}: no other program reads this encoder-decoder"
    raise UserError(said, "Its checkpoint loads wherever comt is installed.")


def write_resnet(
    loaded: LoadedImageModel, folder: Path, result: Mapping[str, Any] | None = None
) -> list[tuple[Path, str]]:
    """As `write_huggingface`, for an image classifier: `from resnet_comt import load`."""
    parts = Parts(RESNET, loaded.model.modules())
    ends = parts.numbered(dict(loaded.model.named_children()), "")
    config = {
        "architectures": ["ResNet"],
        "num_classes": len(loaded.class_names),
        "label_names": list(loaded.class_names),
        "mean": list(loaded.mean),
        "std": list(loaded.std),
        "input_size": loaded.size,
        "ends": ends,
        "modules": parts.modules,
    }
    files: Files = {RESNET: (parts.code(loaded.description).encode(), "the network")}
    return write_folder(loaded, folder, files, parts.tensors, config, result)


def write_bert(
    loaded: LoadedMaskedModel | LoadedClassifier, folder: Path, result: Mapping[str, Any] | None = None
) -> list[tuple[Path, str]]:
    """As `write_huggingface`, for a BERT with the published network; `UserError` for others. The class is
    BertForMaskedLM or BertForSequenceClassification."""
    model, settings, shape = loaded.model, loaded.model.settings, loaded.model.shape
    classes = model.classifier.weight.shape[0] if isinstance(model, BertClassifier) else None
    wiring = method_from({"name": "post-ln"}).wiring()
    plain = empty_network(settings, wiring, vocabulary=model.vocabulary, **({"classes": classes} if classes else {}))
    if others := {type(part).__name__ for part in model.modules()} - {type(part).__name__ for part in plain.modules()}:
        said = f"BERT's class in transformers has no {' and '.join(sorted(others))}"
        raise UserError(said, "Only post-norm BERTs without gates are exported; the checkpoint needs comt.")
    config = {
        "architectures": ["BertForMaskedLM" if classes is None else "BertForSequenceClassification"],
        "model_type": "bert",
        "vocab_size": model.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "hidden_act": "gelu",
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.attention_dropout,
        "max_position_embeddings": settings.positions,
        "type_vocab_size": SEGMENTS,
        "layer_norm_eps": settings.norm_eps,
        "pad_token_id": PAD,
        "torch_dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
    }
    if isinstance(loaded.codec, OwnCodec):
        config |= {"bos_token_id": loaded.codec.begin_ids[0], "sep_token_id": loaded.codec.close_id}
    if classes is not None:
        config["id2label"] = {str(number): f"LABEL_{number}" for number in range(classes)}
    return write_folder(loaded, folder, Files(), split(model), config, result)


def split(model: Any) -> dict[str, Tensor]:
    """Tensors of a plain BERT under their public names, with the fused projections split by site."""
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        inner = path.split(".", 2)
        if isinstance(module, Projections):
            for key, tensor in module.named_parameters(recurse=False):
                parts = zip(module.sites, torch.split(tensor, module.widths), strict=True)
                at = f"bert.encoder.layer.{inner[1]}"
                found |= {f"{at}.{SITES[site.name]}.{key}": part for site, part in parts}
            continue
        place = OUTER.get(path) if len(inner) < 3 else f"bert.encoder.layer.{inner[1]}.{INNER.get(inner[2])}"
        found |= {f"{place}.{key}": tensor for key, tensor in module.named_parameters(recurse=False)}
    return found
