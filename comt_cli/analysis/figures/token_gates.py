"""Gates of networks of tokens, token by token: scalar ones across layers, one panel a projection (CoMT, Figure 4;
Transponder, Figure 2), and channel-wise ones over channels and tokens (Transponder, Figure 3)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure

from comt_cli.analysis.model_figure import ModelFigure, Subject, evenly
from comt_cli.errors import UserError
from comt_cli.report.figures import lines
from comt_cli.report.figures.lines import Ends, robust_ends, token_labels
from comt_cli.report.figures.style import PAGE_WIDTH, SEQUENCE, page_figure, style

_ABREAST = 8
_LEAST_SPAN = 0.02
"""A panel shows at least this much of the value axis, so that rounding noise does not look like structure."""
_MARKED = {0.5: "halved", 1.0: "unchanged"}
MAX_CHANNELS = 64
"""More channels than this are thinned out: finer ridges than that cannot be seen in print."""
_MAPS_ABREAST = 4
_MOST_MAPS = 8
"""Layers that have a map, at even distances, of deeper networks; half as many where the maps of long texts would not
fit on a page."""
_LONG = 24


class GateValues(ModelFigure):
    """A column a site, in their order: a thin line a token with their median, and under it the map of token x layer.

    All have one axis of values and one scale of colours, so that a gate that is almost constant looks so. Dotted lines
    mark 0.5 and 1 where these are in sight.
    """

    name: ClassVar = "gate-values"
    title: ClassVar = "Scalar gates of every token across layers"
    split: ClassVar = ("stack", "text")

    def suits(self, of: Subject) -> bool:
        return of.has_token_gates

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
        where = frame.iloc[0]
        said = [f"Gates of the {where['stack']}, on the tokens of the {where['text']}."] if "stack" in frame else []
        reading = f"{lines.READING} All panels have one axis; values far from all others stand beyond the frame."
        return [*said, reading, _spread(frame, ["site", "layer"])]

    def draw(self, frame: pd.DataFrame) -> Figure:
        drawn, tokens = self.table(frame), frame["position"].nunique()
        ends = robust_ends(drawn["value"].to_numpy())
        air = max(_LEAST_SPAN - (ends.high - ends.low), 0) / 2
        ends = Ends(ends.low - air, ends.high + air)
        panels = [(str(site), own) for site, own in drawn.groupby(lines.site_names(drawn), sort=False)]
        rows = [panels[start : start + _ABREAST] for start in range(0, len(panels), _ABREAST)]
        shown = drawn["position"].nunique()
        heights = (1.2, max(0.6, lines.ROW * shown))
        text, stack = (str(drawn[key].iloc[0]) if key in drawn else "" for key in ("text", "stack"))
        token, beyond = f"{text} token{lines.shown_tokens(shown, tokens)}".strip(), 0.0
        with style():
            figure = page_figure((0.85 + sum(heights)) * len(rows))
            for part, row in zip(figure.subfigures(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
                beyond = max(beyond, _row(part, row, heights, ends, token))
            figure.set_figheight(figure.get_figheight() + beyond * len(rows))
            figure.supxlabel(f"layer of the {stack}" if stack else "layer", fontsize=8)
        return figure


def _row(
    part: SubFigure, sites: list[tuple[str, pd.DataFrame]], heights: tuple[float, float], ends: Ends, token: str
) -> float:
    """The columns of some sites; returns the most inches that marks beyond a frame take."""
    beyond = 0.0
    panels = part.subplots(2, len(sites), gridspec_kw={"height_ratios": heights}, squeeze=False)
    layers = max(int(own["layer"].max()) for _, own in sites)
    for number, ((site, here), (above, below)) in enumerate(zip(sites, panels.T, strict=True)):
        lines.token_lines(above, here, "value")
        lines.value_axis(above, ends, least=_LEAST_SPAN)
        lines.over_layers(above, layers)
        above.set_title(site.replace(" ", "\n"))
        above.tick_params(labelleft=number == 0)
        beyond = max(beyond, lines.off_scale(above, here, "value", ends, brief=True))
        lines.references(above, _MARKED, named=number == len(sites) - 1)
        image = lines.token_map(below, here, "value", ends, named=number == 0)
    extend = lines.extension(pd.concat([own["value"] for _, own in sites]), ends)
    part.colorbar(image, ax=list(panels[1]), pad=0.01, aspect=30, extend=extend, extendfrac=0.04, label="gate value")
    panels[0][0].set_ylabel("gate value")
    panels[1][0].set_ylabel(token)
    return beyond


def _spread(frame: pd.DataFrame, keys: list[str]) -> str:
    """A sentence about the range of gate values, and how much they differ between tokens within each of the `keys`, and
    each stack and branch."""
    value = frame["value"]
    branches = [key for key in ("stack", "part") if key in frame]
    across = frame.groupby([*branches, *keys])["value"].std(ddof=0).mean()
    return f"Values from {value.min():.2g} to {value.max():.2g}; standard deviation over the tokens {across:.2g}."


class ChannelGates(ModelFigure):
    """Above a surface a layer, for at most four, below a map of token x channel, for at most eight, of long texts four;
    all of one scale. A few values far from all others do not rule the colours: they have the one of the scale's end.
    """

    name: ClassVar = "channel-gates"
    title: ClassVar = "Channel-wise gates on every token"
    split: ClassVar = ("stack", "part", "text")

    def suits(self, of: Subject) -> bool:
        return of.has_token_gates

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows `layer, position, token, channel, value, site`, with `stack, part, text` before these where there are
        several sequences; of one site, `down_proj` or the last where none is asked for. Of more than `MAX_CHANNELS`
        channels every k-th is taken, k the least that suffices. Empty where no gates are channel-wise. Raises
        `UserError` where the site that is asked for has no channel-wise gates; says which have."""
        gates = [each for each in of.gates if each.kind == "channel"]
        sites, site = list(dict.fromkeys(each.where["site"] for each in gates)), of.site
        if site is not None and site not in sites:
            have = f"Sites that have them: {', '.join(sites)}." if sites else "Its gates are scalars."
            raise UserError(f"there are no channel-wise gates at {site}", have)
        chosen = site or ("down_proj" if "down_proj" in sites else sites[-1] if sites else None)
        frames = [pd.DataFrame()]
        for each in (each for each in gates if each.where["site"] == chosen):
            tokens, width = each.values.shape
            channels = np.arange(0, width, -(-width // MAX_CHANNELS))
            columns = {
                **{key: name for key, name in each.where.items() if key != "site"},
                "layer": each.layer,
                "position": np.repeat(np.arange(tokens), len(channels)),
                "token": np.repeat(np.array(each.tokens, dtype=object), len(channels)),
                "channel": np.tile(channels, tokens),
                "value": each.values[:, channels].ravel(),
                "site": chosen,
            }
            frames.append(pd.DataFrame(columns))
        return pd.concat(frames[1:] or frames, ignore_index=True)

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        return lines.drawn_tokens(frame).drop(columns="site")

    def stem(self, frame: pd.DataFrame) -> str:
        return "-".join(["gate-values-by-channel", *_place(frame)])

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        reading = f"Gates at {' '.join(_place(frame))}: above surfaces, below maps of token and channel, of one scale."
        return [reading, _spread(self.table(frame), ["layer", "channel"])]

    def draw(self, frame: pd.DataFrame) -> Figure:
        drawn, tokens = self.table(frame), frame["position"].nunique()
        layers, shown = sorted(drawn["layer"].unique()), drawn["position"].nunique()
        few = evenly(layers, _MAPS_ABREAST)
        deep = few if shown > _LONG else evenly(layers, _MOST_MAPS)
        ends = robust_ends(drawn["value"].to_numpy())
        norm = Normalize(ends.low, ends.high)
        rows = -(-len(deep) // _MAPS_ABREAST)
        heights = 1.75, 0.55 + (max(0.7, lines.ROW * shown) + 0.35) * rows
        with style():
            figure = page_figure(sum(heights))
            above, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
            _surfaces(above, drawn, few, norm)
            grid = below.subplots(rows, min(len(deep), _MAPS_ABREAST), squeeze=False)
            for number, (axes, layer) in enumerate(zip(grid.ravel(), deep, strict=False)):
                here = drawn[drawn["layer"] == layer]
                table = here.pivot(index="position", columns="channel", values="value").sort_index()
                channels = table.columns.to_numpy(dtype=int)
                step = channels[1] - channels[0] if len(channels) > 1 else 1
                edges = (channels[0] - step / 2, channels[-1] + step / 2, len(table) - 0.5, -0.5)
                axes.imshow(table, aspect="auto", extent=edges, cmap=SEQUENCE, norm=norm, interpolation="nearest")
                axes.grid(visible=False)
                axes.set_title(f"layer {layer}")
                axes.locator_params(axis="x", nbins=4)
                axes.set_yticks([])
                if number % _MAPS_ABREAST == 0:
                    axes.set_yticks(range(len(table)), token_labels(lines.token_names(here)), fontsize=6)
                    axes.tick_params(axis="y", length=0, pad=2)
                    axes.set_ylabel(f"token{lines.shown_tokens(shown, tokens)}")
            for axes in grid.ravel()[len(deep) :]:
                axes.set_axis_off()
            below.supxlabel(f"channel of {' '.join(_place(frame))} (one in {step})", fontsize=8)
            extend = lines.extension(drawn["value"], ends)
            mappable = ScalarMappable(norm, SEQUENCE)
            below.colorbar(mappable, ax=grid, pad=0.01, aspect=30, extendfrac=0.04, extend=extend, label="gate value")
        return figure


def _place(frame: pd.DataFrame) -> list[str]:
    """Stack and branch, where there are several, and the site."""
    return [frame[key].iloc[0] for key in ("stack", "part", "site") if key in frame]


def _surfaces(part: SubFigure, drawn: pd.DataFrame, layers: list[int], norm: Normalize) -> None:
    """3D panels leave wide margins by themselves: they are placed by hand, abreast."""
    width = 1 / max(len(layers), 2)
    size = min(width, 1.75 / PAGE_WIDTH * 1.15)
    for number, layer in enumerate(layers):
        left = (number + 0.5) * width - size / 2
        axes: Any = part.add_axes((left, 0.1, size * 0.9, 0.82), projection="3d")
        axes.set_in_layout(False)
        table = drawn[drawn["layer"] == layer].pivot(index="position", columns="channel", values="value")
        axes.plot_surface(
            table.columns.to_numpy(dtype=float)[None, :], table.index.to_numpy(dtype=float)[:, None] + 1,
            table.to_numpy(), cmap=SEQUENCE, norm=norm, rcount=table.shape[0], ccount=table.shape[1], linewidth=0,
            antialiased=False, rasterized=True,  # tens of thousands of patches would make the PDF heavy
        )  # fmt: skip
        axes.set_title(f"layer {layer}", y=0.98, pad=0)
        axes.set_zlim(drawn["value"].min(), drawn["value"].max())
        for label, name in ((axes.set_xlabel, "channel"), (axes.set_ylabel, "token"), (axes.set_zlabel, "gate value")):
            label(name, labelpad=-10, fontsize=6.5)
        axes.tick_params(labelsize=5.5, pad=-4)
        axes.locator_params(nbins=3)
        axes.view_init(elev=28, azim=-55)
