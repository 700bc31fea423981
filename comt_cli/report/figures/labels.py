"""Names beside the points of a panel, each where it covers no other name and no point."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

_NEAR, _FAR = 4.0, 13.0
"""Points (1/72 inch) between a point and its name."""
_RADIUS = 3.0
"""Pixels around a point's centre that no name may cover."""
_CUT = 3
"""A name that leaves its panel, and may be cut, is as bad as so many that cover something."""
_PLACES = tuple(
    (across * distance, up * distance)
    for distance in (_NEAR, _FAR, 2 * _FAR, 3 * _FAR, 4 * _FAR)
    for across, up in ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (1, 2), (1, -2))
)


def place_labels(
    axes: Axes, points: Sequence[tuple[float, float, str]], colour: str, size: float, covered: Sequence[Bbox] = ()
) -> None:
    """Write each (x, y, name) beside its point: at the first of many places that is free and within the panel. No name
    lies on what is `covered`, in pixels, such as bars and lines.

    Where none is, at the least bad. A name that stands off gets a thin line to its point. The axes must have their
    final place and limits.
    """
    centres = [axes.transData.transform((x, y)) for x, y, _ in points]
    spots = [Bbox([centre - _RADIUS, centre + _RADIUS]) for centre in centres]
    taken: list[Bbox] = list(covered)
    # From the right to the left: names go to the right of their points, where the next one may stand.
    for number in sorted(range(len(points)), key=lambda i: points[i][:2], reverse=True):
        obstacles = [*taken, *spots[:number], *spots[number + 1 :]]
        best: tuple[int, tuple[float, float], Bbox] | None = None
        for place in _PLACES:
            box = _write(axes, points[number], place, colour, size, trial=True)
            faults = _faults(box, obstacles, axes)
            if best is None or faults < best[0]:
                best = (faults, place, box)
            if not faults:
                break
        assert best is not None
        taken.append(best[2])
        _write(axes, points[number], best[1], colour, size)


def _faults(box: Bbox, obstacles: Sequence[Bbox], axes: Axes) -> int:
    """How many things a name would cover; leaving the panel counts for several."""
    frame = axes.get_window_extent()
    outside = box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1
    return _CUT * int(outside) + sum(box.overlaps(obstacle) for obstacle in obstacles)


def _write(
    axes: Axes,
    point: tuple[float, float, str],
    place: tuple[float, float],
    colour: str,
    size: float,
    *,
    trial: bool = False,
) -> Bbox:
    """Write a name, and return what it covers; on `trial` it is taken away again."""
    x, y, name = point
    across, up = place
    if not trial and max(abs(across), abs(up)) > _NEAR:
        looks = {"arrowstyle": "-", "linewidth": 0.4, "color": colour, "shrinkA": 0, "shrinkB": 2}
        line = axes.annotate("", (x, y), xytext=place, textcoords="offset points", arrowprops=looks)
        line.set_in_layout(False)
    text = axes.annotate(
        name,
        (x, y),
        xytext=place,
        textcoords="offset points",
        fontsize=size,
        color=colour,
        ha="left" if across > 0 else "right" if across < 0 else "center",
        va="bottom" if up > 0 else "top" if up < 0 else "center_baseline",
        path_effects=[withStroke(linewidth=1.4, foreground="white")],
    )
    text.set_in_layout(False)
    box = text.get_window_extent()
    if trial:
        text.remove()
    return box
