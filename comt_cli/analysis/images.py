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

from comt_cli.analysis.observed import Values, check_finite, check_images, hooked
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


class WatchedImages:
    """A classifier in evaluation, in fp32, on the best device, and the images of one split of its data set."""

    def __init__(self, loaded: LoadedImageModel, split: Literal["train", "validation"]) -> None:
        """Raises `UserError` where the images cannot be had, or are not those of the training."""
        data, device = loaded.run.settings_as(ImageSettings).data, pick_device(None)
        dataset = prepare_images(data)
        check_images(loaded, dataset.content_hash, data.images)
        self._loaded = loaded
        self._model = loaded.model.float().eval().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._split = dataset.train if split == "train" else dataset.validation
        # Normalised as in training, also where another machine's images came out a trace darker or lighter.
        mean, std = (cast(tuple[float, float, float], numbers) for numbers in (loaded.mean, loaded.std))
        self._input = ImageInput(replace(dataset, mean=mean, std=std), split, "none", device)

    def first(self, examples: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (x fp32 [B, 3, S, S], labels int64 [B]) of the first images, all where there are fewer."""
        size = max(1, _PIXELS_AT_ONCE // self._loaded.size**2)
        for batch in EvaluationBatches(self._split, batch_size=size, max_targets=examples):
            yield self._input(batch)

    def chosen(self, indices: Sequence[int]) -> tuple[Tensor, NDArray[np.int64], NDArray[np.uint8]]:
        """The images with these numbers: x as in `first`, their labels int64 [B], their pixels uint8 [B, S, S, 3].
        Raises `UserError` where there is no such image."""
        count = len(self._split)
        if wrong := [index for index in indices if not 0 <= index < count]:
            raise UserError(f"there is no image {wrong[0]}", f"They are numbered from 0 to {count - 1}.")
        batch = self._split.batch(np.array(indices, dtype=np.int64))
        pixels = batch.pixels if self._split.pixels is None else self._split.pixels[batch.indices]
        assert pixels is not None  # a split has its images in memory, or reads them batch by batch
        return self._input(batch)[0], batch.labels, pixels

    def logits(self, x_BCHW: Tensor) -> Tensor:
        """Logits of images, [B, classes]. Raises `UserError` where they are not finite."""
        logits: Tensor = self._model(x_BCHW)
        check_finite(self._loaded, logits)
        return logits

    def with_maps(self, x_BCHW: Tensor, sites: GateSites) -> tuple[Tensor, dict[tuple[int, str], Values]]:
        """Logits of images, without gradients, and the map of each gate on them, fp32 [B, H, W]."""
        maps: dict[tuple[int, str], Values] = {}

        def keep(at: tuple[int, str], gate: nn.Module, read: tuple[Tensor, Tensor], _: Tensor) -> None:
            maps[at] = cast(Gate, gate).values(read[1])["scalar"][:, 0].cpu().numpy()

        with hooked((gate, partial(keep, at)) for at, gate in sites.items()), torch.no_grad():
            return self.logits(x_BCHW), maps


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


def stages_of(loaded: LoadedImageModel) -> list[int]:
    """The stage of every residual block, from 1."""
    blocks = loaded.model.settings.shape().blocks
    return [stage for stage, number in enumerate(blocks, start=1) for _ in range(number)]
