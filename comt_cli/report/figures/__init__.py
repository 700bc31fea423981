"""Figures for a paper, drawn from data frames. Never imports torch."""

from comt_cli.report.figures.ablation import draw_ablation
from comt_cli.report.figures.attention import draw_attention, draw_captioned
from comt_cli.report.figures.costs import draw_costs
from comt_cli.report.figures.curves import draw_curves
from comt_cli.report.figures.ladder import draw_ladder
from comt_cli.report.figures.style import sign
from comt_cli.report.figures.sweep import draw_sweep
from comt_cli.report.figures.write import write_figure

__all__ = [
    "draw_ablation",
    "draw_attention",
    "draw_captioned",
    "draw_costs",
    "draw_curves",
    "draw_ladder",
    "draw_sweep",
    "sign",
    "write_figure",
]
