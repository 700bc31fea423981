"""Figures of networks of tokens, token by token: the residual stream of every decoder layer (CoMT, Figure 1), scalar
gates, one panel per projection (CoMT, Figure 4; Transponder, Figure 2), channel-wise gates (Transponder, Figure 3)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from comt_cli.analysis.model_figure import ModelFigure, Subject, evenly
from comt_cli.analysis.observed import SiteValues, compared, layer_streams, tokens_of, watch
from comt_cli.errors import UserError
from comt_cli.report.figures import lines
from comt_cli.report.figures.style import SEQUENCE, page_figure, style

_LABELS = {
    "cosine": ("(a) direction kept by each layer", "cosine(input, output)"),
    "norm_ratio": ("(b) growth of the norm in each layer", "norm of output / input"),
}
_MARKED = {"cosine": {0.2: "0.2: CoMT\nsays of\nLLaMA2-7B"}, "norm_ratio": {1.0: "unchanged"}}
"""CoMT's paper, of LLaMA2-7B: the mean cosine similarity over tokens and layers is generally around 0.2."""
_GATES_MARKED = {0.5: "output\nhalved", 1.0: "output\nunchanged"}
_GATE_VALUE = "gate value (1 = unchanged)"
_ABREAST = 8
_LEAST_SPAN = 0.02
"""A panel shows at least this much of the value axis, so that rounding noise does not look like structure."""
MAX_CHANNELS = 64
"""More channels than this are thinned out: finer stripes than that cannot be seen in print."""
_LAYERS = 4


class ResidualStream(ModelFigure):
    """Column (a) the cosine similarity, column (b) the norm ratio on a logarithmic scale (see `lines.draw_tokens`)."""

    name: ClassVar = "residual-stream"
    title: ClassVar = "The residual stream from layer to layer"

    def frame(self, of: Subject) -> pd.DataFrame:
        """Every layer's input against its output (`layer_streams`) on each token of the text: rows `layer` (from
        1), `position` (from 0), `token`, and the columns of `compared`. Raises as `tokens_of` and `watch`."""
        loaded, frames = of.model, []
        tokens = tokens_of(loaded, of.text)
        for _, layer, x_1TD, y_1TD in layer_streams(loaded.model, partial(watch, loaded, tokens.inputs)):
            named = {"layer": layer, "position": np.arange(len(tokens.pieces)), "token": tokens.pieces}
            frames.append(pd.DataFrame({**named, **compared(x_1TD[0], y_1TD[0])}))
        return pd.concat(frames, ignore_index=True)

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        return lines.drawn_tokens(frame)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        drawn = self.table(frame)
        return [
            "(a) cosine similarity and (b) ratio of the norms of each layer's output and input.",
            lines.READING,
            f"Mean cosine similarity {drawn['cosine'].mean():.2f}, median ratio {drawn['norm_ratio'].median():.2f}.",
        ]

    def draw(self, frame: pd.DataFrame) -> Figure:
        drawn, tokens = self.table(frame), frame["position"].nunique()
        shown = drawn["position"].nunique()
        heights = (1.45, max(0.6, lines.ROW * shown))
        with style():
            figure = page_figure(1.35 + sum(heights))
            panels = figure.subplots(2, 2, gridspec_kw={"height_ratios": heights})
            for (value, (title, label)), column in zip(_LABELS.items(), panels.T, strict=True):
                log = value == "norm_ratio"
                ends = lines.robust_ends(drawn[value].to_numpy(), log=log)
                whole = lines.robust_ends(drawn[value].to_numpy(), log=log, tail=0)
                image = lines.draw_tokens(column, drawn, value, ends, _MARKED[value], whole=whole, log=log, least=0.05,
                                          names_tokens=not log)  # fmt: skip
                column[0].set(title=title, ylabel=f"{label} (log scale)" if log else label)
                column[1].set_xlabel("layer")
                bar = lines.value_bar(figure, image, column[1], drawn[value], ends, label, pad=0.02)
                if log:
                    lines.log_ticks(bar.ax, ends.high / ends.low)
            panels[1][0].set_ylabel(f"token{lines.shown_tokens(shown, tokens)}")
            panels[0][0].legend(handles=[panels[0][0].get_lines()[shown]], loc="best")
        return figure


