"""Token-wise scalar gate values across layers, one panel a projection (CoMT, Figure 4; Transponder, Figure 2)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure, SubFigure

from comt_cli.report.figures import lines
from comt_cli.report.figures.broken import Ends, robust_ends
from comt_cli.report.figures.style import page_figure, style

_ABREAST = 8
_LEAST_SPAN = 0.02
"""A panel shows at least this much of the value axis, so that rounding noise does not look like structure."""
_MARKED = {0.5: "halved", 1.0: "unchanged"}


def draw_gate_lines(frame: pd.DataFrame, *, shared: bool = True) -> tuple[Figure, pd.DataFrame]:
    """A column a site: a thin line a token with their median, and under it the map of token x layer.

    `frame` has rows `site, layer, position, token, value` (`analysis.gates.scalar_frame`), of a model with several
    stacks also `stack, part, text`, of one stack and one text. Columns stand in the order of the sites. All have one
    axis of values and one scale of colours, so that what is almost constant looks so; where they are not `shared`, each
    has its own, as in the papers. Dotted lines mark 0.5 and 1 where these are in sight.

    Returns the figure, and the rows that were drawn: of long texts the first tokens.
    """
    drawn, tokens = lines.drawn_tokens(frame), frame["position"].nunique()
    named, shown = drawn.assign(site=lines.site_names(drawn)), drawn["position"].nunique()
    sites = list(dict.fromkeys(named["site"]))
    blocks = [sites[start : start + _ABREAST] for start in range(0, len(sites), _ABREAST)]
    heights = (1.2, max(0.6, lines.ROW * shown) + (0.0 if shared else 0.35))
    whole = _padded(robust_ends(drawn["value"].to_numpy()))
    strips = 0.0
    with style():
        figure = page_figure((0.85 + sum(heights)) * len(blocks))
        parts = figure.subfigures(len(blocks), 1, squeeze=False)[:, 0]
        for part, block in zip(parts, blocks, strict=True):
            ends = {
                site: whole if shared else _padded(robust_ends(named.loc[named["site"] == site, "value"].to_numpy()))
                for site in block
            }
            strips = max(strips, _block(part, named, ends, heights, shared=shared, tokens=tokens))
        figure.set_figheight(figure.get_figheight() + strips * len(blocks))
        stack = f" of the {drawn['stack'].iloc[0]}" if "stack" in drawn else ""
        figure.supxlabel(f"layer{stack}", fontsize=8)
    drawn.attrs.update({lines.BROKEN: strips > 0, lines.SHARED: shared})
    return figure, drawn


def _padded(ends: Ends) -> Ends:
    """At least so wide that noise stays flat."""
    air = max(_LEAST_SPAN - (ends.high - ends.low), 0) / 2
    return Ends(ends.low - air, ends.high + air)


def _block(
    part: SubFigure,
    drawn: pd.DataFrame,
    ends: dict[str, Ends],
    heights: tuple[float, float],
    *,
    shared: bool,
    tokens: int,
) -> float:
    """Draw the columns of some sites; returns the inches of strips that the highest of them has."""
    strips = 0.0
    panels = part.subplots(2, len(ends), gridspec_kw={"height_ratios": heights}, squeeze=False)
    layers, shown = int(drawn["layer"].max()), drawn["position"].nunique()
    last = len(ends) - 1
    for number, (site, limits) in enumerate(ends.items()):
        above, below = panels[:, number]
        here = drawn[drawn["site"] == site]
        lines.token_lines(above, here, "value")
        lines.value_axis(above, limits, least=_LEAST_SPAN)
        lines.over_layers(above, layers)
        above.set_title(site.replace(" ", "\n"))
        strips = max(strips, lines.off_scale(above, here, "value", limits, brief=True))
        lines.references(above, _MARKED, named=number == last, has_room=shared)
        image = lines.token_map(below, here, "value", limits, named=number == 0)
        if shared and number:
            above.tick_params(labelleft=False)
        if not shared:
            part.colorbar(
                image, ax=below, location="bottom", pad=0.02, aspect=9, extend=lines.extension(here["value"], limits)
            ).ax.tick_params(labelsize=6)
    if shared:
        bar = part.colorbar(
            image,
            ax=list(panels[1]),
            pad=0.01,
            aspect=30,
            extend=lines.extension(drawn["value"], limits),
            extendfrac=0.04,
        )
        bar.set_label("gate value")
    panels[0][0].set_ylabel("gate value")
    token = f"{drawn['text'].iloc[0]} token" if "text" in drawn else "token"
    panels[1][0].set_ylabel(f"{token}{lines.shown_tokens(shown, tokens)}")
    return strips
