"""Mean, spread and saturation of gates, each as a map of site x layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from comt_cli.analysis.images import gate_sites
from comt_cli.analysis.model_figure import ModelFigure, Subject
from comt_cli.analysis.observed import SiteValues, Values
from comt_cli.models.recorded import NEAR_END
from comt_cli.report.figures.lines import site_names
from comt_cli.report.figures.style import PAGE_WIDTH, ROUND, SEQUENCE, layer_ticks, page_figure, style

SUMMARY_IMAGES = 256
"""The number of validation images: the percentiles need all values at once."""
_MEASURES = {"mean": "mean", "std": "standard deviation", "saturation": "saturated share"}


def summary_frame(values: Iterable[SiteValues]) -> pd.DataFrame:
    """Mean, spread and saturation of each gate over all tokens and channels: `site, kind, layer, mean, std, p5, p95`
    (percentiles), `saturation` (the share of values within 5 % of either end of the range), and the ends `low, high`.
    The last three are empty if the range is unknown. With several sequences `stack, part, text` come first."""
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
    """Maps (sites down, layers across) of mean, standard deviation and saturated share for each kind of value, with one
    colour scale per measure. Cells without a value are empty."""

    name: ClassVar = "gate-summary"
    title: ClassVar = "Mean, spread and saturation of the gates"

    def suits(self, of: Subject) -> bool:
        return of.has_token_gates or (of.is_image_classifier and bool(gate_sites(of.model)))

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows as in `summary_frame`. For an image classifier `layer` is the block, the values are over all pixels of
        the first `SUMMARY_IMAGES` validation images, and `examples` is their number."""
        if not of.is_image_classifier:
            return summary_frame(of.gates)
        images, sites = of.validation_images, gate_sites(of.model)
        parts: dict[tuple[int, str], list[Values]] = {at: [] for at in sites}
        seen = 0
        for x_BCHW, labels_B in images.first(SUMMARY_IMAGES):
            for at, map_BHW in images.maps(x_BCHW, sites).items():
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
                # A constant map must not amplify rounding noise to full contrast.
                norm = Normalize(low, high) if high - low > 1e-2 else Normalize(low - 5e-3, high + 5e-3)
                for axes, kind in zip(column, kinds, strict=True):
                    bar = figure.colorbar(draw_map(axes, named[named["kind"] == kind], measure, sites, norm),
                                          ax=axes, pad=0.03)  # fmt: skip
                    bar.ax.tick_params(labelsize=6)
                    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND, min_n_ticks=3))
                    axes.set_title(f"{kind}: {title}")
            for axes in panels[-1]:
                axes.set_xlabel(f"block ({frame['examples'].max():,} images)" if "examples" in frame else "layer")
        return figure


def draw_map(axes: Axes, frame: pd.DataFrame, value: str, sites: list[str], norm: Normalize) -> AxesImage:
    """Draw a map of a column, sites down, layers across."""
    layers = sorted(frame["layer"].unique())
    table = frame.pivot(index="site", columns="layer", values=value).reindex(index=sites, columns=layers)
    edges = (min(layers) - 0.5, max(layers) + 0.5, len(sites) - 0.5, -0.5)
    axes.set_yticks(range(len(sites)), sites)
    axes.set_xticks(layer_ticks(max(layers)))
    axes.grid(visible=False)
    return axes.imshow(table.to_numpy(dtype=float), cmap=SEQUENCE, norm=norm, aspect="auto", extent=edges)
