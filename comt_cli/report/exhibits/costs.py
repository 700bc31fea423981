"""Differences to the baseline against what a training step takes: which row is better, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comt_cli.report import format
from comt_cli.report.cells import cells_frame, under_columns
from comt_cli.report.costs import costs_rule
from comt_cli.report.exhibits import Exhibit
from comt_cli.report.frame import info_of
from comt_cli.report.statistics import Paired

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LEAST = 3
"""Rows beside the baseline below which a figure says no more than the table."""


class Costs(Exhibit):
    """The time of a training step, over the baseline's, and the difference to it. Times are of compiled steps where all
    rows have one."""

    name = "costs-figure"

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """One line for each row with a difference to the baseline and a measured step, and for the baseline, at a step
        of 1 and a difference of 0; `on_front` says that no other row of its column is better and no slower. Empty
        where fewer than `LEAST` rows have both."""
        import pandas as pd

        if "_costs" not in runs:
            return pd.DataFrame()
        cells, info = cells_frame(runs), info_of(runs)
        is_compiled = all(each["compiled"] is not None for each in cells["_costs"] if each is not None)
        key = "compiled" if is_compiled else "step"
        lines: list[dict[str, Any]] = []
        for column, records in under_columns(cells).items():
            sign = 1 if records[0]["_metric"].better == "lower" else -1
            here = []
            for each in records:
                costs = each["_costs"] or {}
                step, error = costs.get(key), costs.get(f"{key}_error")
                apart = Paired(0.0, None, None, 0) if each["row"] == info.baseline else each["_apart"]
                if step is not None and error is not None and apart is not None:  # a time without an interval is none
                    where = {"row": each["row"], "column": column, "step": step, "error": error}
                    here.append({**where, "difference": apart.mean, "low": apart.low, "high": apart.high})
            ahead = front([(line["step"], sign * line["difference"]) for line in here])
            lines += [{**line, "on_front": is_on} for line, is_on in zip(here, ahead, strict=True)]
        if sum(line["row"] != info.baseline for line in lines) < LEAST:
            return pd.DataFrame()
        frame = pd.DataFrame(lines).astype({"error": float, "low": float, "high": float})
        metrics = list(dict.fromkeys(cells["_metric"]))
        how = f"of a {'compiled ' if is_compiled else ''}training step"
        frame.attrs = {
            "title": f"{info.recipe.title}: differences against the time {how}",
            "trained": cells.attrs["trained"],
            "how": how,
            "rule": costs_rule(cells),
            "baseline": info.baseline,
            "unit": "/".join(dict.fromkeys(metric.difference.sign for metric in metrics)),
            "lower": all(metric.better == "lower" for metric in metrics),
        }
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        several = frame["column"].nunique() > 1
        best = frame.loc[frame["on_front"], ["row", "column"]].itertuples(index=False)
        names = [f"{row} at {column}" if several else str(row) for row, column in best]
        return [
            frame.attrs["rule"],
            "All rows have as many steps: at equal time the slower ones would have fewer",
            "Bars are 95 % intervals of differences and 90 % intervals of times"
            + ("; below and to the left is better" if frame.attrs["lower"] else ""),
            f"No other row is both better and as quick as {format.listing(names)}, by means",
        ]

    def draw(self, frame: pd.DataFrame) -> Figure:
        """A panel a column. A line joins the rows that no other beats in both."""
        from comt_cli.report.figures.style import OKABE_ITO, QUIET, page_figure, place_labels, style

        baseline, columns = frame.attrs["baseline"], [*frame.groupby("column", sort=False)]
        with style():
            figure = page_figure(3.6 * len(columns))
            panels = figure.subplots(len(columns), 1, squeeze=False)[:, 0]
            for axes, (column, here) in zip(panels, columns, strict=True):
                axes.axhline(0, color=QUIET, linewidth=0.6)
                axes.axvline(1, color=QUIET, linewidth=0.6)
                ahead = here[here["on_front"]].sort_values("step")
                axes.plot(ahead["step"], ahead["difference"], color=QUIET, linestyle="--", drawstyle="steps-post")
                bars = [(here["difference"] - here["low"]).fillna(0), (here["high"] - here["difference"]).fillna(0)]
                axes.errorbar(here["step"], here["difference"], yerr=bars, xerr=here["step"] * here["error"],
                              color=OKABE_ITO[0], marker="o", markersize=3.5, linestyle="none",
                              elinewidth=0.6)  # fmt: skip
                axes.margins(x=0.08, y=0.08)
                axes.set_ylabel(f"difference to {baseline}, {frame.attrs['unit']}")
                axes.set_title(str(column) if len(columns) > 1 else "")
            panels[-1].set_xlabel(f"time {frame.attrs['how']}, over that of {baseline}")
            figure.draw_without_rendering()
            for axes, (_, here) in zip(panels, columns, strict=True):
                place_labels(axes, list(zip(here["step"], here["difference"], here["row"], strict=True)))
        return figure


def front(places: Sequence[tuple[float, float]]) -> list[bool]:
    """For each (time, loss) whether none of the others has less loss in no more time."""
    return [not any(other[0] <= time and other[1] < loss for other in places) for time, loss in places]
