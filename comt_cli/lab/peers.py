"""The same networks in other libraries, which are no dependencies of this program: only benchmarks and tests compare
with them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.data.images.pictures import make_torchvision_importable
from comt_cli.data.split import IGNORE
from comt_cli.data.tokenizer import PAD
from comt_cli.errors import UserError
from comt_cli.exchange.huggingface_layout import LAYOUTS
from comt_cli.installing import install_package
from comt_cli.lab.subjects import Shape
from comt_cli.layers.multi_head import sinusoids
from comt_cli.models.build import model_of
from comt_cli.tasks.settings.transformer import TransformerSettings
from comt_cli.training.objective import ClassifierLoss, Objective, compiled, prepare_compiler

END, BEGIN = 1, 2
"""Ids of the tokens that close a text and open a translation, as in our vocabularies."""


Peer = tuple[str, Callable[[Shape], nn.Module], Callable[[nn.Module, float], Objective]]
"""A library's network: the module where it is; what builds that of a shape (`UserError` where the library is not
installed or has no such); its loss, with so much label smoothing."""


def import_peer(module: str) -> ModuleType:
    """A module of another library. Raises `UserError` where it cannot be imported."""
    make_torchvision_importable()  # transformers imports it where it finds one
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError):
        library = module.partition(".")[0]
        packages = ["--upgrade", "torch", library] if library == "torchvision" else [library]
        raise UserError(f"the comparison with {library} needs that library", install_package(*packages)) from None


def transformers_network(family: str, name: str, shape: Shape) -> nn.Module:
    """transformers' network of our plain one of a shape."""
    library = import_peer("transformers")
    ours = model_of(shape.spec({"name": LAYOUTS[family].method}))
    config = LAYOUTS[family].config(ours, shape.dimensions["length"]) | {"use_cache": False}
    model: nn.Module = getattr(library, f"{name}For{'CausalLM' if family == 'llama' else 'MaskedLM'}")(
        getattr(library, f"{name}Config").from_dict(config)
    )
    return model


class TransformersLoss(Objective):
    """(tokens, targets), both [B, T] -> the summed loss, as the library computes it: not smoothed."""

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__(smoothing)
        self.model = model
        self._called: Callable[..., Any] = model

    def compile_model(self, *, keep_others: bool = False, captured: bool = False) -> None:
        prepare_compiler(keep_others=keep_others)
        self._called = compiled(self.model, captured=captured, fullgraph=False)

    def forward(self, *given: Tensor) -> Tensor:
        tokens_BT, targets_BT = given
        # `shift_labels` are targets that stand where they are predicted, as ours do; the loss is their mean
        loss: Tensor = self._called(input_ids=tokens_BT, labels=tokens_BT, shift_labels=targets_BT).loss
        return loss * targets_BT.numel()


class MaskedTransformersLoss(TransformersLoss):
    """(tokens [B, T], places, targets [B, K] each) -> the same, whose labels are the targets at their places."""

    def forward(self, *given: Tensor) -> Tensor:
        tokens_BT, places_BK, targets_BK = given
        labels_BT = torch.full_like(tokens_BT, IGNORE).scatter(1, places_BK, targets_BK)
        loss: Tensor = self._called(input_ids=tokens_BT, attention_mask=tokens_BT != PAD, labels=labels_BT).loss
        return loss * targets_BK.numel()


def torchvision_resnet(shape: Shape) -> nn.Module:
    """torchvision's network of a shape, its stem replaced where the shape's is that for 32-pixel images. Raises
    `UserError` where it has no such network."""
    if "width" in shape.model or "blocks" in shape.model:
        raise UserError("torchvision has no ResNets of other widths and blocks than the published ones")
    build = getattr(import_peer("torchvision.models"), shape.model["size"])
    model: nn.Module = build(num_classes=shape.dimensions["classes"])
    if shape.model["stem"] == "3x3":
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


