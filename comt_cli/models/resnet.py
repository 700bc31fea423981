"""ResNets for image classification (He et al. 2016a): basic and bottleneck blocks, activated after the addition.

How a block joins skip path and branch, and which of its convolutions and norms are modulated, comes from outside
(`ImageWiring`); the stem, the projections of skip paths and the classifier are never modulated.

A bottleneck's stride stands on its 3x3 convolution ("v1.5", as in torchvision), not on the first 1x1 of the paper. The
stem `3x3` (stride 1) is the usual one for 32-pixel images, `7x7` (stride 2, then 3x3 max pooling) that for ImageNet.
Where a block changes the shape, the skip path is projected by a 1x1 convolution with a batch norm (the paper's B).
Shapes: B images, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.kernels.modulation import Modulation
from comt_cli.layers.convolution import BatchNorm, Convolution, ConvolutionNorm
from comt_cli.layers.learned import Classifier
from comt_cli.layers.residual import Junction, PreNorm, ResidualConnection
from comt_cli.methods.base import ImageWiring
from comt_cli.recipe.image_settings import ResNetSettings

EXPANSION = {"basic": 1, "bottleneck": 4, "preact": 1}
"""How many times as many channels a block puts out as its inner convolutions have."""

BLOCK_SITES = {"basic": 2, "bottleneck": 3, "preact": 2}
"""How many convolutions, and norms, a block has."""


class BlockPlace(NamedTuple):
    """Where a block stands: its number from 0, of how many, and its channels and stride."""

    layer: int
    layers: int
    d_in: int
    inner: int
    d_out: int
    stride: int


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


@dataclass(frozen=True)
class Computed:
    """A branch that has been computed: what a connection is handed, since a skip path may be a projection of what the
    branch reads."""

    F_BHWC: Tensor

    def __call__(self, h_BTD: Tensor) -> Tensor:
        return self.F_BHWC

    def before_gate(self, h_BTD: Tensor) -> tuple[Tensor, Modulation] | None:
        """None: there is nothing left to do."""
        return None


class ResidualBlock(nn.Module):
    """What all residual blocks have: the connection, which works on maps with the channels last."""

    connection: ResidualConnection

    @property
    def convolutions(self) -> Mapping[str, Convolution]:
        """The convolutions of the branch by name, `conv1` first."""
        raise NotImplementedError

    @property
    def norms(self) -> Mapping[str, BatchNorm]:
        """The norms of the branch by name, `norm1` first."""
        raise NotImplementedError

    def joined(self, skip_BCHW: Tensor, F_BCHW: Tensor) -> Tensor:
        """What the connection makes of skip path and branch, [B, C, H, W] each."""
        y_BHWC: Tensor = self.connection(skip_BCHW.permute(0, 2, 3, 1), Computed(F_BCHW.permute(0, 2, 3, 1)))
        return y_BHWC.permute(0, 3, 1, 2)


class Block(ResidualBlock):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1, each with its norm; ReLU between them and behind the addition.

    Plain addition is left to the last of them (`ConvolutionNorm`), which may do it on the way; `connection` is then not
    called.
    """

    def __init__(self, place: BlockPlace, windows: tuple[int, ...], wiring: ImageWiring) -> None:
        super().__init__()
        last = len(windows)
        strided = windows.index(3) + 1

        def unit(number: int) -> ConvolutionNorm:
            d_in, d_out = place.inner if number > 1 else place.d_in, place.d_out if number == last else place.inner
            stride = place.stride if number == strided else 1
            gate = wiring.windows.get(f"conv{number}")
            norm = wiring.norms.get(f"norm{number}", BatchNorm)(d_out)
            convolution = Convolution(d_in, d_out, windows[number - 1], stride, gate)
            return ConvolutionNorm(convolution, norm, relu=number < last or self.adds_in_its_last_unit)

        self.connection = wiring.residual(Junction(place.d_out, place.layer, place.layers, "map", nn.Identity))
        self.adds_in_its_last_unit = type(self.connection) is PreNorm
        self.conv1, self.conv2 = unit(1), unit(2)
        self.conv3 = unit(3) if last > 2 else None
        self.shortcut: ConvolutionNorm | None = None
        if place.stride != 1 or place.d_in != place.d_out:
            projection = Convolution(place.d_in, place.d_out, 1, place.stride)
            self.shortcut = ConvolutionNorm(projection, BatchNorm(place.d_out), relu=False)

    @property
    def units(self) -> tuple[ConvolutionNorm, ...]:
        """The convolutions of the branch with their norms, in order."""
        return (self.conv1, self.conv2) if self.conv3 is None else (self.conv1, self.conv2, self.conv3)

    @property
    def convolutions(self) -> Mapping[str, Convolution]:
        return {f"conv{number}": unit.convolution for number, unit in enumerate(self.units, 1)}

    @property
    def norms(self) -> Mapping[str, BatchNorm]:
        return {f"norm{number}": unit.norm for number, unit in enumerate(self.units, 1)}

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W], of this block's output shape."""
        *units, last = self.units
        skip_BCHW = x_BCHW if self.shortcut is None else self.shortcut(x_BCHW)
        for unit in units:
            x_BCHW = unit(x_BCHW)
        if self.adds_in_its_last_unit:
            y_BCHW: Tensor = last(x_BCHW, skip_BCHW)
            return y_BCHW
        return F.relu(self.joined(skip_BCHW, last(x_BCHW)))


