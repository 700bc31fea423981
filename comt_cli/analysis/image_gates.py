"""What the gates of an image classifier do: their maps on a few images, and what they amount to in each block.

Shapes: B images, H x W pixels of a map, S x S of an image, P values of a gate on all images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.analysis.gates import GateValues, Place, Values, summary_frame
from comt_cli.analysis.images import WatchedImages, watched_images
from comt_cli.analysis.watch import hooked
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedImageModel
from comt_cli.layers.convolution import BatchNorm
from comt_cli.layers.gates import Gate
from comt_cli.models.resnet_blocks import ResidualBlock

SUMMARY_IMAGES = 256
"""How many validation images the summary is over: its percentiles take all values at once."""
MOST_MAPS = 6
"""Gates that are shown side by side."""


@dataclass(frozen=True)
class GateSite:
    """A gate and where it stands: its block, from 1, and `conv1` ... or `norm1` ... within it."""

    block: int
    site: str
    gate: Gate


@dataclass(frozen=True)
class GateMaps:
    """Images, and gates on them.

    Attributes:
        images: their numbers within the validation split.
        pixels: uint8 [B, S, S, 3].
        labels, predictions: the names of their classes, and those that the model gives them.
        maps: for each gate shown, in the order of the network, its values fp32 [B, H, W].
    """

    images: list[int]
    pixels: NDArray[np.uint8]
    labels: list[str]
    predictions: list[str]
    maps: dict[tuple[int, str], Values]


def gate_sites(loaded: LoadedImageModel) -> list[GateSite]:
    """Every gate on a convolution or norm, in the order of the network; empty where there are none."""
    found = []
    for number, module in enumerate(loaded.model.blocks, start=1):
        block = cast(ResidualBlock, module)
        gates = {site: each.gate for site, each in block.convolutions.items()}
        gates |= {site: each.gate for site, each in block.norms.items() if isinstance(each, BatchNorm)}
        for site, gate in sorted(gates.items(), key=lambda item: item[0][-1]):
            if gate is not None:
                found.append(GateSite(number, site, gate))
    return found


def gate_maps(loaded: LoadedImageModel, indices: Sequence[int]) -> GateMaps:
    """The maps of at most `MOST_MAPS` gates, spread evenly over the depth, on the validation images of these numbers.

    Raises:
        UserError: the network has no such gates (says what it is); there is no such image; see `watched_images`.
    """
    sites = _all_sites(loaded)
    shown = np.unique(np.linspace(0, len(sites) - 1, min(MOST_MAPS, len(sites))).round().astype(int))
    images = watched_images(loaded, "validation")
    x_BCHW, labels_B, pixels = images.chosen(indices)
    maps: dict[tuple[int, str], Values] = {}

    def keep(site: GateSite, gate_B1HW: Tensor) -> None:
        maps[site.block, site.site] = gate_B1HW[:, 0].cpu().numpy()

    logits = _watch(images, x_BCHW, [sites[number] for number in shown], keep)
    names = loaded.class_names
    predictions = [names[number] for number in logits.argmax(dim=1).tolist()]
    return GateMaps(list(indices), pixels, [names[label] for label in labels_B], predictions, maps)


def map_frame(maps: GateMaps) -> pd.DataFrame:
    """Rows `image` (its number), `label, prediction, block, site, y, x` (of the map's own pixels) and `value`."""
    frames = []
    for (block, site), value_BHW in maps.maps.items():
        for image, label, prediction, value_HW in zip(
            maps.images, maps.labels, maps.predictions, value_BHW, strict=True
        ):
            y_HW, x_HW = np.indices(value_HW.shape)
            places = {"y": y_HW.ravel(), "x": x_HW.ravel(), "value": value_HW.ravel()}
            who = {"image": image, "label": label, "prediction": prediction, "block": block, "site": site}
            frames.append(pd.DataFrame({**who, **places}))
    return pd.concat(frames, ignore_index=True)


def gate_summary(loaded: LoadedImageModel, examples: int = SUMMARY_IMAGES) -> pd.DataFrame:
    """Mean, spread and saturation of every gate over all pixels of the first `examples` validation images, or of all.

    Columns as `analysis.gates.summary_frame`'s, `layer` being the block, and `examples`: how many images there were.

    Raises:
        UserError: the network has no such gates (says what it is); see `watched_images`.
    """
    sites = _all_sites(loaded)
    images = watched_images(loaded, "validation")
    parts: dict[tuple[str, int], list[Values]] = {}

    def keep(site: GateSite, gate_B1HW: Tensor) -> None:
        parts.setdefault((site.site, site.block), []).append(gate_B1HW.flatten().cpu().numpy())

    seen = 0
    for x_BCHW, labels_B in images.first(examples):
        _watch(images, x_BCHW, sites, keep)
        seen += len(labels_B)
    values = GateValues({}, {}, {})
    for site in sorted({site for site, _ in parts}, key=lambda site: (site[-1], site)):
        place = Place(site)
        values.ranges[place] = (0.0, 1.0)
        values.factors[place, "scalar"] = {
            block: np.concatenate(part_P) for (name, block), part_P in parts.items() if name == site
        }
    return summary_frame(values).assign(examples=seen)


def _all_sites(loaded: LoadedImageModel) -> list[GateSite]:
    if sites := gate_sites(loaded):
        return sites
    raise UserError(f"{loaded.name} has no gates at convolutions or norms: it holds {loaded.description}")


def _watch(
    images: WatchedImages, x_BCHW: Tensor, sites: Sequence[GateSite], keep: Callable[[GateSite, Tensor], None]
) -> Tensor:
    """Run the model on images without gradients and call `keep` with each gate's map [B, 1, H, W]; the logits."""

    def show(site: GateSite, gate: Gate, read: tuple[Tensor, Tensor], _: Tensor) -> None:
        keep(site, gate.values(read[1])["scalar"])

    with hooked((site.gate, partial(show, site)) for site in sites), torch.no_grad():
        return images.logits(x_BCHW)
