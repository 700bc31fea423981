"""Pre-activation ResNets (He et al. 2016b): norm and ReLU before each convolution, nothing behind the addition.

The two-layer block: norm1, ReLU, conv1, norm2, ReLU, conv2. As in the authors' code (KaimingHe/resnet-1k-layers), a
block that changes the shape activates once for both paths, and its skip path is a bare 1x1 convolution of that; and as
in the paper's appendix, so does the first block, whose skip path is then its activated input, and a norm and ReLU stand
behind the last block.
Shapes: B images, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.convolution import BatchNorm, Convolution, ConvolutionNorm
from comt_cli.layers.residual import Junction
from comt_cli.methods.base import ImageWiring
from comt_cli.models.resnet import BlockPlace, ResidualBlock, ResNet


class NormActivation(nn.Module):
    """ReLU(N(x)), [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, norm: BatchNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return F.relu(self.norm(x_BCHW))


class PreActBlock(ResidualBlock):
    """Two 3x3 convolutions, each behind a norm and ReLU. `conv1` holds norm2, which follows it."""

    def __init__(self, place: BlockPlace, wiring: ImageWiring) -> None:
        super().__init__()

        def norm(name: str, width: int) -> BatchNorm:
            return wiring.norms.get(name, BatchNorm)(width)

        first = Convolution(place.d_in, place.inner, 3, place.stride, wiring.windows.get("conv1"))
        self.norm1 = NormActivation(norm("norm1", place.d_in))
        self.conv1 = ConvolutionNorm(first, norm("norm2", place.inner), relu=True)
        self.conv2 = Convolution(place.inner, place.d_out, 3, 1, wiring.windows.get("conv2"))
        changes = place.stride != 1 or place.d_in != place.d_out
        self.shortcut = Convolution(place.d_in, place.d_out, 1, place.stride) if changes else None
        self.activates_both = changes or place.layer == 0
        self.connection = wiring.residual(Junction(place.d_out, place.layer, place.layers, "map", nn.Identity))

    @property
    def convolutions(self) -> Mapping[str, Convolution]:
        return {"conv1": self.conv1.convolution, "conv2": self.conv2}

    @property
    def norms(self) -> Mapping[str, BatchNorm]:
        return {"norm1": self.norm1.norm, "norm2": self.conv1.norm}

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W], of this block's output shape."""
        h_BCHW = self.norm1(x_BCHW)
        skip_BCHW = h_BCHW if self.activates_both else x_BCHW
        if self.shortcut is not None:
            skip_BCHW = self.shortcut(skip_BCHW)
        return self.joined(skip_BCHW, self.conv2(self.conv1(h_BCHW)))


class PreActResNet(ResNet):
    """Images [B, 3, H, W] -> logits [B, classes]."""

    def _stem(self, window: int, stride: int, width: int) -> nn.Module:
        return Convolution(3, width, window, stride)

    def _block(self, place: BlockPlace, wiring: ImageWiring) -> ResidualBlock:
        return PreActBlock(place, wiring)

    def _final(self, width: int) -> nn.Module:
        return NormActivation(BatchNorm(width))
