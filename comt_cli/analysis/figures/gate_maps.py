"""Spatial gate maps beside the images that they belong to: one line an image, one column a gate."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from comt_cli.analysis.images import gate_sites, run_with_maps
from comt_cli.analysis.model_figure import ModelFigure
from comt_cli.analysis.subject import Subject
from comt_cli.report.figures.style import PAGE_WIDTH, SEQUENCE, page_figure, style

IMAGES = 4
"""Images that are shown where none are asked for."""
MOST_MAPS = 6
"""Gates that are shown side by side, spread evenly over the depth."""
_COLOURS = ("red", "green", "blue")
_LEAST_SPAN = 1e-4
"""A scale's colours span at least this much, so that rounding noise does not look like structure."""


class GateMaps(ModelFigure):
    """The images on the left, to the right of each the values of gates over its pixels, stretched to the image's size.

    All maps share their colours, so that a gate that is almost constant looks so; where they are not `shared`, those of
    a column do, and small differences are seen.
    """

    name: ClassVar = "gate-maps"
    title: ClassVar = "Gates of an image classifier over the pixels of validation images"

    def suits(self, of: Subject) -> bool:
        return of.is_image_classifier and bool(gate_sites(of.model))

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows `image` (its number), `label, prediction, block, site, y, x` (of the map's own pixels) and `value`. The
        image's own pixels, 0 to 255, are block 0, with their colours as sites. Raises `UserError` where there is no
        such image; see `watched_images`."""
        sites = list(gate_sites(of.model).items())
        places = np.unique(np.linspace(0, len(sites) - 1, min(MOST_MAPS, len(sites))).round().astype(int))
        numbers = range(IMAGES) if of.request.images is None else of.request.images
        x_BCHW, labels_B, pixels = of.validation_images.chosen(numbers)
        logits, maps = run_with_maps(of.validation_images, x_BCHW, dict(sites[place] for place in places))
        planes = {(0, colour): pixels[..., place] for place, colour in enumerate(_COLOURS)}
        names, predictions = of.model.class_names, logits.argmax(dim=1).tolist()
        frames = []
        values: dict[tuple[int, str], NDArray[Any]] = {**planes, **maps}
        for (block, site), value_BHW in values.items():
            for number, label, prediction, value_HW in zip(numbers, labels_B, predictions, value_BHW, strict=True):
                image = {"image": number, "label": names[label], "prediction": names[prediction]}
                y_HW, x_HW = np.indices(value_HW.shape)
                cells = {"y": y_HW.ravel(), "x": x_HW.ravel(), "value": value_HW.ravel()}
                frames.append(pd.DataFrame({**image, "block": block, "site": site, **cells}))
        return pd.concat(frames, ignore_index=True)

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["block"] > 0].reset_index(drop=True)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        return ["All maps have one scale of colours." if self.shared else "The maps of a column share their colours."]

    def draw(self, frame: pd.DataFrame) -> Figure:
        drawn, shown = self.table(frame), frame.drop_duplicates("image")
        gates = list(drawn.groupby(["block", "site"], sort=False))
        side = (PAGE_WIDTH - 1.1) / (len(gates) + 1)
        with style():
            figure = page_figure(0.85 + (side + 0.06) * len(shown))
            panels = figure.subplots(len(shown), len(gates) + 1, squeeze=False)
            for axes in panels.ravel():
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
            for axes, (_, image) in zip(panels[:, 0], shown.iterrows(), strict=True):
                own = frame[(frame["image"] == image["image"]) & (frame["block"] == 0)]
                planes = [_plane(own[own["site"] == colour]) for colour in _COLOURS]
                axes.imshow(np.stack(planes, axis=-1).astype(np.uint8), interpolation="nearest")
                axes.set_anchor("S")  # as a colour bar anchors the maps
                label, taken = str(image["label"]), str(image["prediction"])
                said = label if taken == label else f"{label},\ntaken for\n{taken}"
                axes.set_ylabel(said, rotation=0, ha="right", va="center", fontsize=6.5)
            panels[0][0].set_title("image")
            for column, ((block, site), own) in zip(panels.T[1:], gates, strict=True):
                values = drawn["value"] if self.shared else own["value"]
                air = max(_LEAST_SPAN - (values.max() - values.min()), 0) / 2
                norm = Normalize(values.min() - air, values.max() + air)
                for axes, (_, one) in zip(column, own.groupby("image", sort=False), strict=True):
                    axes.imshow(_plane(one), norm=norm, cmap=SEQUENCE, interpolation="nearest", extent=(0, 1, 1, 0))
                column[0].set_title(f"block {block}\n{site}")
                if not self.shared:
                    bar = _bar(figure, norm, list(column), aspect=9, shrink=0.95, ticks=[norm.vmin, norm.vmax])
                    bar.ax.tick_params(labelsize=5, length=2)
            if self.shared:
                _bar(figure, norm, list(panels[:, 1:].ravel()), aspect=40, shrink=0.6, label="gate value")
        return figure


def _bar(figure: Figure, norm: Normalize, axes: list[Any], **how: Any) -> Any:
    return figure.colorbar(ScalarMappable(norm, SEQUENCE), ax=axes, location="bottom", pad=0.02, **how)


def _plane(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.pivot(index="y", columns="x", values="value")
