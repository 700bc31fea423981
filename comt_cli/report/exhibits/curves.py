"""Learning curves of a recipe's rows: means over seeds, and the paired differences to the baseline, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.report import format
from comt_cli.report.caption import notes
from comt_cli.report.collect import Log, Run, logged, quantities, width_for, window_means
from comt_cli.report.exhibits import Exhibit, Input
from comt_cli.report.frame import TableInfo
from comt_cli.report.statistics import paired_difference, summarise
from comt_cli.report.words import of_runs
from comt_cli.runs.directory import RunState
from comt_cli.tasks.base import POINTS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BEGINNING = 0.1
"""The share of training that the axes need not show whole: the losses of its first steps are far above all others."""
Point = dict[str, Any]


class Curves(Exhibit):
    """The curves of one quantity of the logs; `loss` is that of training batches."""

    of: ClassVar[Input] = "command"

    def __init__(self, quantity: str = "loss") -> None:
        self.quantity = quantity
        self.name = "curves" if quantity == "loss" else f"curves-{quantity}"

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """A line for every row, column and step: the count of the task's unit, `mean`, `least` and `greatest` over `n`
        seeds; of rows beside the baseline `difference`, the mean over the `pairs` of equal seeds, and `low` and `high`,
        its 95 % interval (`statistics.paired_difference`, the tables' own).

        A point is the mean of as many logged values in a row as leave the longest log of a column at most 50 points, so
        all runs of a column have their points at the same steps. Empty where no log has the quantity; `attrs["known"]`
        are those that there are.

        Raises:
            UserError: a log is damaged; says which, and where.
        """
        import pandas as pd

        every: list[Run] = list(runs["_run"])
        info: TableInfo = runs.attrs["table"]
        baseline, unit = info.baseline, info.task.unit.name
        logs: dict[str, Log] = {run.spec.id: run.directory.metrics() for run in every}
        values = {run.spec.id: logged(logs[run.spec.id], self.quantity) for run in every}
        points: list[Point] = []
        for column, own in runs.groupby("column", sort=False)["_run"]:
            width = width_for(max(len(values[run.spec.id]) for run in own))
            seeds: dict[str, dict[int, dict[int, float]]] = {}
            for run in own:
                found = values[run.spec.id]
                # only runs that are done have the same last window where it is not whole
                whole = len(found) if run.state is RunState.done else len(found) - len(found) % width
                seeds.setdefault(run.spec.row, {})[run.spec.seed] = dict(window_means(found[:whole], width))
            counts = {line["step"]: line[unit] for run in own for line in logs[run.spec.id] if unit in line}
            for row, curves in seeds.items():
                others = {} if row == baseline else seeds.get(baseline, {})
                for step in sorted({step for curve in curves.values() for step in curve}):
                    at = {"column": column, "row": row, "step": step, unit: counts.get(step)}
                    points.append(at | _point(*({seed: curve[step] for seed, curve in each.items() if step in curve}
                                                for each in (curves, others))))  # fmt: skip
        drawn = [run for run in every if values[run.spec.id]]
        frame = pd.DataFrame(points)
        if points:
            frame = frame.astype(dict.fromkeys(("difference", "low", "high"), float))
        said = "training loss" if self.quantity == "loss" else self.quantity.replace("_", " ")
        frame.attrs = {
            "title": f"{info.recipe.title}: {said} while training",
            "trained": of_runs([run.spec for run in drawn], info.changed) if drawn else "",
            "quantity": said,
            "unit": unit,
            "baseline": baseline,
            "known": tuple(dict.fromkeys(key for log in logs.values() for key in quantities(log))),
            "findings": tuple(_findings(points, every, drawn, baseline, unit)),
        }
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        return notes("curves", frame.attrs, share=_BEGINNING)

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Two panels a column: means with the span over seeds, and differences with their intervals."""
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        from comt_cli.report.figures.style import OKABE_ITO, ROUND, page_figure, style

        baseline, unit = frame.attrs["baseline"], frame.attrs["unit"]
        columns = list(dict.fromkeys(frame["column"]))
        looks: dict[str, dict[str, Any]] = {baseline: {"color": "black", "linewidth": 1.6, "zorder": 4}}
        for number, row in enumerate(row for row in dict.fromkeys(frame["row"]) if row != baseline):
            dashes, colour = divmod(number, 6)  # lines cross, so colours that are far apart, then dashes
            looks[row] = {"color": OKABE_ITO[colour], "linestyle": ("-", "--", ":", "-.")[dashes % 4], "zorder": 3}
        x = unit if frame[unit].notna().all() else "step"
        with style():
            figure = page_figure(2.5 * len(columns) + 0.2)
            panels = figure.subplots(len(columns), 2, squeeze=False)
            for (levels, apart), column in zip(panels, columns, strict=True):
                here = frame[frame["column"] == column]
                late = here[here["step"] >= _BEGINNING * here["step"].max()]
                for row, line in here.groupby("row", sort=False):
                    look = looks[str(row)]
                    band: dict[str, Any] = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
                    levels.plot(line[x], line["mean"], label=str(row), **look)
                    levels.fill_between(line[x], line["least"], line["greatest"], **band)
                    if line["difference"].notna().any():
                        apart.plot(line[x], line["difference"], **look)
                        apart.fill_between(line[x], line["low"], line["high"], **band)
                apart.axhline(0, color="black", linewidth=0.8)
                _range(levels, late["least"], late["greatest"])
                # of two seeds intervals may reach so far that nothing else could be seen
                farthest = 3 * float(late["difference"].abs().max()) if late["difference"].notna().any() else 1.0
                low, high = (late[key].fillna(late["difference"]).clip(-farthest, farthest) for key in ("low", "high"))
                _range(apart, low.clip(upper=0), high.clip(lower=0))
                for axes in (levels, apart):
                    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: format.short_count(n) if n else "0"))
                    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
                levels.set_title(column)
                levels.set_ylabel(frame.attrs["quantity"])
                apart.set_ylabel(f"difference to {baseline}")
            for axes in panels[-1]:
                axes.set_xlabel("steps" if x == "step" else x)
            figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right upper")
        return figure


