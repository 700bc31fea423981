"""Cosine similarity and norm ratio of every decoder layer's input and output, per token (CoMT, Figure 1)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from comt_cli.report.figures import lines
from comt_cli.report.figures.broken import robust_ends
from comt_cli.report.figures.style import page_figure, style

PAPERS_MEAN = 0.2
"""CoMT's paper, of LLaMA2-7B: the mean cosine similarity over tokens and layers is generally around this value."""
_MARKED = {"cosine": {PAPERS_MEAN: "0.2: CoMT\nsays of\nLLaMA2-7B"}, "norm_ratio": {1.0: "unchanged"}}


def draw_residual_stream(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Column (a) the cosine similarity, column (b) the norm ratio on a logarithmic scale: a thin line a token with
    their median, and under it the map of token x layer, in which each can be found.

    `frame` has rows `layer, position, token, cosine, norm_ratio` (`analysis.residual_stream`); further columns go into
    the CSV as they are. What lies far from everything else (of the first layer, as a rule) stands on a broken axis, and
    has the colour of the scale's end. Returns the figure, and the rows that were drawn: of long texts the first tokens.
    """
    drawn, tokens = lines.drawn_tokens(frame), frame["position"].nunique()
    layers, shown = int(frame["layer"].max()), drawn["position"].nunique()
    heights = (1.45, max(0.6, lines.ROW * shown))
    columns = {
        "cosine": ("(a) direction kept by each layer", "cosine(input, output)", False),
        "norm_ratio": ("(b) growth of the norm in each layer", "norm of output / input (log scale)", True),
    }
    strips = 0.0
    with style():
        figure = page_figure(1.35 + sum(heights))
        panels = figure.subplots(2, 2, gridspec_kw={"height_ratios": heights})
        for (value, (title, label, log)), (above, below) in zip(columns.items(), panels.T, strict=True):
            ends = robust_ends(drawn[value].to_numpy(), log=log)
            lines.token_lines(above, drawn, value)
            lines.value_axis(above, ends, log=log, least=0.05)
            lines.over_layers(above, layers)
            above.set_title(title)
            strips = max(strips, lines.off_scale(above, drawn, value, ends))
            above.set_ylabel(label)
            lines.references(above, _MARKED[value], named=True)
            image = lines.token_map(below, drawn, value, ends, log=log, named=value == "cosine")
            below.set_xlabel("layer")
            bar = figure.colorbar(
                image, ax=below, pad=0.02, aspect=30, extend=lines.extension(drawn[value], ends), extendfrac=0.04
            )
            bar.set_label(label.replace(" (log scale)", ""))
            if log:
                lines.log_ticks(bar.ax, ends.high / ends.low)
        panels[1][0].set_ylabel(f"token{lines.shown_tokens(shown, tokens)}")
        panels[0][0].legend(handles=[panels[0][0].get_lines()[shown]], loc="best")
        figure.set_figheight(figure.get_figheight() + strips)
    drawn.attrs[lines.BROKEN] = strips > 0
    return figure, drawn
