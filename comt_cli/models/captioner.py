"""Captioner: a Transformer whose encoder reads the regions of an image and whose decoder writes the caption. One matrix
is both the embedding of the words and the head.

    x_r = dropout(relu(W v_r + b)) (+ p_r)

v_r are the features of region r (a detector's 2048 numbers, or the pixels of a patch). p_r is a learned vector of its
position, if regions have positions.
Shapes: B images, R regions, V numbers of a region, D width, T words.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.dropout import Dropout
from comt_cli.layers.initialise import Draw, xavier_std
from comt_cli.layers.learned import Affine
from comt_cli.methods.base import Wiring
from comt_cli.models.base import ids
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.tasks.settings.captioning import CaptionerSettings


class RegionMap(Affine):
    """[B, R, V] -> [B, R, D], see above; `places` is the number of learned position vectors, or 0."""

    role = "embedding"

    def __init__(self, features: int, width: int, places: int, dropout: float) -> None:
        super().__init__(features, width)
        self.places = nn.Parameter(torch.empty(places, width)) if places else None
        self.dropout = Dropout(dropout)

    def forward(self, regions_BRV: Tensor) -> Tensor:
        mapped_BRD = self.dropout(F.relu(super().forward(regions_BRV.to(self.weight.dtype))))
        return mapped_BRD if self.places is None else mapped_BRD + self.places[: regions_BRV.shape[1]]

    def initialise(self, draw: Draw) -> None:
        width, features = self.weight.shape
        draw.uniform_(self.weight, "weight", 3**0.5 * xavier_std(features, width))
        nn.init.zeros_(self.bias)
        if self.places is not None:
            draw.normal_(self.places, "places", 1.0)  # as large as word embeddings, which are multiplied by sqrt(D)


class Captioner(EncoderDecoder):
    """Encoder-decoder whose source is regions, [B, R, V], and a mask, bool [B, R], True at regions that count."""

    settings: CaptionerSettings

    def __init__(
        self, settings: CaptionerSettings, vocabulary: int, wiring: Wiring, regions: int, features: int,
        length: int = 1, captions: int = 1,
    ) -> None:  # fmt: skip
        """At most `regions` per image with `features` numbers; a sample has `captions` of `length` words."""
        super().__init__(settings, vocabulary, wiring, length, captions, regions)
        places = regions if settings.region_positions == "learned" else 0
        self.features = features
        self.regions = RegionMap(features, self.shape.width, places, settings.region_dropout)

    def source_stream(self, *source: Tensor) -> tuple[Tensor, Tensor]:
        regions_BRV, mask_BR = source
        return self.regions(regions_BRV), mask_BR

    def example(self, samples: int) -> tuple[Tensor, Tensor, Tensor]:
        """Regions, their mask and captions; each caption of a sample comes with the image."""
        B, R = samples * self.sequences, self.source_length
        regions_BRV = torch.zeros(B, R, self.features, device="meta")
        mask_BR = torch.ones(B, R, dtype=torch.bool, device="meta")
        return regions_BRV, mask_BR, ids(B, self.length)


SETTINGS, build = CaptionerSettings, Captioner
