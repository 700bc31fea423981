"""ResNets for image classification (He et al. 2016a), with activation after the addition or before each convolution (He
et al. 2016b: no norm after the stem, a norm and ReLU after the last block).

The stride of a bottleneck is in its 3x3 convolution ("v1.5", as in torchvision), not in its first 1x1 as in the paper.
Where a block changes the shape, a 1x1 convolution with a batch norm projects the skip path (the paper's B). The stem
`3x3` (stride 1) is the usual one for 32-pixel images; `7x7` (stride 2, then 3x3 max pooling) is ImageNet's. The stem,
projections of the skip path, layers after the blocks and the classifier never have gates.
Shapes: B images, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.convolution import EPSILON, BatchNorm, Convolution, ConvolutionNorm, batch_norm
from comt_cli.layers.learned import Classifier
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.methods.base import Wiring
from comt_cli.models.base import BlockParts, Model, refuse_absent
from comt_cli.tasks.base import MAP_SITES, NORMS
from comt_cli.tasks.settings.images import ResNetSettings

WINDOWS = {"basic": (3, 3), "bottleneck": (1, 3, 1), "preact": (3, 3)}
"""Windows of a block's convolutions."""

EXPANSION = {"basic": 1, "bottleneck": 4, "preact": 1}
"""Ratio of a block's output channels to those of its inner convolutions."""


class BlockPlace(NamedTuple):
    """Position of a block, its number from 0 and the number of blocks, and its channels and stride."""

    layer: int
    layers: int
    d_in: int
    inner: int
    d_out: int
    stride: int

    @property
    def changes_shape(self) -> bool:
        return self.stride != 1 or self.d_in != self.d_out


class ResidualBlock(nn.Module):
    """Base of residual blocks: the connection, which uses maps with the channels last, and the branch's `convolutions`
    (`conv1` first) and `norms` (`norm1` first), which are its sites."""

    connection: ResidualConnection

    def __init__(self, place: BlockPlace, wiring: Wiring) -> None:
        super().__init__()
        self.parts = BlockParts(
            wiring=wiring, stack="blocks", layer=place.layer, layers=place.layers, width=place.d_out, parts=("map",),
            norm=batch_norm, epsilon=EPSILON,
        )  # fmt: skip
        self.convolutions: dict[str, Convolution] = {}
        self.norms: dict[str, nn.Module] = {}

    def convolution(self, name: str, d_in: int, d_out: int, window: int, stride: int = 1) -> Convolution:
        """New convolution of the branch, with its gate if it has one."""
        gate = self.parts.gate(self.parts.site(name, d_in, d_out, window=window, stride=stride))
        made = self.convolutions[name] = Convolution(d_in, d_out, window, stride, gate)
        return made

    def norm(self, name: str, width: int) -> nn.Module:
        """New norm of the branch, with its gate if it has one."""
        gate = self.parts.gate(self.parts.site(name, width, width))
        made = self.norms[name] = self.parts.norm_at(name, width, gate)
        return made

    def joined(self, skip_BCHW: Tensor, F_BCHW: Tensor) -> Tensor:
        """Residual add of skip path and branch, [B, C, H, W] each. The branch is computed before, because the skip path
        may be a projection of the branch's input."""
        y_BHWC: Tensor = self.connection(skip_BCHW.permute(0, 2, 3, 1), lambda _: F_BCHW.permute(0, 2, 3, 1))
        return y_BHWC.permute(0, 3, 1, 2)


