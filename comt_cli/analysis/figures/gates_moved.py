"""Distance of gates from one, by layer and site, in networks that started with all gates at one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from comt_cli.analysis.figures.gate_summary import draw_map
from comt_cli.analysis.model_figure import ModelFigure, Subject
from comt_cli.analysis.observed import watch
from comt_cli.errors import UserError
from comt_cli.layers.learned import LowRank
from comt_cli.models.recorded import connections_of
from comt_cli.report.figures.lines import log_ticks, site_names
from comt_cli.report.figures.style import page_figure, style

_LOW_RANK = "low-rank"
"""Site of LAuReL's low-rank map B A."""
_MOST = 1e3
"""The largest ratio of the ends of the colour scale; smaller values have the lowest colour."""


class GatesMoved(ModelFigure):
    """A map of site x layer for each row, with one logarithmic colour scale."""

    name: ClassVar = "gates-moved"
    title: ClassVar = "How far gates moved from one"

    def suits(self, of: Subject) -> bool:
        return not of.is_image_classifier and _started_at_one(of.model) and any(_moved(of))

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows `row`, `site`, `layer` (from 1), `moved` and `mean`: the means over tokens and channels of |gamma - 1|
        and of gamma, the product of the site's gates of all kinds; with several sequences `stack, part, text` before
        the site. For LAuReL's low-rank maps `moved` is the mean over tokens of |B A x| / |x|, without `mean`. Raises
        `UserError` if a network's gates did not start at one."""
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
        groups = list(frame.assign(site=site_names(frame)).groupby("row", sort=False))
        heights = [own["site"].nunique() for _, own in groups]
        high = float(frame["moved"].max()) or 1.0
        low = min(max(float(frame["moved"].min()), high / _MOST), high / 2)
        with style():
            figure = page_figure(0.5 + sum(0.32 + 0.15 * height for height in heights))
            panels = figure.subplots(len(groups), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
            for axes, (row, own) in zip(panels, groups, strict=True):
                norm = LogNorm(low, high, clip=True)
                image = draw_map(axes, own, "moved", [*own["site"].unique()], norm)
                axes.set_title(row)
            panels[-1].set_xlabel("layer")
            is_low_rank = frame["site"].str.endswith(_LOW_RANK).any()
            label = f"mean |gate − 1| (0 = unchanged){', low-rank: |B A x| / |x|' if is_low_rank else ''}"
            bar = figure.colorbar(image, ax=list(panels), pad=0.01, aspect=6 + sum(heights), label=label)
            log_ticks(bar.ax, high / low)
        return figure


def _started_at_one(loaded: Any) -> bool:
    """Whether the additions of a run, or of a wrapped model, did not change the network at the start."""
    start, wrapping = getattr(loaded.spec, "start", None), getattr(loaded.model, "comt_wrapping", None)
    return "identity" in (getattr(start, "added", None), getattr(wrapping, "start", None))


def _moved(of: Subject) -> Iterator[dict[str, Any]]:
    factors: dict[tuple[tuple[str, Any], ...], Any] = {}
    for each in (each for each in of.gates if each.kind != "evaluator"):
        place = (*each.where.items(), ("layer", each.layer))
        factors[place] = factors.get(place, 1.0) * each.values.astype(float)
    for place, gamma in factors.items():
        yield {**dict(place), "moved": np.abs(gamma - 1).mean(), "mean": gamma.mean()}
    adds, on = connections_of(of.model.model), of.observation
    low_rank = [(each, part) for each in adds for part in each.children() if isinstance(part, LowRank)]
    kept = watch(of.model, on.inputs, (part for _, part in low_rank)) if low_rank else {}
    for connection, part in low_rank:
        at, ((x_1TD, *_), z_1TD) = connection.site, kept[part]
        where = {"site": f"{at.part} {_LOW_RANK}"}
        if len(on.sequences) > 1:
            where = {"stack": at.stack, "part": at.part, "text": on.read_by(connection), "site": _LOW_RANK}
        moved = (z_1TD.norm(dim=-1) / x_1TD.norm(dim=-1)).mean().item()
        yield {**where, "layer": at.layer + 1, "moved": moved, "mean": np.nan}
