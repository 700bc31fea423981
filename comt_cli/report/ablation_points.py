"""Points of an ablation, and the curves that they make: what is on the scale of its panel, and what is off it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

Panel = Literal["ours", "paper"]
_OUTLIER = 1.6
"""A value so many times worse than its panel's median stands off the scale with its number, as a collapsed one does, if
it is also farther from the others than those are from each other."""


@dataclass(frozen=True)
class Point:
    """One row under one column, ours or the paper's.

    `x` is the option's value, or for the cost the extra parameters in per cent; None for a category, and where it is
    not known. `value` is the metric (the mean over n seeds, or the printed one), None where there is none.
    `state` is `done`, `missing`, `2 done, 1 diverged` ...; of the paper's `printed`. `collapsed`: a printed value
    above 1000. Of our own runs it is known which diverged.

    `difference` to the baseline is ours, paired by seed, in the metric's unit of differences, with the 95 % interval
    that the verdict is taken from (None for one seed). `position` is where an axis of numbers has the point
    if not at `x`: at the share that it stands for.
    """

    panel: Panel
    column: str
    row: str
    baseline: bool
    x: float | None
    value: float | None
    stderr: float | None
    n: int
    state: str
    collapsed: bool
    printed_increase: str | None
    difference: float | None = None
    interval_low: float | None = None
    interval_high: float | None = None
    position: float | None = None

    @property
    def abscissa(self) -> float | None:
        """Where an axis of numbers has the point; None where there is no such axis, or no number."""
        return self.x if self.position is None else self.position


@dataclass(frozen=True)
class Curve:
    """One column of one side: what is on the panel's scale, and what is off it, beyond the end of the worse values."""

    panel: Panel
    column: str
    points: tuple[Point, ...]
    baseline: Point | None
    worse_is_up: bool
    relative: bool

    def is_off(self, point: Point) -> bool:
        """Whether the value is collapsed, or so bad that the others could not be distinguished beside it."""
        if point.value is None or point.collapsed:
            return point.collapsed
        known = [p.value for p in self.points if p.value is not None and not p.collapsed] or [point.value]
        median = statistics.median(known)

        def is_bad(value: float) -> bool:
            return value > _OUTLIER * median if self.worse_is_up else value < median / _OUTLIER

        near = [value for value in known if not is_bad(value)]
        gap = min(abs(point.value - value) for value in near)
        return is_bad(point.value) and gap > max(near) - min(near)

    def on_scale(self) -> list[Point]:
        """The points that the axis of values is made for."""
        return [point for point in self.points if point.value is not None and not self.is_off(point)]

    def off_scale(self) -> list[Point]:
        """The points on the broken axis."""
        return [point for point in self.points if self.is_off(point)]

    def line(self) -> Point | None:
        """The baseline, where it has a value on the scale."""
        known = self.baseline is not None and self.baseline.value is not None
        return self.baseline if self.baseline is not None and known and not self.is_off(self.baseline) else None

    def bar(self, point: Point) -> tuple[float, float] | None:
        """The ends of a point's bar on the axis of values.

        The paired interval of the difference, or of the ratio, from the baseline: it reaches the baseline's line just
        where it contains 0, and the verdict calls it not resolved. Without a pair, mean ± standard error.
        """
        base = self.baseline.value if self.baseline is not None else None
        if point.interval_low is not None and point.interval_high is not None and base is not None:
            low, high = point.interval_low, point.interval_high
            return (base * (1 + low / 100), base * (1 + high / 100)) if self.relative else (base + low, base + high)
        if point.stderr is not None and point.value is not None:
            return point.value - point.stderr, point.value + point.stderr
        return None
