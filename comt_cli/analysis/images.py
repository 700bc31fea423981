"""Images of a classifier's own data set as evaluation reads them, and its gates on convolutions and norms.

Shapes: B images of a batch, S x S pixels, H x W of a map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from comt_cli.analysis.observed import Values, check_finite, check_images
from comt_cli.data.loader import EvaluationBatches
from comt_cli.data.prepare import prepare as prepare_images
from comt_cli.exchange.loaded import LoadedImageModel
from comt_cli.layers.convolution import BatchNorm, Convolution
from comt_cli.layers.image_input import ImageInput
from comt_cli.models.recorded import recorded
from comt_cli.models.resnet import ResidualBlock
from comt_cli.tasks.settings.images import ImageSettings
from comt_cli.training.devices import pick_device

EXAMPLES = 10_000
"""The number of images in SAS's Figures 3 and 4."""
_PIXELS_AT_ONCE = 100 * 32 * 32
"""Images of a batch: the stored activations of a hundred layers fit into a laptop's memory."""


class WatchedImages:
    """A classifier in evaluation mode, in fp32, on the best device, and the images of one split of its data set."""

    def __init__(self, loaded: LoadedImageModel, split: Literal["train", "validation"]) -> None:
        """Raises `UserError` if the images are missing, or differ from those of the training."""
        data, device = loaded.run.settings_as(ImageSettings).data, pick_device(None)
        dataset = prepare_images(data)
        check_images(loaded, dataset.content_hash, data.images)
        self._loaded = loaded
        self._model = loaded.model.float().eval().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._split = dataset.train if split == "train" else dataset.validation
        # Normalised as in training, even if another machine's images differ slightly.
        mean, std = (cast(tuple[float, float, float], numbers) for numbers in (loaded.mean, loaded.std))
        self._input = ImageInput(replace(dataset, mean=mean, std=std), split, "none", device)

    def first(self, examples: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (x fp32 [B, 3, S, S], labels int64 [B]) of the first images, or of all if there are fewer."""
        size = max(1, _PIXELS_AT_ONCE // self._loaded.size**2)
        for batch in EvaluationBatches(self._split, batch_size=size, max_targets=examples):
            yield self._input(batch)

    def logits(self, x_BCHW: Tensor) -> Tensor:
        """Logits of images, [B, classes]. Raises `UserError` if they are not finite."""
        logits: Tensor = self._model(x_BCHW)
        check_finite(self._loaded, logits)
        return logits

    def maps(self, x_BCHW: Tensor, sites: GateSites) -> dict[tuple[int, str], Values]:
        """The map of each gate on images, without gradients, fp32 [B, H, W]."""
        with recorded(sites.values()) as kept, torch.no_grad():
            self.logits(x_BCHW)
            found: dict[tuple[int, str], Values] = {}
            for at, part in sites.items():
                gate: Any = part.gate
                x_BCHW = kept[part][0][0]
                found[at] = gate(part.normalised(x_BCHW) if isinstance(part, BatchNorm) else x_BCHW)[:, 0].cpu().numpy()
            return found


GateSites = Mapping[tuple[int, str], Convolution | BatchNorm]
"""Gated parts by block (from 1) and site (`conv1` ... or `norm1` ...)."""


def gate_sites(loaded: LoadedImageModel) -> GateSites:
    """Every gate on a convolution or norm, in the order of the network."""
    found: dict[tuple[int, str], Convolution | BatchNorm] = {}
    for number, module in enumerate(loaded.model.blocks, start=1):
        block = cast(ResidualBlock, module)
        norms = {site: each for site, each in block.norms.items() if isinstance(each, BatchNorm)}
        carriers: dict[str, Any] = {**block.convolutions, **norms}
        for site in sorted(carriers, key=lambda site: site[-1]):
            if carriers[site].gate is not None:
                found[number, site] = carriers[site]
    return found


def stages_of(loaded: LoadedImageModel) -> list[int]:
    """The stage of every residual block, from 1."""
    blocks = loaded.model.settings.shape().blocks
    return [stage for stage, number in enumerate(blocks, start=1) for _ in range(number)]
