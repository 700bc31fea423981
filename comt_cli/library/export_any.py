"""Models of every kind as folders for other programs; ResNets of any wiring have one file of code, which needs torch
and safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.exchange.codecs import Files
from comt_cli.exchange.loaded import Loaded, LoadedClassifier, LoadedImageModel, LoadedMaskedModel, LoadedModel
from comt_cli.library.export import Parts, refuse_used, write_folder, write_huggingface
from comt_cli.library.export_bert import write_bert

RESNET = "resnet_comt.py"


def write_model(loaded: Loaded, folder: Path, result: Mapping[str, Any] | None = None) -> list[tuple[Path, str]]:
    """As `write_huggingface`, of a model of any task. Raises `UserError` also for one of a kind that none reads."""
    match loaded:
        case LoadedModel():
            return write_huggingface(loaded, folder, result)
        case LoadedMaskedModel() | LoadedClassifier():
            return write_bert(loaded, folder, result)
        case LoadedImageModel():
            return write_resnet(loaded, folder, result)
    said = f"{loaded.name} is {loaded.kind()}: no other program reads an encoder-decoder like ours"
    raise UserError(said, "The checkpoint itself loads wherever comt is.")


def write_resnet(
    loaded: LoadedImageModel, folder: Path, result: Mapping[str, Any] | None = None
) -> list[tuple[Path, str]]:
    """As `write_huggingface`, of an image classifier: `from resnet_comt import load`."""
    refuse_used(folder)
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