class TorchTransformer(nn.Module):
    """Sources and targets so far, [B, T] each -> logits, [B, T, V]: our Post-LN encoder-decoder put together from
    torch's layers, with its dropout and one matrix for embeddings and head. Their attention has biases besides."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        built, dimensions, settings = shape.built, shape.dimensions, cast(TransformerSettings, shape.settings.model)
        kinds = (nn.TransformerEncoderLayer, built.encoder_layers), (nn.TransformerDecoderLayer, built.decoder_layers)
        sizes = built.width, built.heads, built.ffn_width, settings.residual_dropout
        more: dict[str, Any] = {"layer_norm_eps": settings.norm_eps, "batch_first": True}
        encoder, decoder = (nn.ModuleList(kind(*sizes, **more) for _ in range(layers)) for kind, layers in kinds)
        for layer in (*encoder, *decoder):  # torch drops out behind the ReLU and on attention's weights too
            layer.dropout.p = settings.relu_dropout
            for part in layer.modules():
                if isinstance(part, nn.MultiheadAttention):
                    part.dropout = settings.attention_dropout
        self.encoder, self.decoder = encoder, decoder
        self.embedding = nn.Embedding(dimensions["vocabulary"], built.width)
        nn.init.normal_(self.embedding.weight, std=built.width**-0.5)
        self.dropout = nn.Dropout(settings.residual_dropout)
        self.register_buffer("positions_TD", sinusoids(dimensions["length"], built.width, self.embedding.weight.data))

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = math.sqrt(self.embedding.embedding_dim) * self.embedding(tokens_BT)
        embedded_BTD: Tensor = self.dropout(x_BTD + self.get_buffer("positions_TD")[: tokens_BT.shape[1]])
        return embedded_BTD

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        is_pad_BS, encoded_BSD = source_BS == PAD, self._embedded(source_BS)
        for layer in self.encoder:
            encoded_BSD = layer(encoded_BSD, src_key_padding_mask=is_pad_BS)
        x_BTD = self._embedded(target_BT)
        later_TT = nn.Transformer.generate_square_subsequent_mask(
            target_BT.shape[1], device=x_BTD.device, dtype=x_BTD.dtype
        )
        for layer in self.decoder:
            x_BTD = layer(x_BTD, encoded_BSD, later_TT, memory_key_padding_mask=is_pad_BS, tgt_is_causal=True)
        return F.linear(x_BTD, self.embedding.weight)


class Marian(nn.Module):
    """The same, as transformers' MarianMTModel: `library` is that model, which also generates."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        library, built, dimensions = import_peer("transformers"), shape.built, shape.dimensions
        settings = cast(TransformerSettings, shape.settings.model)
        config = library.MarianConfig(
            vocab_size=dimensions["vocabulary"],
            d_model=built.width,
            encoder_layers=built.encoder_layers,
            decoder_layers=built.decoder_layers,
            encoder_ffn_dim=built.ffn_width,
            decoder_ffn_dim=built.ffn_width,
            encoder_attention_heads=built.heads,
            decoder_attention_heads=built.heads,
            activation_function="relu",
            dropout=settings.residual_dropout,
            attention_dropout=settings.attention_dropout,
            activation_dropout=settings.relu_dropout,
            scale_embedding=True,
            max_position_embeddings=max(512, dimensions["length"]),
            pad_token_id=PAD,
            eos_token_id=END,
            forced_eos_token_id=None,
            decoder_start_token_id=BEGIN,
        )
        self.library: Any = library.MarianMTModel(config)

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        logits_BTV: Tensor = self.library(
            input_ids=source_BS, attention_mask=source_BS != PAD, decoder_input_ids=target_BT, use_cache=False
        ).logits
        return logits_BTV


class TokensLoss(ClassifierLoss):
    """(the network's inputs, targets [B, T]) -> the summed loss, from the logits of all tokens at once."""

    def forward(self, *given: Tensor) -> Tensor:
        *inputs, targets_BT = given
        return self.loss_of(self.logits(*inputs).flatten(0, 1), targets_BT.flatten(), self.smoothing)


PEERS: dict[str, Peer] = {
    "transformers": ("transformers", partial(transformers_network, "llama", "Llama"), TransformersLoss),
    "torchvision": ("torchvision.models", torchvision_resnet, ClassifierLoss),
    "torch": ("torch", TorchTransformer, TokensLoss),
    "marian": ("transformers", Marian, TokensLoss),
    "bertformaskedlm": ("transformers", partial(transformers_network, "bert", "Bert"), MaskedTransformersLoss),
}
