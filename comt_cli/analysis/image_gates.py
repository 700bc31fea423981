"""Gates of an image classifier, at convolutions and norms, and their maps over the pixels.

Shapes: B images, H x W pixels of a map, S x S of an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from comt_cli.analysis.gates import Values
from comt_cli.analysis.images import WatchedImages
from comt_cli.analysis.watch import hooked
from comt_cli.exchange.loaded import LoadedImageModel
from comt_cli.layers.convolution import BatchNorm
from comt_cli.layers.gates import Gate
from comt_cli.models.resnet import ResidualBlock

GateSites = Mapping[tuple[int, str], Gate]
"""Gates by block (from 1) and site (`conv1` ... or `norm1` ...)."""


def gate_sites(loaded: LoadedImageModel) -> GateSites:
    """Every gate on a convolution or norm, in the order of the network; empty where there are none."""
    found: dict[tuple[int, str], Gate] = {}
    for number, module in enumerate(loaded.model.blocks, start=1):
        block = cast(ResidualBlock, module)
        gates = {site: each.gate for site, each in block.convolutions.items()}
        gates |= {site: each.gate for site, each in block.norms.items() if isinstance(each, BatchNorm)}
        for site, gate in sorted(gates.items(), key=lambda item: item[0][-1]):
            if gate is not None:
                found[number, site] = gate
    return found


def run_with_maps(
    images: WatchedImages, x_BCHW: Tensor, sites: GateSites
) -> tuple[Tensor, dict[tuple[int, str], Values]]:
    """The logits of images, without gradients, and the map of each gate on them, fp32 [B, H, W]."""
    maps: dict[tuple[int, str], Values] = {}

    def keep(at: tuple[int, str], gate: nn.Module, read: tuple[Tensor, Tensor], _: Tensor) -> None:
        maps[at] = cast(Gate, gate).values(read[1])["scalar"][:, 0].cpu().numpy()

    with hooked((gate, partial(keep, at)) for at, gate in sites.items()), torch.no_grad():
        return images.logits(x_BCHW), maps
