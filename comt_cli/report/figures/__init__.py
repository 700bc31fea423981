"""Figures for a paper, drawn from data frames. Never imports torch."""

from comt_cli.report.figures.attention import draw_attention
from comt_cli.report.figures.block_gradients import draw_block_gradients
from comt_cli.report.figures.captioned import draw_captioned
from comt_cli.report.figures.conv_gradients import draw_conv_gradients
from comt_cli.report.figures.gate_lines import draw_gate_lines
from comt_cli.report.figures.gate_maps import draw_gate_maps
from comt_cli.report.figures.gate_summary import draw_gate_summary
from comt_cli.report.figures.gate_surfaces import MAX_CHANNELS, draw_gate_surfaces
from comt_cli.report.figures.image_samples import draw_image_samples
from comt_cli.report.figures.junction_shares import draw_junction_shares
from comt_cli.report.figures.mixing import draw_mixing
from comt_cli.report.figures.residual_shares import draw_residual_shares
from comt_cli.report.figures.residual_stream import draw_residual_stream
from comt_cli.report.figures.style import sign
from comt_cli.report.figures.write import write_figure

__all__ = [
    "MAX_CHANNELS",
    "draw_attention",
    "draw_block_gradients",
    "draw_captioned",
    "draw_conv_gradients",
    "draw_gate_lines",
    "draw_gate_maps",
    "draw_gate_summary",
    "draw_gate_surfaces",
    "draw_image_samples",
    "draw_junction_shares",
    "draw_mixing",
    "draw_residual_shares",
    "draw_residual_stream",
    "sign",
    "write_figure",
]
