"""How far gates moved from one, by layer and site, in networks that started with all gates at one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from comt_cli.analysis.model_figure import ModelFigure, Subject
from comt_cli.analysis.observed import connections_of, watch
from comt_cli.errors import UserError
from comt_cli.layers.learned import LowRank
from comt_cli.report.figures.lines import log_ticks, site_names
from comt_cli.report.figures.style import SEQUENCE, layer_ticks, page_figure, style

_LOW_RANK = "low-rank"
"""Site of the map B A that LAuReL puts beside the skip path."""
_MOST = 1e3
"""The ends of a scale of colours are at most so many times apart: what moved less has its lowest."""
_LEAST_SHARE = 0.2
"""A bar of colours that is a smaller part of the figure's height has numbers at its ends alone."""


class GatesMoved(ModelFigure):
    """A map of site x layer for each row, one logarithmic scale of colours for all gates, and one for low-rank maps."""

    name: ClassVar = "gates-moved"
    title: ClassVar = "How far gates moved from one"

    def suits(self, of: Subject) -> bool:
        return not of.is_image_classifier and _started_at_one(of.model) and any(_moved(of))

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows `row`, `site`, `layer` (from 1), `moved`, the mean over tokens and channels of |gamma - 1|, gamma the
        product of the site's gates of all kinds, and `mean`, that of gamma, with `stack, part, text` before the site
        where there are several sequences; none of networks to which nothing was added. Of LAuReL's low-rank maps
        `moved` is the mean over tokens of |B A x| / |x|, and there is no `mean`. Raises `UserError` where a network's
        gates started elsewhere."""
        rows: list[dict[str, Any]] = []
        for row, loaded in of.models.items():
            own = [*_moved(Subject(loaded=loaded, text=of.text))]
            if own and not _started_at_one(loaded):
                said = f"the gates of {row} did not start at one, so that how far they moved is not known"
                raise UserError(said, "Those do that start from published weights, or in a wrapped model, at identity.")
            rows += [{"row": row, **each} for each in own]
        return pd.DataFrame(rows)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        named, found = frame.assign(site=site_names(frame)), []
        for row, own in named.groupby("row", sort=False):
            most, mean = own.sort_values("moved").iloc[-1], own["mean"].mean()
            factor = "" if np.isnan(mean) else f", mean factor {mean:.4g}"
            where = f"most at {most['site']} of layer {most['layer']}, {most['moved']:.2g}"
            found.append(f"{row}: {own['moved'].mean():.2g} ({where}{factor})")
        said = ["|γ − 1|, mean over a text's tokens and channels; γ is the product of a site's gates, and began as 1."]
        if frame["site"].str.endswith(_LOW_RANK).any():
            said.append("Of low-rank maps |B A x| / |x|, which began as 0.")
        return [*said, f"Means over sites and layers: {'; '.join(found)}."]

    def draw(self, frame: pd.DataFrame) -> Figure:
        named = frame.assign(site=site_names(frame), measure=frame["site"].map(_measure))
        groups = [(str(row), own) for (row, _), own in named.groupby(["row", "measure"], sort=False)]
        heights = [own["site"].nunique() for _, own in groups]
        with style():
            figure = page_figure(0.5 + sum(0.32 + 0.15 * height for height in heights))
            panels = figure.subplots(len(groups), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
            for measure, values in named.groupby("measure", sort=False)["moved"]:
                low, high = _ends(values)
                drawn, norm = [], LogNorm(low, high, clip=True)
                for axes, (row, own) in zip(panels, groups, strict=True):
                    if own["measure"].iloc[0] == measure:
                        drawn.append(axes)
                        image = _map(axes, own, norm)
                        axes.set_title(row)
                share = sum(axes.get_subplotspec().get_position(figure).height for axes in drawn)
                bar = figure.colorbar(image, ax=drawn, pad=0.01, aspect=max(30 * share, 3), label=str(measure))
                if share > _LEAST_SHARE:
                    log_ticks(bar.ax, high / low)
                else:
                    bar.set_ticks([low, high], labels=[f"{low:.2g}", f"{high:.2g}"], minor=False)
                    bar.minorticks_off()
            panels[-1].set_xticks(layer_ticks(frame["layer"].max()))
            panels[-1].set_xlabel("layer")
        return figure


def _measure(site: str) -> str:
    """What moves at a site, as the label of its scale."""
    return "|B A x| / |x|" if site.endswith(_LOW_RANK) else "|gate − 1|"


def _ends(values: pd.Series[float]) -> tuple[float, float]:
    """The ends of a logarithmic scale of values that may all be zero, or equal."""
    high = float(values.max()) or 1.0
    return min(max(float(values.min()), high / _MOST), high / 2), high


def _map(axes: Axes, own: pd.DataFrame, norm: LogNorm) -> AxesImage:
    sites = list(dict.fromkeys(own["site"]))
    table = own.pivot(index="site", columns="layer", values="moved").reindex(index=sites)
    edges = (own["layer"].min() - 0.5, own["layer"].max() + 0.5, len(sites) - 0.5, -0.5)
    axes.set_yticks(range(len(sites)), sites)
    axes.grid(visible=False)
    return axes.imshow(table.to_numpy(float), cmap=SEQUENCE, norm=norm, aspect="auto", extent=edges)


def _started_at_one(loaded: Any) -> bool:
    """Whether what a run, or a wrapped model, adds to a network left it as it was."""
    start, wrapping = getattr(loaded.spec, "start", None), getattr(loaded.model, "comt_wrapping", None)
    return "identity" in (getattr(start, "added", None), getattr(wrapping, "start", None))


def _moved(of: Subject) -> Iterator[dict[str, Any]]:
    """The rows of one network."""
    factors: dict[tuple[tuple[str, Any], ...], Any] = {}
    for each in (each for each in of.gates if each.kind != "evaluator"):
        place = (*each.where.items(), ("layer", each.layer))
        factors[place] = factors.get(place, 1.0) * each.values.astype(float)
    for place, gamma in factors.items():
        yield {**dict(place), "moved": np.abs(gamma - 1).mean(), "mean": gamma.mean()}
    adds = connections_of(of.model.model)
    low_rank = {each: part for each in adds for part in each.children() if isinstance(part, LowRank)}
    kept, on = watch(of.model, of.observation.inputs, low_rank.values()) if low_rank else {}, of.observation
    for connection, added in low_rank.items():
        site, ((x_1TD, *_), z_1TD) = connection.site, kept[added]
        where = {"site": f"{site.part} {_LOW_RANK}"}
        if len(on.sequences) > 1:
            where = {"stack": site.stack, "part": site.part, "text": on.read_by(connection), "site": _LOW_RANK}
        moved = (z_1TD.norm(dim=-1) / x_1TD.norm(dim=-1)).mean().item()
        yield {**where, "layer": site.layer + 1, "moved": moved, "mean": np.nan}
