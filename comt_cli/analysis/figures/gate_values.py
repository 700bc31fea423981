"""Token-wise scalar gate values across layers, one panel a projection (CoMT, Figure 4; Transponder, Figure 2)."""

from __future__ import annotations

from collections.abc import Mapping
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
    """A column a site: a thin line a token with their median, and under it the map of token x layer.

    Columns are in the order of the sites. All have one axis of values and one scale of colours, so that a gate that is
    almost constant looks so; where they are not `shared`, each has its own, as in the papers. Dotted lines mark 0.5 and
    1 where these are in sight.
    """

    name: ClassVar = "gate-values"
    title: ClassVar = "Scalar gates of every token across layers"
    split: ClassVar = ("stack", "text")

    def suits(self, of: Subject) -> bool:
        return not of.is_image_classifier and has_gates(of.model)

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows `site, layer, position, token, value`, with `stack, part, text` before these where there are several
        sequences; empty where there are no scalar gates."""
        frames = [
            pd.DataFrame(
                {
                    **each.where,
                    "layer": each.layer,
                    "position": np.arange(len(each.tokens)),
                    "token": each.tokens,
                    "value": each.values[:, 0],
                }
            )
            for each in of.gates
            if each.kind == "scalar"
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        return lines.drawn_tokens(frame)

    def stem(self, frame: pd.DataFrame) -> str:
        return "-".join(["gate-values-by-token", *(frame[key].iloc[0] for key in self.split if key in frame)])

    def titled(self, frame: pd.DataFrame) -> str:
        if "stack" not in frame:
            return self.title
        return f"{self.title} of the {frame['stack'].iloc[0]}, on the tokens of the {frame['text'].iloc[0]}"

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        drawn = self.table(frame)
        reading = [lines.READING]
        if lines.site_names(drawn).nunique() > 1:
            each = "one axis and one scale of colours" if self.shared else "its own axis and scale of colours"
            reading.append(f"{'All panels have' if self.shared else 'Every panel has'} {each}.")
        if any(lines.extension(own["value"], ends) != "neither" for own, ends in self._ends(drawn).values()):
            reading.append("Values far from all others are on a broken axis, with the farthest value.")
        return [*reading, *spread(drawn, ["site", "layer"])]

    def draw(self, frame: pd.DataFrame) -> Figure:
        drawn, tokens = self.table(frame), frame["position"].nunique()
        panels, shown = list(self._ends(drawn).items()), drawn["position"].nunique()
        blocks = [dict(panels[start : start + _ABREAST]) for start in range(0, len(panels), _ABREAST)]
        heights = (1.2, max(0.6, lines.ROW * shown) + (0.0 if self.shared else 0.35))
        strips = 0.0
        with style():
            figure = page_figure((0.85 + sum(heights)) * len(blocks))
            parts = figure.subfigures(len(blocks), 1, squeeze=False)[:, 0]
            for part, block in zip(parts, blocks, strict=True):
                strips = max(strips, self._panels(part, block, heights, lines.shown_tokens(shown, tokens)))
            figure.set_figheight(figure.get_figheight() + strips * len(blocks))
            stack = f" of the {drawn['stack'].iloc[0]}" if "stack" in drawn else ""
            figure.supxlabel(f"layer{stack}", fontsize=8)
        return figure

    def _ends(self, drawn: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, Ends]]:
        """The rows of each site, by its name, and the ends of its axis."""
        whole = _padded(robust_ends(drawn["value"].to_numpy()))
        return {
            str(site): (own, whole if self.shared else _padded(robust_ends(own["value"].to_numpy())))
            for site, own in drawn.groupby(lines.site_names(drawn), sort=False)
        }

    def _panels(
        self,
        part: SubFigure,
        sites: Mapping[str, tuple[pd.DataFrame, Ends]],
        heights: tuple[float, float],
        note: str,
    ) -> float:
        """The columns of some sites; returns the inches of strips that the highest of them has."""
        strips = 0.0
        panels = part.subplots(2, len(sites), gridspec_kw={"height_ratios": heights}, squeeze=False)
        last, layers = len(sites) - 1, max(int(own["layer"].max()) for own, _ in sites.values())
        for number, ((site, (here, limits)), (above, below)) in enumerate(zip(sites.items(), panels.T, strict=True)):
            lines.token_lines(above, here, "value")
            lines.value_axis(above, limits, least=_LEAST_SPAN)
            lines.over_layers(above, layers)
            above.set_title(site.replace(" ", "\n"))
            strips = max(strips, lines.off_scale(above, here, "value", limits, brief=True))
            lines.references(above, _MARKED, named=number == last, has_room=self.shared)
            image = lines.token_map(below, here, "value", limits, named=number == 0)
            if self.shared and number:
                above.tick_params(labelleft=False)
            if not self.shared:
                extend = lines.extension(here["value"], limits)
                bar = part.colorbar(image, ax=below, location="bottom", pad=0.02, aspect=9, extend=extend)
                bar.ax.tick_params(labelsize=6)
        if self.shared:
            extend = lines.extension(pd.concat([own["value"] for own, _ in sites.values()]), limits)
            bar = part.colorbar(image, ax=list(panels[1]), pad=0.01, aspect=30, extend=extend, extendfrac=0.04)
            bar.set_label("gate value")
        panels[0][0].set_ylabel("gate value")
        token = f"{here['text'].iloc[0]} token" if "text" in here else "token"
        panels[1][0].set_ylabel(f"{token}{note}")
        return strips


def spread(frame: pd.DataFrame, keys: list[str]) -> list[str]:
    """Sentences about the range of gate values, and about how much they differ between tokens: within each of the
    `keys`, and each stack and branch."""
    value = frame["value"]
    branches = [key for key in ("stack", "part") if key in frame]
    across = frame.groupby([*branches, *keys])["value"].std(ddof=0).mean()
    return [
        f"Values from {value.min():.2g} to {value.max():.2g}, mean {value.mean():.2f}.",
        f"Standard deviation over the tokens, averaged over {' and '.join(f'{key}s' for key in keys)}: {across:.2g}.",
    ]


def _padded(ends: Ends) -> Ends:
    """At least so wide that noise stays flat."""
    air = max(_LEAST_SPAN - (ends.high - ends.low), 0) / 2
    return Ends(ends.low - air, ends.high + air)