class GateValues(ModelFigure):
    """A column a site (see `lines.draw_tokens`), in their order. All have one axis of values and one scale of colours,
    so that a gate that is almost constant looks so."""

    name: ClassVar = "gate-values"
    title: ClassVar = "Scalar gates of every token across layers"
    split: ClassVar = ("stack", "text")

    def suits(self, of: Subject) -> bool:
        return of.has_token_gates

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows `site, layer, position, token, value`, with `stack, part, text` before these where there are several
        sequences; empty where there are no scalar gates."""
        return _by_token(each for each in of.gates if each.kind == "scalar").drop(columns="channel", errors="ignore")

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        return lines.drawn_tokens(frame)

    def stem(self, frame: pd.DataFrame) -> str:
        return "-".join(["gate-values-by-token", *_place(frame, *self.split)])

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        where = frame.iloc[0]
        said = [f"Gates of the {where['stack']}, on the tokens of the {where['text']}."] if "stack" in frame else []
        return [*said, f"{lines.READING} All panels have one axis.", _spread(frame, ["site", "layer"])]

    def draw(self, frame: pd.DataFrame) -> Figure:
        drawn, tokens = self.table(frame), frame["position"].nunique()
        ends, whole = (lines.robust_ends(drawn["value"].to_numpy(), tail=tail) for tail in (1 / 3, 0))
        air = max(_LEAST_SPAN - (ends.high - ends.low), 0) / 2
        ends = lines.Ends(ends.low - air, ends.high + air)
        sites = [(str(site), own) for site, own in drawn.groupby(lines.site_names(drawn), sort=False)]
        rows = [sites[start : start + _ABREAST] for start in range(0, len(sites), _ABREAST)]
        shown = drawn["position"].nunique()
        heights = (1.2, max(0.6, lines.ROW * shown))
        text, stack = (str(drawn[key].iloc[0]) if key in drawn else "" for key in ("text", "stack"))
        with style():
            figure = page_figure((0.85 + sum(heights)) * len(rows))
            for part, row in zip(figure.subfigures(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
                panels = part.subplots(2, len(row), gridspec_kw={"height_ratios": heights}, squeeze=False)
                for number, ((site, own), column) in enumerate(zip(row, panels.T, strict=True)):
                    image = lines.draw_tokens(column, own, "value", ends, _GATES_MARKED, whole=whole,
                                              least=_LEAST_SPAN, names_tokens=number == 0,
                                              names_marks=number == len(row) - 1)  # fmt: skip
                    column[0].set_title(site.replace(" ", "\n"))
                    column[0].tick_params(labelleft=number == 0)
                values = pd.concat([own["value"] for _, own in row])
                lines.value_bar(part, image, list(panels[1]), values, ends, _GATE_VALUE, pad=0.01)
                panels[0][0].set_ylabel(_GATE_VALUE.replace(" (", "\n("))
                panels[1][0].set_ylabel(f"{text} token{lines.shown_tokens(shown, tokens)}".strip())
            figure.supxlabel(f"layer of the {stack}" if stack else "layer", fontsize=8)
        return figure


def _by_token(gates: Iterable[SiteValues]) -> pd.DataFrame:
    """Rows `layer, position, token, channel, value` behind those of `SiteValues.where`; `MAX_CHANNELS` at most."""
    frames = [pd.DataFrame()]
    for each in gates:
        tokens, width = each.values.shape
        channels = np.arange(0, width, -(-width // MAX_CHANNELS))
        columns = {
            **each.where,
            "layer": each.layer,
            "position": np.repeat(np.arange(tokens), len(channels)),
            "token": np.repeat(np.array(each.tokens, dtype=object), len(channels)),
            "channel": np.tile(channels, tokens),
            "value": each.values[:, channels].ravel(),
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _place(frame: pd.DataFrame, *keys: str) -> list[str]:
    """The names that all rows share, such as stack, branch and site, where there are several."""
    return [frame[key].iloc[0] for key in keys if key in frame]


def _spread(frame: pd.DataFrame, keys: list[str]) -> str:
    """A sentence about the range of gate values, and how much they differ between tokens within each of the `keys`, and
    each stack and branch."""
    value = frame["value"]
    branches = [key for key in ("stack", "part") if key in frame]
    across = frame.groupby([*branches, *keys])["value"].std(ddof=0).mean()
    return f"Values from {value.min():.2g} to {value.max():.2g}; standard deviation over the tokens {across:.2g}."


class ChannelGates(ModelFigure):
    """A map of token and channel a layer, for at most four layers, all of one scale. A few values far from all others
    do not rule the colours: they have the one of the scale's end."""

    name: ClassVar = "channel-gates"
    title: ClassVar = "Channel-wise gates on every token"
    split: ClassVar = ("stack", "part", "text")

    def suits(self, of: Subject) -> bool:
        return of.has_token_gates

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows `site, layer, position, token, channel, value`, with `stack, part, text` before these where there are
        several sequences; of one site, `down_proj` or the last where none is asked for. Of more than `MAX_CHANNELS`
        channels every k-th is taken, k the least that suffices. Empty where no gates are channel-wise. Raises
        `UserError` where the site that is asked for has no channel-wise gates; says which have."""
        gates = [each for each in of.gates if each.kind == "channel"]
        sites, site = list(dict.fromkeys(each.where["site"] for each in gates)), of.site
        if site is not None and site not in sites:
            have = f"Sites that have them: {', '.join(sites)}." if sites else "Its gates are scalars."
            raise UserError(f"there are no channel-wise gates at {site}", have)
        chosen = site or ("down_proj" if "down_proj" in sites else sites[-1] if sites else None)
        return _by_token(each for each in gates if each.where["site"] == chosen)

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        return lines.drawn_tokens(frame).drop(columns="site")

    def stem(self, frame: pd.DataFrame) -> str:
        return "-".join(["gate-values-by-channel", *_place(frame, "stack", "part", "site")])

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        tokens, channels = (sorted(frame[key].unique()) for key in ("position", "channel"))
        shown = self.table(frame)["position"].nunique()
        every = f"one channel in {channels[1] - channels[0]}, " if len(channels) > 1 else ""
        where = " ".join(_place(frame, "stack", "part", "site"))
        reading = f"Gates at {where}: {every}{shown} of {len(tokens)} tokens; one scale of colours."
        return [reading, _spread(self.table(frame), ["layer", "channel"])]

    def draw(self, frame: pd.DataFrame) -> Figure:
        drawn = self.table(frame)
        layers = evenly(sorted(drawn["layer"].unique()), _LAYERS)
        ends = lines.robust_ends(drawn["value"].to_numpy())
        names = drawn.drop_duplicates("position").sort_values("position")["token"].tolist()
        with style():
            figure = page_figure(0.9 + max(0.6, lines.ROW * len(names)))
            panels = figure.subplots(1, len(layers), squeeze=False, sharey=True)[0]
            for axes, layer in zip(panels, layers, strict=True):
                table = drawn[drawn["layer"] == layer].pivot(index="position", columns="channel", values="value")
                edges = (0, int(table.columns.max()) + 1, len(names) - 0.5, -0.5)
                image = axes.imshow(table.to_numpy(), aspect="auto", extent=edges, cmap=SEQUENCE,
                                    norm=Normalize(ends.low, ends.high), interpolation="nearest")  # fmt: skip
                axes.grid(visible=False)
                axes.set_title(f"layer {layer}")
            panels[0].set_yticks(range(len(names)), lines.token_labels(names), fontsize=6)
            panels[0].set_ylabel(f"token{lines.shown_tokens(len(names), frame['position'].nunique())}")
            lines.value_bar(figure, image, list(panels), drawn["value"], ends, _GATE_VALUE, pad=0.01)
            figure.supxlabel("channel", fontsize=8)
        return figure
