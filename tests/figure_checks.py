"""Checks of a figure's layout."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from comt_cli.report.figures.style import style


def check_layout(figure: Figure, note: str, passes: int = 1) -> None:
    """All texts lie inside, and the panels overlap neither each other nor the note, which begins so. Images of a fixed
    aspect find their place in a second pass."""
    with style():
        canvas = FigureCanvasAgg(figure)
        for _ in range(passes):
            figure.draw_without_rendering()
        renderer = canvas.get_renderer()
        width, height = canvas.get_width_height()
        # Ticks outside an axis' limits exist, and are not drawn.
        ticks = {
            id(label)
            for axes in figure.axes
            for axis in axes._axis_map.values()
            for tick in axis.get_major_ticks() + axis.get_minor_ticks()
            for label in (tick.label1, tick.label2)
        }
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        assert len(texts) > 3
        for text in texts:
            if id(text) not in ticks:
                box = text.get_window_extent(renderer)
                inside = min(box.x0, box.y0) > -4 and box.x1 < width + 4 and box.y1 < height + 4
                assert inside, (text.get_text(), box)
        flat = [axes for axes in figure.axes if not hasattr(axes, "get_zlim") and axes.axison]
        boxes = [axes.get_tightbbox(renderer).padded(-1) for axes in flat]
        (said,) = [text.get_window_extent(renderer) for text in figure.texts if text.get_text().startswith(note)]
    for number, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in (*boxes[:number], said)), flat[number]
