"""What a training step of a ResNet should cost on an H200 (`roofline`).

A `pass` is one read or one write of a convolution's output, [P, C] in bf16. Of a convolution with the batch norm,
addition and ReLU behind it:

    forward    the convolution; one pass for the statistics; one in and one out to apply them (one more: what is added)
    backward   the gradient, the output (where ReLU follows) and the product, read once for the sums and once for the
               product's gradient, which is written (and the gradient of what was added); two more convolutions

Beyond this plain step the designs add

    eager               every gate its own operations. Sliding window: forward one pass over the convolution's input and
                        two over its output, backward six over its output. Pixel: forward five, backward eight
    fused               the gate in the passes that are there. Sliding window: filters filled up to a multiple of 8 in
                        the convolution, and u, read in every pass over the product. Pixel: nothing
    fused-whole-tiles   the same, with convolutions whose arithmetic grows by whole tiles of 64 filters

Not modelled: launch gaps (which decide at a batch of 64), throttling, kernels below the memory's full speed,
convolutions below the device's full speed except through `efficiency`, augmentation, and what the modulators cost under
the compiler alone. Shapes: P pixels of all images behind a convolution, C channels.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from comt_cli.benchmarks.llama_roofline import BYTES_PER_SECOND, FLOPS_PER_SECOND, Ratios
from comt_cli.benchmarks.shapes import Shape
from comt_cli.layers.convolution import ConvolutionNorm
from comt_cli.models.build import model_of
from comt_cli.models.flops import parameter_count
from comt_cli.models.resnet_blocks import Block

METHODS = ("window", "pixel")
DESIGNS = ("eager", "fused", "fused-whole-tiles")
EXTENT = "shape"
SAID = (
    "From bytes and FLOPs on paper: 4.3 TB/s, 790 TFLOP/s dense bf16, nothing measured. `eager`: every gate",
    "its own operations; `fused`: the gate in the passes that a fused batch norm makes anyway, a sliding",
    "window's filters in the convolution, filled up to a multiple of 8; `fused-whole-tiles`: it grows by",
    "whole tiles of 64 filters instead. Not modelled: launch gaps (which decide at a batch of 64), throttling,",
    "kernels below the memory's full speed, augmentation. A shape ends in classes, images and their width:",
    "c10-b512x32.",
)
_RATIO = 64
_ALIGNMENT = 8
_TILE = 64
_OPTIMISER_BYTES = 26
"""A weight: SGD reads it, its gradient and its momentum and writes two of them, in fp32; autocast makes a bf16 copy."""


@dataclass(frozen=True)
class Unit:
    """A convolution with its norm: pixels (of one image) and channels before and behind it, its window, and whether
    something is added, ReLU follows, and a modulator belongs there."""

    pixels_in: int
    d_in: int
    pixels: int
    d_out: int
    window: int
    adds: bool
    relu: bool
    modulated: bool


@dataclass(frozen=True)
class ResNetRoofline:
    """One network on one batch. `efficiency`: the part of full speed that convolutions reach."""

    units: tuple[Unit, ...]
    parameters: int
    batch: int
    efficiency: float = 1.0

    def passes(self, pixels: int, channels: float, count: float) -> float:
        """Seconds of `count` passes over [P, channels], P pixels of every image."""
        return count * 2 * self.batch * pixels * channels / BYTES_PER_SECOND

    def convolution(self, unit: Unit, filters: float, tile: int = 1) -> float:
        """Seconds of a convolution with so many filters, and of either of its two gradients: each moves and multiplies
        as much. Its arithmetic is that of whole tiles."""
        whole = math.ceil(filters / tile) * tile
        arithmetic = 2 * self.batch * unit.pixels * unit.d_in * unit.window**2 * whole
        moved = self.passes(unit.pixels_in, unit.d_in, 1) + self.passes(unit.pixels, filters, 1)
        return max(arithmetic / (FLOPS_PER_SECOND * self.efficiency), moved)

    def plain(self) -> Ratios:
        """Seconds of the step and of the forward pass without modulators, everything fused that can be."""
        forward = backward = 0.0
        for number, unit in enumerate(self.units):
            product = self.convolution(unit, unit.d_out)
            forward += product + self.passes(unit.pixels, unit.d_out, 3 + unit.adds)
            backward += (1 if number == 0 else 2) * product  # the images need no gradient
            backward += self.passes(unit.pixels, unit.d_out, 2 * (2 + unit.relu) + 1 + unit.adds)
        last = self.units[-1]
        pooling = self.passes(last.pixels, last.d_out, 1)
        optimiser = self.parameters * _OPTIMISER_BYTES / BYTES_PER_SECOND
        return forward + backward + 2 * pooling + optimiser, forward + pooling

    def added(self, method: str, design: str) -> tuple[float, float]:
        """Seconds that the modulators add to the step, and those of them in the forward pass."""
        forward = backward = 0.0
        for unit in self.units:
            if not unit.modulated:
                continue
            out = functools.partial(self.passes, unit.pixels, unit.d_out)
            if design == "eager" and method == "window":
                forward += self.passes(unit.pixels_in, unit.d_in, 1) + out(2)
                backward += out(6)
            elif design == "eager":
                forward += out(5)
                backward += out(8)
            elif method == "window":
                hidden = max(1, unit.d_in // _RATIO)
                filters = math.ceil((unit.d_out + hidden) / _ALIGNMENT) * _ALIGNMENT
                tile = _TILE if design == "fused-whole-tiles" else 1
                grown = self.convolution(unit, filters, tile) - self.convolution(unit, unit.d_out, tile)
                u = self.passes(unit.pixels, hidden, 2)
                forward += grown + u
                backward += 2 * grown + u
        return forward + backward, forward

    def ratios(self, method: str, design: str) -> Ratios | None:
        """Of the step and of the forward pass with modulators to the plain ones; None for tiles of a pixel modulator,
        which has no filters."""
        if (method, design) == ("pixel", "fused-whole-tiles"):
            return None
        (step, forward), (more, more_forward) = self.plain(), self.added(method, design)
        return 1 + more / step, 1 + more_forward / forward


def roofline_of(shape: Shape, efficiency: float = 1.0) -> ResNetRoofline:
    """The network of a shape, observed while one image runs through it without storage."""
    model = model_of(shape.spec({"name": "addition"})).eval()
    blocks = (block for stack in model.stacks.values() for block in stack)
    in_blocks = {id(unit) for block in blocks if isinstance(block, Block) for unit in block.units}
    units: list[Unit] = []

    def see(module: nn.Module, arguments: tuple[Any, ...], y_BCHW: torch.Tensor) -> None:
        assert isinstance(module, ConvolutionNorm)
        (_, d_in, H_in, W_in), (_, d_out, H, W) = arguments[0].shape, y_BCHW.shape
        window = module.convolution.weight.shape[-1]
        inside = id(module) in in_blocks
        units.append(Unit(H_in * W_in, d_in, H * W, d_out, window, len(arguments) > 1, module.relu, inside))

    for module in model.modules():
        if isinstance(module, ConvolutionNorm):
            module.register_forward_hook(see)
    model(*model.example(1))
    return ResNetRoofline(tuple(units), parameter_count(model), shape.batch, efficiency)
