"""Figures for a paper, drawn from data frames. Never imports torch."""

from comt_cli.report.figures.lines import draw_attention, draw_captioned
from comt_cli.report.figures.style import sign
from comt_cli.report.figures.write import write_figure

__all__ = [
    "draw_attention",
    "draw_captioned",
    "sign",
    "write_figure",
]
