"""ResNets for image classification (He et al. 2016a): activated after the addition, or before each convolution (He et
al. 2016b: no norm behind the stem, and a norm and ReLU behind the last block).

How a block joins skip path and branch, and which of its convolutions and norms are modulated, comes from outside
(`Wiring`); the stem, the layers behind the blocks and the classifier are never modulated.

The stem `3x3` (stride 1) is the usual one for 32-pixel images, `7x7` (stride 2, then 3x3 max pooling) ImageNet's.
Shapes: B images, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.convolution import BatchNorm, Convolution, ConvolutionNorm
from comt_cli.layers.learned import Classifier
from comt_cli.methods.base import MAP_SITES, NORMS, Wiring
from comt_cli.models.base import Model, refuse_absent
from comt_cli.models.resnet_blocks import WINDOWS, Block, BlockPlace, NormActivation, PreActBlock
from comt_cli.tasks.settings.resnet import ResNetSettings

SETTINGS = ResNetSettings

EXPANSION = {"basic": 1, "bottleneck": 4, "preact": 1}
"""Ratio of a block's output channels to those of its inner convolutions."""


def places_of(settings: ResNetSettings) -> Iterator[BlockPlace]:
    """Every residual block in order; each stage after the first has twice the channels and half the pixels a side."""
    shape = settings.shape()
    d_in = shape.width
    layer = 0
    for stage, blocks in enumerate(shape.blocks):
        inner = shape.width * 2**stage
        for number in range(blocks):
            d_out = inner * EXPANSION[shape.block]
            yield BlockPlace(layer, sum(shape.blocks), d_in, inner, d_out, 2 if stage and not number else 1)
            d_in, layer = d_out, layer + 1


class ResNet(Model):
    """Images [B, 3, H, W] -> logits [B, classes], in the parameters' type."""

    stream = "maps"

    def __init__(self, settings: ResNetSettings, classes: int, wiring: Wiring, size: int = 1) -> None:
        super().__init__()
        self.settings, self.classes, self.size = settings, classes, size
        shape = settings.shape()
        _refuse_absent_parts(settings, wiring)
        is_preact = shape.block == "preact"
        window, stride = (3, 1) if settings.stem == "3x3" else (7, 2)
        stem = Convolution(3, shape.width, window, stride)
        self.stem = stem if is_preact else ConvolutionNorm(stem, BatchNorm(shape.width), relu=True)
        self.pool = nn.Identity() if settings.stem == "3x3" else nn.MaxPool2d(3, 2, 1)
        kind = PreActBlock if is_preact else Block
        self.blocks = nn.ModuleList(kind(place, WINDOWS[shape.block], wiring) for place in places_of(settings))
        width = shape.width * 2 ** (len(shape.blocks) - 1) * EXPANSION[shape.block]
        self.final = NormActivation(BatchNorm(width)) if is_preact else nn.Identity()
        self.classifier = Classifier(width, classes)

    @property
    def stacks(self) -> Mapping[str, nn.ModuleList]:
        return {"blocks": self.blocks}

    def example(self, samples: int) -> tuple[Tensor]:
        """Images, [B, 3, S, S], S the `size` that the model was built with, with the channels last in memory, as
        training hands them over."""
        images = torch.zeros(samples, 3, self.size, self.size, device="meta")
        return (images.to(memory_format=torch.channels_last),)

    @property
    def largest(self) -> int:
        return self.size**2

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits, [B, classes]."""
        x_BCHW = self.pool(self.stem(x_BCHW))
        for block in self.blocks:
            x_BCHW = block(x_BCHW)
        logits: Tensor = self.classifier(self.final(x_BCHW).mean(dim=(2, 3)))
        return logits


def _refuse_absent_parts(settings: ResNetSettings, wiring: Wiring) -> None:
    """Sites named one by one have to be there; naming all means those that there are."""
    if wiring.entry is not None:
        raise UserError("a ResNet has no place for an entry: it embeds no tokens")
    refuse_absent(wiring.gates, MAP_SITES.names, settings.size)
    refuse_absent(wiring.norms.keys() - {"*"}, NORMS, settings.size)
    has = len(WINDOWS[settings.shape().block])
    for kind in ("conv", "norm"):
        named = [site for site in wiring.gates if site.startswith(kind)]
        if len(named) < 3:
            refuse_absent(named, [f"{kind}{number}" for number in range(1, has + 1)], settings.size)


def build(settings: ResNetSettings, wiring: Wiring, *, classes: int, size: int = 1) -> ResNet:
    """A ResNet over so many classes; `size` is that of its example's images, in pixels a side."""
    return ResNet(settings, classes, wiring, size)