WINDOWS = {"basic": (3, 3), "bottleneck": (1, 3, 1)}
"""The windows of a block's convolutions."""


class ResNet(nn.Module):
    """Images [B, 3, H, W] -> logits [B, classes], in the parameters' type."""

    def __init__(self, settings: ResNetSettings, classes: int, wiring: ImageWiring) -> None:
        super().__init__()
        self.settings, self.classes = settings, classes
        shape = settings.shape()
        _refuse_absent_sites(settings, wiring)
        self.stem = self._stem(3 if settings.stem == "3x3" else 7, 1 if settings.stem == "3x3" else 2, shape.width)
        self.pool = nn.Identity() if settings.stem == "3x3" else nn.MaxPool2d(3, 2, 1)
        blocks = [self._block(place, wiring) for place in places_of(settings)]
        self.blocks = nn.ModuleList(blocks)
        width = shape.width * 2 ** (len(shape.blocks) - 1) * EXPANSION[shape.block]
        self.final = self._final(width)
        self.classifier = Classifier(width, classes)

    def _stem(self, window: int, stride: int, width: int) -> nn.Module:
        return ConvolutionNorm(Convolution(3, width, window, stride), BatchNorm(width), relu=True)

    def _block(self, place: BlockPlace, wiring: ImageWiring) -> ResidualBlock:
        return Block(place, WINDOWS[self.settings.shape().block], wiring)

    def _final(self, width: int) -> nn.Module:
        return nn.Identity()

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits, [B, classes]."""
        x_BCHW = self.pool(self.stem(x_BCHW))
        for block in self.blocks:
            x_BCHW = block(x_BCHW)
        logits: Tensor = self.classifier(self.final(x_BCHW).mean(dim=(2, 3)))
        return logits


def _refuse_absent_sites(settings: ResNetSettings, wiring: ImageWiring) -> None:
    """Sites named one by one have to be there; naming all means those that there are."""
    has = BLOCK_SITES[settings.shape().block]
    for sites in (wiring.windows, wiring.norms):
        for site in sites:
            if int(site[-1]) > has and len(sites) < 3:
                kind = site.rstrip("123")
                raise UserError(
                    f"sites: the blocks of {settings.size} have no {site}",
                    f"they have {', '.join(f'{kind}{number}' for number in range(1, has + 1))}",
                )
