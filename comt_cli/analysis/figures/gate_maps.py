"""Maps of gates: their mean, spread and saturation per layer and site, with the numbers; and spatial ones beside the
images that they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from comt_cli.analysis.images import gate_sites
from comt_cli.analysis.model_figure import ModelFigure, Subject, evenly
from comt_cli.analysis.observed import SiteValues, Values
from comt_cli.report.figures.lines import site_names
from comt_cli.report.figures.style import PAGE_WIDTH, ROUND, SEQUENCE, layer_ticks, page_figure, style

SUMMARY_IMAGES = 256
"""Validation images of the summary: its percentiles take all values at once."""
NEAR_END = 0.05
"""A value is saturated within this share of the range from either end."""
_MEASURES = {"mean": "mean", "std": "standard deviation", "saturation": "saturated share"}
_BARE = 10
"""Of more layers than this the cells have no room for numbers."""
IMAGES = 4
"""Images that are shown where none are asked for."""
MOST_MAPS = 6
"""Gates that are shown side by side, spread evenly over the depth."""
_COLOURS = ("red", "green", "blue")
_LEAST_SPAN = 1e-4
"""A scale's colours span at least this much, so that rounding noise does not look like structure."""


def summary_frame(values: Iterable[SiteValues]) -> pd.DataFrame:
    """Mean, spread and saturation of each gate, over all tokens and channels: `site, kind, layer, mean, std, p5, p95`
    (5th and 95th percentile), `saturation` (the share of values within 5 % of either end of the range), and the ends
    `low, high`; the last three are empty where these are not known. `stack, part, text` come first if there are
    several sequences."""
    rows = []
    for each in values:
        value, (low, high) = each.values, each.ends or (np.nan, np.nan)
        margin = NEAR_END * (high - low)
        p5, p95 = np.percentile(value, [5, 95])
        outer = ((value < low + margin) | (value > high - margin)).mean() if low < high else np.nan
        measures = {"mean": value.mean(), "std": value.std(), "p5": p5, "p95": p95, "saturation": outer}
        rows.append({**each.where, "kind": each.kind, "layer": each.layer, **measures, "low": low, "high": high})
    return pd.DataFrame(rows)


