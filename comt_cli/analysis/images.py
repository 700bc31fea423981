"""Images of a classifier's own data set, as evaluation feeds them to it, and its gates at convolutions and norms.

Shapes: B images of a batch, S x S pixels, H x W of a map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from comt_cli.analysis.gates import Values
from comt_cli.analysis.observed import hooked, other_images
from comt_cli.data.images.dataset import ImageBatch, ImageDataset
from comt_cli.data.loader import EvaluationBatches
from comt_cli.data.prepare import prepare as prepare_images
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedImageModel
from comt_cli.layers.convolution import BatchNorm
from comt_cli.layers.gates import Gate
from comt_cli.layers.image_input import ImageInput
from comt_cli.models.resnet import ResidualBlock
from comt_cli.tasks.settings.images import ImageSettings
from comt_cli.training.devices import pick_device

EXAMPLES = 10_000
"""Number of images that SAS averages its Figures 3 and 4 over."""
_PIXELS_AT_ONCE = 100 * 32 * 32
"""Of a batch: what a hundred layers keep of it for their gradients then fits into a laptop's memory."""

SplitName = Literal["train", "validation"]


def watched_images(loaded: LoadedImageModel, split: SplitName) -> WatchedImages:
    """The images of one split of the model's data set; the model is put into evaluation, in fp32, on the best device.
    Raises `UserError` where the images cannot be had, or are not those of the training."""
    spec = loaded.run
    data = spec.settings_as(ImageSettings).data
    dataset = prepare_images(data)
    if dataset.content_hash != spec.data_content or len(dataset.class_names) != len(loaded.class_names):
        raise other_images(loaded.name, data.images)
    return WatchedImages(loaded, dataset, split)


class WatchedImages:
    """A model in evaluation and images to show it (see `watched_images`)."""

    def __init__(self, loaded: LoadedImageModel, dataset: ImageDataset, split: SplitName) -> None:
        device = pick_device(None)
        self._loaded = loaded
        self._model = loaded.model.float().eval().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._split = dataset.train if split == "train" else dataset.validation
        # Normalised as in training, also where another machine's images came out a trace darker or lighter.
        mean, std = (cast(tuple[float, float, float], numbers) for numbers in (loaded.mean, loaded.std))
        self._input = ImageInput(replace(dataset, mean=mean, std=std), split, "none", device)

    def __len__(self) -> int:
        return len(self._split)

    def first(self, examples: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (x fp32 [B, 3, S, S], labels int64 [B]) of the first images, all where there are fewer."""
        size = max(1, _PIXELS_AT_ONCE // self._loaded.size**2)
        for batch in EvaluationBatches(self._split, batch_size=size, max_targets=examples):
            yield self._input(batch)

    def chosen(self, indices: Sequence[int]) -> tuple[Tensor, NDArray[np.int64], NDArray[np.uint8]]:
        """The images with these numbers: x as in `first`, their labels int64 [B], their pixels uint8 [B, S, S, 3].
        Raises `UserError` where there is no such image."""
        if wrong := [index for index in indices if not 0 <= index < len(self)]:
            raise UserError(f"there is no image {wrong[0]}", f"They are numbered from 0 to {len(self) - 1}.")
        batch: ImageBatch = self._split.batch(np.array(indices, dtype=np.int64))
        pixels = batch.pixels if self._split.pixels is None else self._split.pixels[batch.indices]
        assert pixels is not None  # a split has its images in memory, or reads them batch by batch
        return self._input(batch)[0], batch.labels, pixels

    def logits(self, x_BCHW: Tensor) -> Tensor:
        """Logits of images, [B, classes]. Raises `UserError` where it is not finite."""
        logits: Tensor = self._model(x_BCHW)
        if not logits.isfinite().all():
            raise UserError(f"the outputs of {self._loaded.name} are not finite numbers", "Did its training diverge?")
        return logits


GateSites = Mapping[tuple[int, str], Gate]
"""Gates by block (from 1) and site (`conv1` ... or `norm1` ...)."""


def gate_sites(loaded: LoadedImageModel) -> GateSites:
    """Every gate on a convolution or norm, in the order of the network."""
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
