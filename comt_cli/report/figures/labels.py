"""Names beside the points of a panel, each where it covers no other name and no point."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

_INK = "#303030"
_SPOT = 3.0
"""Pixels around a point's centre that no name may cover."""
_PLACES = [
    (across * far, up * far)
    for far in (4.0, 12.0, 24.0, 40.0)
    for across, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
]
"""Points (1/72 inch) from a point to its name, the best first."""


def place_labels(axes: Axes, points: Sequence[tuple[float, float, str]], size: float = 6.5) -> None:
    """Write each (x, y, name) at the first of some places around its point that is free and within the panel, else at
    the last; a name that is not beside its point gets a thin line to it. The axes must have their final limits."""
    frame = axes.get_window_extent()
    taken = [Bbox([centre - _SPOT, centre + _SPOT]) for centre in (axes.transData.transform(p[:2]) for p in points)]
    for x, y, name in sorted(points, reverse=True):
        note = axes.annotate(name, (x, y), xytext=_PLACES[0], fontsize=size, color=_INK, textcoords="offset points",
                             path_effects=[withStroke(linewidth=1.4, foreground="white")])  # fmt: skip
        note.set_in_layout(False)
        for across, up in _PLACES:
            note.set(position=(across, up), ha="left" if across > 0 else "right" if across < 0 else "center",
                     va="bottom" if up > 0 else "top" if up < 0 else "center")  # fmt: skip
            box = note.get_window_extent()
            is_inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if is_inside and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
        if max(abs(across), abs(up)) > _PLACES[0][0]:
            line = {"arrowstyle": "-", "linewidth": 0.4, "color": _INK, "shrinkA": 0, "shrinkB": 2}
            axes.annotate("", (x, y), (across, up), textcoords="offset points", arrowprops=line).set_in_layout(False)
