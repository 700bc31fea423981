"""Token-wise scalar gate values across layers, one panel a projection (CoMT, Figure 4; Transponder, Figure 2)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
from matplotlib.figure import Figure, SubFigure

from comt_cli.analysis.gates import has_gates
from comt_cli.analysis.model_figure import ModelFigure
from comt_cli.analysis.subject import Subject
from comt_cli.report.figures import lines
from comt_cli.report.figures.lines import Ends, robust_ends
from comt_cli.report.figures.style import page_figure, style

_ABREAST = 8
_LEAST_SPAN = 0.02
"""A panel shows at least this much of the value axis, so that rounding noise does not look like structure."""
_MARKED = {0.5: "halved", 1.0: "unchanged"}


class GateValues(ModelFigure):
    """A column a site, in their order: a thin line a token with their median, and under it the map of token x layer.

    All have one axis of values and one scale of colours, so that a gate that is almost constant looks so; where they
    are not `shared`, each has its own, as in the papers. Dotted lines mark 0.5 and 1 where these are in sight.
    """

    name: ClassVar = "gate-values"
    title: ClassVar = "Scalar gates of every token across layers"
    split: ClassVar = ("stack", "text")

    def suits(self, of: Subject) -> bool:
        return not of.is_image_classifier and has_gates(of.model)

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows `site, layer, position, token, value`, with `stack, part, text` before these where there are several
        sequences; empty where there are no scalar gates."""
        frames = [pd.DataFrame()]
        for each in (each for each in of.gates if each.kind == "scalar"):
            tokens = {"position": np.arange(len(each.tokens)), "token": each.tokens, "value": each.values[:, 0]}
            frames.append(pd.DataFrame({**each.where, "layer": each.layer, **tokens}))
        return pd.concat(frames[1:] or frames, ignore_index=True)

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        return lines.drawn_tokens(frame)

    def stem(self, frame: pd.DataFrame) -> str:
        return "-".join(["gate-values-by-token", *(frame[key].iloc[0] for key in self.split if key in frame)])

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        each = "All panels have one axis" if self.shared else "Every panel has its own axis"
        reading = f"{lines.READING} {each}; values far from all others stand beyond the frame."
        where = frame.iloc[0]
        said = [f"Gates of the {where['stack']}, on the tokens of the {where['text']}."] if "stack" in frame else []
        return [*said, reading, spread(frame, ["site", "layer"])]

    def draw(self, frame: pd.DataFrame) -> Figure:
        drawn, tokens = self.table(frame), frame["position"].nunique()
        whole = _ends(drawn)
        panels = [
            (str(site), own, whole if self.shared else _ends(own))
            for site, own in drawn.groupby(lines.site_names(drawn), sort=False)
        ]
        rows = [panels[start : start + _ABREAST] for start in range(0, len(panels), _ABREAST)]
        shown = drawn["position"].nunique()
        heights = (1.2, max(0.6, lines.ROW * shown) + (0.0 if self.shared else 0.35))
        strips = 0.0
        with style():
            figure = page_figure((0.85 + sum(heights)) * len(rows))
            parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
            for part, row in zip(parts, rows, strict=True):
                strips = max(strips, self._row(part, row, heights, lines.shown_tokens(shown, tokens)))
            figure.set_figheight(figure.get_figheight() + strips * len(rows))
            stack = f" of the {drawn['stack'].iloc[0]}" if "stack" in drawn else ""
            figure.supxlabel(f"layer{stack}", fontsize=8)
        return figure

    def _row(
        self, part: SubFigure, sites: list[tuple[str, pd.DataFrame, Ends]], heights: tuple[float, float], note: str
    ) -> float:
        """The columns of some sites; returns the inches of strips that the highest of them has."""
        strips = 0.0
        panels = part.subplots(2, len(sites), gridspec_kw={"height_ratios": heights}, squeeze=False)
        layers = max(int(own["layer"].max()) for _, own, _ in sites)
        for number, ((site, here, limits), (above, below)) in enumerate(zip(sites, panels.T, strict=True)):
            lines.token_lines(above, here, "value")
            lines.value_axis(above, limits, least=_LEAST_SPAN)
            lines.over_layers(above, layers)
            above.set_title(site.replace(" ", "\n"))
            strips = max(strips, lines.off_scale(above, here, "value", limits, brief=True))
            lines.references(above, _MARKED, named=number == len(sites) - 1, has_room=self.shared)
            image = lines.token_map(below, here, "value", limits, named=number == 0)
            if self.shared and number:
                above.tick_params(labelleft=False)
            if not self.shared:
                extend = lines.extension(here["value"], limits)
                bar = part.colorbar(image, ax=below, location="bottom", pad=0.02, aspect=9, extend=extend)
                bar.ax.tick_params(labelsize=6)
        if self.shared:
            extend = lines.extension(pd.concat([own["value"] for _, own, _ in sites]), limits)
            bar = part.colorbar(image, ax=list(panels[1]), pad=0.01, aspect=30, extend=extend, extendfrac=0.04)
            bar.set_label("gate value")
        panels[0][0].set_ylabel("gate value")
        token = f"{here['text'].iloc[0]} token" if "text" in here else "token"
        panels[1][0].set_ylabel(f"{token}{note}")
        return strips


def spread(frame: pd.DataFrame, keys: list[str]) -> str:
    """A sentence about the range of gate values, and how much they differ between tokens within each of the `keys`, and
    each stack and branch."""
    value = frame["value"]
    branches = [key for key in ("stack", "part") if key in frame]
    across = frame.groupby([*branches, *keys])["value"].std(ddof=0).mean()
    return f"Values from {value.min():.2g} to {value.max():.2g}; standard deviation over the tokens {across:.2g}."


def _ends(frame: pd.DataFrame) -> Ends:
    """The ends of an axis, at least so wide that noise stays flat."""
    ends = robust_ends(frame["value"].to_numpy())
    air = max(_LEAST_SPAN - (ends.high - ends.low), 0) / 2
    return Ends(ends.low - air, ends.high + air)
