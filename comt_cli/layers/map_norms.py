"""Norms of feature maps with the channels last, [B, H, W, C]: what SAS puts its sum through.

Statistics are taken in fp32; each has a gain and a shift a channel.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.convolution import EPSILON, BatchNorm
from comt_cli.layers.initialise import Draw, Initialised


class MapLayerNorm(Initialised):
    """Layer normalisation (Ba et al. 2016) of each image as a whole (`sample`), or of each pixel by itself (`pixel`).

    The gain and the shift are the channels' in both, so that parameters do not depend on the images' size.
    """

    def __init__(self, width: int, over: Literal["sample", "pixel"]) -> None:
        super().__init__()
        self.over = over
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x_BHWC: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H, W, C]."""
        n_BHWC = F.layer_norm(x_BHWC, x_BHWC.shape[1 if self.over == "sample" else 3 :], eps=EPSILON)
        return (self.weight * n_BHWC + self.bias).to(x_BHWC.dtype)

    def initialise(self, draw: Draw) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)


class MapBatchNorm(BatchNorm):
    """Batch normalisation of maps with the channels last."""

    def forward(self, x_BHWC: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H, W, C]."""
        return super().forward(x_BHWC.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
