"""Figures for a paper, drawn from data frames. Never imports torch."""

from comt_cli.report.figures.ablation import draw_ablation
from comt_cli.report.figures.gate_lines import draw_gate_lines
from comt_cli.report.figures.gate_summary import draw_gate_summary
from comt_cli.report.figures.gate_surfaces import MAX_CHANNELS, draw_gate_surfaces
from comt_cli.report.figures.residual_stream import draw_residual_stream
from comt_cli.report.figures.write import write_figure

__all__ = [
    "MAX_CHANNELS",
    "draw_ablation",
    "draw_gate_lines",
    "draw_gate_summary",
    "draw_gate_surfaces",
    "draw_residual_stream",
    "write_figure",
]
