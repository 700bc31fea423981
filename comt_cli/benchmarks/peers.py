"""The same networks in other libraries, which are no dependencies of this program: only benchmarks and tests compare
with them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.benchmarks.shapes import Shape
from comt_cli.data.images.torchvision_import import make_torchvision_importable
from comt_cli.errors import UserError
from comt_cli.installing import install_package
from comt_cli.training.objective import ClassifierLoss, Objective, prepare_compiler


@dataclass(frozen=True)
class Peer:
    """A library's network: `library` imports it (`UserError` where it is not installed), `network` builds that of a
    shape (`UserError` where it has no such either), `objective` is its loss."""

    library: Callable[[], ModuleType]
    network: Callable[[Shape], nn.Module]
    objective: Callable[[nn.Module], Objective]


def import_peer(module: str, *packages: str) -> ModuleType:
    """A module of another library.

    Raises:
        UserError: it is not installed, or cannot be imported.
    """
    make_torchvision_importable()  # transformers imports it where it finds one
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError):
        library = module.partition(".")[0]
        raise UserError(f"the comparison with {library} needs that library", install_package(*packages)) from None


def import_transformers() -> ModuleType:
    """The transformers library. Raises `UserError` where it is not installed."""
    return import_peer("transformers", "transformers")


def import_torchvision_models() -> ModuleType:
    """torchvision's networks. Raises `UserError` where there is none that can be imported."""
    return import_peer("torchvision.models", "--upgrade", "torch", "torchvision")


def transformers_llama(shape: Shape) -> nn.Module:
    """transformers' LLaMA of a shape. Raises `UserError` without the library."""
    library, built, dimensions = import_transformers(), shape.built, shape.dimensions
    config = library.LlamaConfig(
        vocab_size=dimensions["vocabulary"],
        hidden_size=built.width,
        intermediate_size=built.ffn_width,
        num_hidden_layers=built.layers,
        num_attention_heads=built.heads,
        max_position_embeddings=dimensions["length"],
        use_cache=False,
    )
    model: nn.Module = library.LlamaForCausalLM(config)
    return model


class TransformersLoss(Objective):
    """(tokens, targets), both [B, T] -> the summed loss, as the library computes it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._called: Callable[..., Any] = model

    def compile_model(self, *, keep_others: bool = False) -> None:
        prepare_compiler(keep_others=keep_others)
        self._called = torch.compile(self.model, dynamic=False)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        # `shift_labels` are targets that stand where they are predicted, as ours do; the loss is their mean
        loss: Tensor = self._called(input_ids=tokens_BT, labels=tokens_BT, shift_labels=targets_BT).loss
        return loss * targets_BT.numel()


def torchvision_resnet(shape: Shape) -> nn.Module:
    """torchvision's network of a shape, its stem replaced where the shape's is that for 32-pixel images.

    Raises:
        UserError: there is no torchvision, or it has no such network.
    """
    if "width" in shape.model or "blocks" in shape.model:
        raise UserError("torchvision has no ResNets of other widths and blocks than the published ones")
    build = getattr(import_torchvision_models(), shape.model["size"])
    model: nn.Module = build(num_classes=shape.dimensions["classes"])
    if shape.model["stem"] == "3x3":
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


PEERS = {
    "transformers": Peer(import_transformers, transformers_llama, TransformersLoss),
    "torchvision": Peer(import_torchvision_models, torchvision_resnet, ClassifierLoss),
}
