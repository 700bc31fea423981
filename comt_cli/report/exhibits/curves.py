"""Learning curves of a recipe's rows: means over seeds, and the paired differences to the baseline, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.report import format
from comt_cli.report.caption import notes
from comt_cli.report.collect import Run, width_for, window_means
from comt_cli.report.exhibits import Exhibit, Input
from comt_cli.report.frame import TableInfo
from comt_cli.report.statistics import paired_difference, summarise
from comt_cli.report.words import of_runs, row_name
from comt_cli.runs.directory import RunState
from comt_cli.runs.logs import DEVIATIONS, SPIKES, WINDOW, Log, is_observed, logged, quantities, quantity_in_words
from comt_cli.tasks.base import POINTS
from comt_cli.words import in_words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BEGINNING = 0.1  # the share of training that is not drawn: its losses are far above all others
_BANDS = 5  # more rows than this have no bands, which would hide one another
Point = dict[str, Any]


class Curves(Exhibit):
    """The curves of one quantity of the logs (`runs.logs`); `loss` is that of training batches."""

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
        said, is_whole = quantity_in_words(self.quantity), self.quantity in SPIKES or is_observed(self.quantity)
        frame.attrs = {
            "title": f"{info.recipe.title}: {said} while training",
            "trained": of_runs([run.spec for run in drawn], info.changed) if drawn else "",
            "quantity": said,
            "unit": unit,
            "baseline": baseline,
            "known": tuple(dict.fromkeys(key for log in logs.values() for key in quantities(log))),
            "skipped": 0.0 if is_whole else _BEGINNING,
            "compared": any(point["row"] == baseline for point in points),
        }
        spikes = _spikes(self.quantity, every, logs)
        frame.attrs["findings"] = (*_findings(points, every, drawn, frame.attrs), *spikes)
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        return notes("curves", frame.attrs)

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Two panels a column: means, and differences to the baseline with intervals; labels at the ends of lines. Only
        means if the baseline has no such quantity."""
        from matplotlib.ticker import MaxNLocator

        from comt_cli.report.figures.style import OKABE_ITO, ROUND, end_labels, page_figure, style

        attrs, rows = frame.attrs, list(dict.fromkeys(frame["row"]))
        baseline, unit, is_loss = attrs["baseline"], attrs["unit"], attrs["quantity"] == "training loss"
        looks: dict[str, dict[str, Any]] = {baseline: {"color": "black", "linewidth": 1.6, "zorder": 4}}
        for number, row in enumerate(row for row in rows if row != baseline):
            dashes, colour = divmod(number, 6)  # lines cross, so colours that are far apart, then dashes
            looks[row] = {"color": OKABE_ITO[colour], "linestyle": ("-", "--", ":", "-.")[dashes % 4], "zorder": 3}
        x, height = unit if frame[unit].notna().all() else "step", max(2.5, 0.6 + 0.12 * len(rows))
        late = frame[frame["step"] >= attrs["skipped"] * frame.groupby("column")["step"].transform("max")]
        columns = [*late.groupby("column", sort=False)]
        with style():
            figure = page_figure(height * len(columns) + 0.2)
            panels = figure.subplots(len(columns), 1 + attrs["compared"], squeeze=False)
            for (levels, *others), (column, here) in zip(panels, columns, strict=True):
                last = float(here[x].max())
                ends: dict[str, float] = {}
                for row, line in here.groupby("row", sort=False):
                    levels.plot(line[x], line["mean"], **looks[str(row)])
                    ends[str(row)] = line["mean"].iloc[-1]
                for apart in others:
                    ends = self._draw_differences(apart, here, x, looks, baseline)
                    apart.set_ylabel(f"difference to {row_name(baseline)}{', nats' if is_loss else ''}")
                for axes in (levels, *others):
                    ticks = [n for n in MaxNLocator(nbins=5, steps=ROUND).tick_values(0, last) if n <= last]
                    axes.set_xticks(ticks, [format.short_count(n).replace(".0 ", " ") for n in ticks])
                    axes.set_xlim(0)
                labels = {row_name(row): (end, looks[row]["color"]) for row, end in ends.items()}
                end_labels((levels, *others)[-1], labels, 0.125 / height)
                levels.set_title(in_words(str(column)), loc="left")
                levels.set_ylabel("training loss, nats" if is_loss else attrs["quantity"])
            for axes in panels[-1]:
                axes.set_xlabel("training steps" if x == "step" else f"{x} trained on")
        return figure

    @staticmethod
    def _draw_differences(
        axes: Axes, here: pd.DataFrame, x: str, looks: Mapping[Any, Mapping[str, Any]], baseline: str
    ) -> dict[str, float]:
        """Draw the differences of a column to the baseline; the last one of each row, infinite without one."""
        ends, last = dict.fromkeys(here["row"], math.inf) | {baseline: 0.0}, float(here[x].max())
        axes.axhline(0, **looks[baseline])
        paired = here[here["difference"].notna()]
        final = paired.groupby("row").tail(1).sort_values("difference").set_index("row")
        for number, (row, end) in enumerate(final.to_dict("index").items(), 1):
            line, look, ends[row] = paired[paired["row"] == row], looks[row], end["difference"]
            axes.plot(line[x], line["difference"], **look)
            if len(looks) <= _BANDS:
                axes.fill_between(line[x], line["low"], line["high"], fc=look["color"], alpha=0.15, lw=0)
            at = [last * (1 + number * min(0.02, 0.4 / len(final)))]
            axes.plot(at * 2, [end["low"], end["high"]], color=look["color"], linewidth=0.9)
            axes.plot(at, [end["difference"]], "o", color=look["color"], markersize=2.6)
        # of two seeds intervals may reach so far that nothing else could be seen
        farthest = 3 * paired["difference"].abs().max() if len(paired) else 1.0
        barred = paired if len(looks) <= _BANDS else final
        low, high = (barred[key].fillna(barred["difference"]) for key in ("low", "high"))
        bottom = min(0.0, paired["difference"].min(), low.clip(-farthest).min())
        top = max(0.0, paired["difference"].max(), high.clip(upper=farthest).max())
        axes.set_ylim(bottom - (air := 0.04 * (top - bottom) or 0.5), top + air)
        if (low < -farthest).any() or (high > farthest).any():
            axes.set_title("some intervals reach beyond the frame", loc="right", fontsize=6.5)
        return ends


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
    points: Sequence[Point], every: Sequence[Run], drawn: Sequence[Run], attrs: Mapping[Any, Any]
) -> Iterator[str]:
    """For every row beside the baseline, from when on its difference is resolved. Where a seed diverged nothing is, as
    in tables: those that did not are the lucky ones. Then what is not drawn."""
    baseline, unit, is_loss = attrs["baseline"], attrs["unit"], attrs["quantity"] == "training loss"
    rows: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if attrs["compared"] and point["row"] != baseline:
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
        last = max(point["step"] for point in points if point["column"] == column)
        if own[-1]["step"] < attrs["skipped"] * last:
            said = f"{said}; not drawn, since it ended at step {own[-1]['step']:,}"
        yield f"{f'{row} at {column}' if several else row}: {said}"
    seeds: dict[str, list[int]] = {}
    for spec in (run.spec for run in every if run not in drawn):
        seeds.setdefault(f"{spec.row} at {spec.column}" if several else spec.row, []).append(spec.seed)
    if seeds:
        listed = "; ".join(f"{at}, seeds {format.seeds(each)}" for at, each in seeds.items())
        yield f"Not drawn, without {'a log' if is_loss else 'such values'}: {listed}"


def _spikes(quantity: str, every: Sequence[Run], logs: Mapping[str, Log]) -> Iterator[str]:
    """The rows with spikes of a quantity, and their shares of the logged steps."""
    key = next((key for key, of in SPIKES.items() if quantity in (key, of)), None)
    rows: dict[str, list[float]] = {}
    for run in every if key is not None else ():
        rows.setdefault(run.spec.row, []).extend(value for _, value in logged(logs[run.spec.id], str(key)))
    shares = [f"{row} {100 * own.count(1.0) / len(own):.2g} %" for row, own in rows.items() if any(own)]
    if shares or (quantity == key and any(rows.values())):
        rule = f"more than {DEVIATIONS:.0f} standard deviations above the mean of up to {WINDOW} logged values before"
        yield f"Logged steps with a spike ({rule}): {', '.join(shares) or 'none'}"