class Block(ResidualBlock):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1, each with its norm; ReLU between them and after the addition. The last
    convolution (`ConvolutionNorm`) computes a plain addition itself, and `connection` is then not called."""

    def __init__(self, place: BlockPlace, windows: tuple[int, ...], wiring: Wiring) -> None:
        super().__init__(place, wiring)
        last = len(windows)
        strided = windows.index(3) + 1

        def unit(number: int) -> ConvolutionNorm:
            d_in, d_out = place.inner if number > 1 else place.d_in, place.d_out if number == last else place.inner
            stride = place.stride if number == strided else 1
            convolution = self.convolution(f"conv{number}", d_in, d_out, windows[number - 1], stride)
            norm = self.norm(f"norm{number}", d_out)
            return ConvolutionNorm(convolution, norm, relu=number < last or self.adds_in_its_last_unit)

        self.connection = self.parts.connection("map", norm=nn.Identity)
        self.adds_in_its_last_unit = type(self.connection) is PreNorm
        self.conv1, self.conv2 = unit(1), unit(2)
        self.conv3 = unit(3) if last > 2 else None
        self.shortcut: ConvolutionNorm | None = None
        if place.changes_shape:
            projection = Convolution(place.d_in, place.d_out, 1, place.stride)
            self.shortcut = ConvolutionNorm(projection, BatchNorm(place.d_out), relu=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        # With plain addition: relu(shortcut(x) + F(x)), F = norm(conv(relu(norm(conv(x))))).
        *units, last = [unit for unit in (self.conv1, self.conv2, self.conv3) if unit is not None]
        skip_BCHW = x_BCHW if self.shortcut is None else self.shortcut(x_BCHW)
        for unit in units:
            x_BCHW = unit(x_BCHW)
        if self.adds_in_its_last_unit:
            return last(x_BCHW, skip_BCHW)
        return F.relu(self.joined(skip_BCHW, last(x_BCHW)))


class NormActivation(nn.Module):
    """ReLU(N(x)), [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return F.relu(self.norm(x_BCHW))


class PreActBlock(ResidualBlock):
    """Two 3x3 convolutions, each after a norm and ReLU, and nothing after the addition. `conv1` holds norm2, which
    follows it. As in the authors' code (KaimingHe/resnet-1k-layers), a block that changes the shape activates once for
    both paths and has a plain 1x1 convolution on the skip path. So does the first block, as in the paper's appendix."""

    def __init__(self, place: BlockPlace, windows: tuple[int, ...], wiring: Wiring) -> None:
        super().__init__(place, wiring)
        first = self.convolution("conv1", place.d_in, place.inner, windows[0], place.stride)
        self.norm1 = NormActivation(self.norm("norm1", place.d_in))
        self.conv1 = ConvolutionNorm(first, self.norm("norm2", place.inner), relu=True)
        self.conv2 = self.convolution("conv2", place.inner, place.d_out, windows[1])
        self.shortcut = Convolution(place.d_in, place.d_out, 1, place.stride) if place.changes_shape else None
        self.activates_both = place.changes_shape or place.layer == 0
        self.connection = self.parts.connection("map", norm=nn.Identity)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        # With plain addition: x + F(x), F = conv(relu(norm(conv(relu(norm(x)))))).
        h_BCHW = self.norm1(x_BCHW)
        skip_BCHW = h_BCHW if self.activates_both else x_BCHW
        if self.shortcut is not None:
            skip_BCHW = self.shortcut(skip_BCHW)
        return self.joined(skip_BCHW, self.conv2(self.conv1(h_BCHW)))


def places_of(settings: ResNetSettings) -> Iterator[BlockPlace]:
    """Every residual block in order. Each stage after the first has twice the channels and half the pixels per side."""
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

    stream, stacked = "maps", {"blocks": "blocks"}

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

    def example(self, samples: int) -> tuple[Tensor]:
        """Images, [B, 3, S, S], S the `size` that the model was built with, channels last in memory as in training."""
        images = torch.zeros(samples, 3, self.size, self.size, device="meta")
        return (images.to(memory_format=torch.channels_last),)

    @property
    def largest(self) -> int:
        return self.size**2

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = self.pool(self.stem(x_BCHW))
        for block in self.blocks:
            x_BCHW = block(x_BCHW)
        return self.classifier(self.final(x_BCHW).mean(dim=(2, 3)))


def _refuse_absent_parts(settings: ResNetSettings, wiring: Wiring) -> None:
    """Sites named individually must exist; naming all sites means the existing ones."""
    if wiring.entry is not None:
        raise UserError("a ResNet cannot have an entry: it embeds no tokens")
    has = len(WINDOWS[settings.shape().block])
    offered = [*MAP_SITES.names]
    for kind in ("conv", "norm"):
        if sum(site.startswith(kind) for site in wiring.gates) < 3:
            offered = [site for site in offered if not (site.startswith(kind) and int(site[-1]) > has)]
    refuse_absent(wiring, offered, NORMS, settings.size)


SETTINGS, build = ResNetSettings, ResNet