class GateSummary(ModelFigure):
    """Maps (sites down, layers across) of the mean, the standard deviation and the saturated share for each kind of
    value. A measure has one scale of colours for all kinds. Cells without a value (a layer without this gate; the
    saturation of a gate of unknown range) are empty."""

    name: ClassVar = "gate-summary"
    title: ClassVar = "Mean, spread and saturation of the gates"

    def suits(self, of: Subject) -> bool:
        return of.has_token_gates or (of.is_image_classifier and bool(gate_sites(of.model)))

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows as of `summary_frame`. Of an image classifier `layer` is the block, values are over all pixels of the
        first `SUMMARY_IMAGES` validation images, and `examples` is how many there were."""
        if not of.is_image_classifier:
            return summary_frame(of.gates)
        images, sites = of.validation_images, gate_sites(of.model)
        parts: dict[tuple[int, str], list[Values]] = {at: [] for at in sites}
        seen = 0
        for x_BCHW, labels_B in images.first(SUMMARY_IMAGES):
            for at, map_BHW in images.with_maps(x_BCHW, sites)[1].items():
                parts[at].append(map_BHW.ravel())
            seen += len(labels_B)
        values = [
            SiteValues({"site": site}, "scalar", block, np.concatenate(parts[block, site]), (0.0, 1.0))
            for block, site in sorted(sites, key=lambda at: (at[1][-1], at[1], at[0]))
        ]
        return summary_frame(values).assign(examples=seen)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        said = ["The saturated share is that of values within 5 % of either end of a gate's range."]
        if (frame["kind"] == "evaluator").any():
            said.append("An Evaluator-Adjuster Unit computes x + a e: shown is e, the evaluator; it is no factor of x.")
        return said

    def draw(self, frame: pd.DataFrame) -> Figure:
        kinds = [kind for kind in ("scalar", "head", "channel", "evaluator") if (frame["kind"] == kind).any()]
        named = frame.assign(site=site_names(frame))
        sites = list(dict.fromkeys(named["site"]))
        with style():
            figure = page_figure((0.6 + 0.19 * len(sites) + 0.45) * len(kinds) + 0.1, PAGE_WIDTH)
            panels = figure.subplots(len(kinds), len(_MEASURES), squeeze=False, sharey=True)
            for column, (measure, title) in zip(panels.T, _MEASURES.items(), strict=True):
                low, high = (0.0, 1.0) if measure == "saturation" else (frame[measure].min(), frame[measure].max())
                # A map of one value everywhere must not blow rounding noise up to full contrast.
                ends = (low, high) if high - low > 1e-2 else (low - 5e-3, high + 5e-3)
                for axes, kind in zip(column, kinds, strict=True):
                    _map(axes, named[named["kind"] == kind], measure, sites, ends)
                    axes.set_title(f"{kind}: {title}")
            for axes in panels[-1]:
                axes.set_xlabel(f"block ({frame['examples'].max():,} images)" if "examples" in frame else "layer")
        return figure


def _map(axes: Axes, frame: pd.DataFrame, measure: str, sites: list[str], ends: tuple[float, float]) -> None:
    layers = sorted(frame["layer"].unique())
    table = frame.pivot(index="site", columns="layer", values=measure).reindex(index=sites, columns=layers)
    values = table.to_numpy(dtype=float)
    edges = (min(layers) - 0.5, max(layers) + 0.5, len(sites) - 0.5, -0.5)
    image = axes.imshow(values, cmap=SEQUENCE, vmin=ends[0], vmax=ends[1], aspect="auto", extent=edges)
    axes.set_yticks(range(len(sites)), sites)
    axes.set_xticks(layer_ticks(max(layers)))
    axes.grid(visible=False)
    for (down, across), number in np.ndenumerate(values if len(layers) <= _BARE else values[:0]):
        if np.isfinite(number):
            colour = "black" if number > sum(ends) / 2 else "white"
            axes.text(layers[across], down, f"{number:.2f}", ha="center", va="center", fontsize=5.5, color=colour)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.03)
    bar.ax.tick_params(labelsize=6)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND, min_n_ticks=3))


class GateMaps(ModelFigure):
    """The images on the left, to the right of each the values of gates over its pixels, stretched to the image's size.

    All maps share their colours, so that a gate that is almost constant looks so.
    """

    name: ClassVar = "gate-maps"
    title: ClassVar = "Gates of an image classifier over the pixels of validation images"

    def suits(self, of: Subject) -> bool:
        return of.is_image_classifier and bool(gate_sites(of.model))

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows `image` (its number), `label, prediction, block, site, y, x` (of the map's own pixels) and `value`. The
        image's own pixels, 0 to 255, are block 0, with their colours as sites. Raises `UserError` where there is no
        such image; see `WatchedImages`."""
        sites = dict(evenly(list(gate_sites(of.model).items()), MOST_MAPS))
        numbers = range(IMAGES) if of.images is None else of.images
        x_BCHW, labels_B, pixels = of.validation_images.chosen(numbers)
        logits, maps = of.validation_images.with_maps(x_BCHW, sites)
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
        return ["All maps have one scale of colours."]

    def draw(self, frame: pd.DataFrame) -> Figure:
        drawn, shown = self.table(frame), frame.drop_duplicates("image")
        gates = list(drawn.groupby(["block", "site"], sort=False))
        low, high = drawn["value"].min(), drawn["value"].max()
        air = max(_LEAST_SPAN - (high - low), 0) / 2
        norm = Normalize(low - air, high + air)
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
                for axes, (_, one) in zip(column, own.groupby("image", sort=False), strict=True):
                    axes.imshow(_plane(one), norm=norm, cmap=SEQUENCE, interpolation="nearest", extent=(0, 1, 1, 0))
                column[0].set_title(f"block {block}\n{site}")
            maps, scale = list(panels[:, 1:].ravel()), ScalarMappable(norm, SEQUENCE)
            figure.colorbar(scale, ax=maps, location="bottom", pad=0.02, aspect=40, shrink=0.6, label="gate value")
        return figure


def _plane(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.pivot(index="y", columns="x", values="value")