def _range(axes: Axes, low: pd.Series[float], high: pd.Series[float]) -> None:
    bottom, top = float(low.min()), float(high.max())
    if math.isfinite(bottom) and math.isfinite(top):
        air = 0.04 * (top - bottom) or 0.5
        axes.set_ylim(bottom - air, top + air)


def _point(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Point:
    summary, paired = summarise(list(ours.values())), paired_difference(ours, theirs, POINTS)  # in nats, no ratios
    assert summary is not None
    line: Point = {"mean": summary.mean, "least": min(ours.values()), "greatest": max(ours.values()), "n": summary.n}
    ends = {"low": paired and paired.low, "high": paired and paired.high}
    return line | {"difference": paired and paired.mean, **ends, "pairs": paired.n if paired else 0}


def resolved_since(points: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], bool] | None:
    """The first of a row's points from which on every interval lies on one side of zero, the same one, and whether that
    is below zero; None where the last point has none such."""
    found = None
    for point in reversed(points):
        low, high = point["low"], point["high"]
        if low is None or not (low > 0 or high < 0) or (found is not None and found[1] != (high < 0)):
            break
        found = point, bool(high < 0)
    return found


def _findings(
    points: Sequence[Point], every: Sequence[Run], drawn: Sequence[Run], baseline: str, unit: str
) -> Iterator[str]:
    """For every row beside the baseline, from when on its difference is resolved. Where a seed diverged nothing is, as
    in tables: those that did not are the lucky ones. Then what is not drawn."""
    rows: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if point["row"] != baseline:
            rows.setdefault((point["column"], point["row"]), []).append(point)
    several = len({column for column, _ in rows}) > 1
    for (column, row), own in rows.items():
        runs = [run for run in drawn if run.spec.column == column and run.spec.row in (row, baseline)]
        lost = [f"{run.spec.row} with seed {run.spec.seed}" for run in runs if run.state is RunState.diverged]
        most, is_done = max(point["pairs"] for point in own), all(run.state is RunState.done for run in runs)
        paired = [point for point in own if point["pairs"] == most]
        step = "" if is_done else f"step {paired[-1]['step']:,}, so far"
        if lost:
            said = f"not compared, since {format.listing(lost)} diverged"
        elif most < 2:
            said = "one seed, so no interval" if most else f"no run of {baseline} with the same seed"
        elif (since := resolved_since(paired)) is None:
            said = f"not resolved at {step or 'the end'}"
        else:
            start, is_below = since
            count = "" if start[unit] is None else f", {format.short_count(start[unit])} {unit}"
            way = "lower" if is_below else "higher"
            said = f"resolved as {way} from step {start['step']:,}{count} to {step or 'the end'}"
        yield f"{f'{row} at {column}' if several else row}: {said}"
    seeds: dict[str, list[int]] = {}
    for spec in (run.spec for run in every if run not in drawn):
        seeds.setdefault(f"{spec.row} at {spec.column}" if several else spec.row, []).append(spec.seed)
    if seeds:
        listed = "; ".join(f"{at}, seeds {format.seeds(each)}" for at, each in seeds.items())
        yield f"Not drawn, without a log: {listed}"
