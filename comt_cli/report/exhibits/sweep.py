"""A sweep: the table of every row at three choices of the grid's values, and the map of the trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.report import format
from comt_cli.report.cells import cells_frame
from comt_cli.report.collect import ENDED, Cell
from comt_cli.report.exhibits import Exhibit, Input
from comt_cli.report.frame import Record, frame_of, info_of, part_of, rows_of
from comt_cli.report.markdown import escaped, pipes
from comt_cli.report.statistics import paired_difference, summarise
from comt_cli.report.sweep import PLACES, CellName, Tuned, tuned_cell, whole_columns
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import point_in_words

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

FAR = 4.0
"""A mean so many times worse than the best of its column, or more, has the darkest colour."""
_DARK = 0.5
"""Of the shades, from 0 for the best: beyond it letters are white."""


class Rates(Exhibit):
    """A cell a line: for each place the values, the mean, its standard error and n, and the difference to the baseline
    there (at its own best where the row is at its own) with its 95 % interval; then what the trials chose, and the
    verdict of the table at every row's own best."""

    name = "rates"
    of: ClassVar[Input] = "sweep"
    digits: ClassVar[int] = 8

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        info = info_of(runs)
        grid = info.grid
        assert grid is not None
        cells: dict[str, dict[CellName, Cell]] = {}
        for place, cell in zip(runs["place"], runs["_cell"], strict=True):
            cells.setdefault(place, {})[cell.row, cell.column] = cell
        whole = whole_columns({name: [] for name in cells.get("own", {})})
        at_own = [place == "own" and (cell.row, cell.column) in whole
                  for place, cell in zip(runs["place"], runs["_cell"], strict=True)]  # fmt: skip
        table = rows_of(cells_frame(part_of(runs, at_own))) if any(at_own) else []
        verdicts = {(each["row"], each["column"]): each["verdict"] for each in table}
        columns = list(dict.fromkeys(column for _, column in cells["trial"]))
        lines: list[Record] = []
        for name in sorted(cells["trial"], key=lambda name: columns.index(name[1])):
            tuned, trials = tuned_cell(cells["trial"][name], grid), cells["trial"][name].runs
            key, metric = info.keys[name[1]], info.metric(name[1])
            line: Record = {"row": name[0], "column": name[1], "metric": key}
            for place in PLACES:
                there = cells.get(place, {})
                cell, base = there.get(name), there.get((info.baseline, name[1]))
                values = {} if cell is None else cell.values(key)
                ours = summarise(list(values.values()))
                is_apart = base is not None and name[0] != info.baseline
                apart = paired_difference(values, base.values(key), metric.difference) if base and is_apart else None
                point = {} if cell is None else cell.runs[0].spec.point
                line |= {
                    **{f"{place}.{each}": point.get(each) for each in grid.values},
                    f"{place}.mean": ours and ours.mean,
                    f"{place}.stderr": ours and ours.stderr,
                    f"{place}.n": ours.n if ours else 0,
                    f"{place}.difference_{metric.difference.name}": apart and apart.mean,
                    f"{place}.interval_low": apart and apart.low,
                    f"{place}.interval_high": apart and apart.high,
                    f"_{place}": (cell and cell.state, ours, apart, point),
                }
            lines.append(
                line
                | {
                    "trials": len(trials),
                    "trials_ended": sum(run.state in ENDED for run in trials),
                    "trials_diverged": sum(run.state is RunState.diverged for run in trials),
                    "verdict": verdicts.get(name),
                    "problem": tuned.problem,
                    "_tuned": tuned,
                    "_metric": metric,
                }
            )
        frame = frame_of(lines)
        tried = "; ".join(f"{key} {format.listing(str(each) for each, _ in given)}" for key, given in
                          grid.values.items())  # fmt: skip
        frame.attrs = {
            "title": f"{info.recipe.title}: sweep",
            "baseline": info.baseline,
            "tried": f"{tried}. Trials (seeds {format.seeds(grid.seeds)}) choose by their mean {grid.metric} on "
            "validation data.",
            "seeds": runs.attrs["seeds"],
        }
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        attrs, lines = frame.attrs, rows_of(frame)
        at_recipe = {point_in_words(each["_recipe"][3]) for each in lines if each["_recipe"][0] is not None}
        return [
            f"The same grid for every row: {attrs['tried']}",
            f"The numbers are of the seeds {format.seeds(attrs['seeds'])}: mean ± standard error (n). The recipe's "
            f"values: {format.listing(sorted(at_recipe))}. The baseline is {attrs['baseline']}; differences to it are "
            "paired by seed, at its own best where a row is at its own.",
            *(f"Not chosen: {each['problem']}." for each in lines if each["problem"] is not None),
            *filter(None, map(lacking, lines)),
        ]

    def page(self, frame: pd.DataFrame) -> str:
        parts = [f"# {escaped(frame.attrs['title'])}", *map(escaped, self.sentences(frame)), pipes(texts(frame))]
        return "\n\n".join(parts) + "\n"


def lacking(line: Record) -> str | None:
    """Note that the recipe's values are not in the grid, and better than the best of it."""
    (_, ours, _, point), (_, own, _, _), metric = line["_recipe"], line["_own"], line["_metric"]
    better = 1 if metric.better == "higher" else -1
    if not point or ours is None or own is None or better * (ours.mean - own.mean) <= 0:
        return None
    if any(each.point == point for each in line["_tuned"].tried):
        return None
    apart = f"{format.value(ours.mean, metric.decimals)} against {format.value(own.mean, metric.decimals)}"
    named = f"{line['row']} at {line['column']}"
    return (
        f"The recipe's {point_in_words(point)} is not in the grid, and better for {named} than its own best: {apart}."
    )


def texts(frame: pd.DataFrame) -> list[list[str]]:
    """The table as texts, the headings first."""
    lines, baseline = rows_of(frame), frame.attrs["baseline"]
    several = frame["column"].nunique() > 1
    signs = "/".join(dict.fromkeys(each["_metric"].difference.sign for each in lines))
    head = ["method", *(["column"] if several else [])]
    for said in PLACES.values():
        head += [f"at {said}", f"vs {baseline}, {signs} [95 %]"]
    made = [[*head, "best of the trials", "trials (n)", "verdict at own best"]]
    for each in lines:
        cells = [each["row"], *([each["column"]] if several else [])]
        for place in PLACES:
            state, ours, apart, _ = each[f"_{place}"]
            cells.append(format.summary(ours, each["_metric"].decimals) if ours else state or "-")
            cells.append("-" if apart is None else format.difference(apart))
        made.append([*cells, _best(each["_tuned"]), _trials(each), each["verdict"] or "-"])
    return made


def _best(tuned: Tuned) -> str:
    if tuned.point is None:
        return "none" if tuned.problem else "-"
    return point_in_words(tuned.point) + (", at the edge" if tuned.problem else "")


def _trials(line: Record) -> str:
    every, ended, lost = (line[f"trials{end}"] for end in ("", "_ended", "_diverged"))
    count = str(every) if ended == every else f"{ended} of {every}"
    return f"{count}, {lost} diverged" if lost else count


class Trials(Exhibit):
    """Every value that was tried of a grid of one key; there is none of a grid of several."""

    name = "figure"
    of: ClassVar[Input] = "sweep"

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """A line a point of every cell: `mean` of what decides (NaN where a trial diverged, has no value or has not
        ended), `least` and `greatest` of the trials, whether all have `ended`, and whether it was `chosen`."""
        import pandas as pd

        info, grid = info_of(runs), info_of(runs).grid
        keys = list(grid.values) if grid is not None else []
        if grid is None or len(keys) != 1:
            return pd.DataFrame()
        cells = {(cell.row, cell.column): cell for cell in runs.loc[runs["place"] == "trial", "_cell"]}
        every = {name: tuned_cell(cell, grid) for name, cell in cells.items()}
        lines: list[dict[str, Any]] = []
        for (row, column), tuned in every.items():
            for number, tried in enumerate(tuned.tried):
                values = [value for run in tried.runs if (value := run.value(grid.metric)) is not None]
                ends = {"least": min(values, default=None), "greatest": max(values, default=None)}
                diverged = sum(run.state is RunState.diverged for run in tried.runs)
                ended = {"ended": all(run.state in ENDED for run in tried.runs), "chosen": tuned.chosen == number + 1}
                at = {"column": column, "row": row, "value": float(tried.point[keys[0]])}
                lines.append({**at, "mean": tried.mean, **ends, "n": len(values), "diverged": diverged, **ended})
        frame = pd.DataFrame(lines).astype({"mean": float, "least": float, "greatest": float})
        specs = {column: cell.runs[0].spec for (_, column), cell in reversed(cells.items())}
        trained = {column: spec.task.network_and_data(spec.settings) for column, spec in reversed(specs.items())}
        metric = info.task.metrics[grid.metric]
        said = keys[0].rpartition(".")[2].replace("_", " ")
        frame.attrs = {
            "title": f"{info.recipe.title}: {metric.label} against the {said}",
            "trained": "; ".join(f"{name}: {each}" if len(trained) > 1 else each for name, each in trained.items()),
            "key": said,
            "metric": metric.label,
            "lower": metric.better == "lower",
            "decimals": metric.decimals,
            "seeds": grid.seeds,
            "problems": tuple(tuned.problem for tuned in every.values() if tuned.problem is not None),
        }
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        return [
            f"Numbers are means over trials with the seeds {format.seeds(frame.attrs['seeds'])}, rows in the order of "
            "their best, chosen or not",
            f"Colours are how many times worse than the best of all rows they are, the darkest {FAR:g} times or more",
            "A frame is the value that was chosen, a cross a point of which a trial diverged or has no value, and what "
            "is empty has not ended",
            *frame.attrs["problems"],
        ]

    def draw(self, frame: pd.DataFrame) -> Figure:
        """One map a column. Rows of which no trial has ended are left out, unless none has."""
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LogNorm

        from comt_cli.report.figures.style import SEQUENCE, page_figure, style

        attrs, tried = frame.attrs, frame[frame.groupby("row")["ended"].transform("any")]
        tried = tried if len(tried) else frame
        groups = {str(column): own for column, own in tried.groupby("column", sort=False)}
        heights = [2 + own["row"].nunique() for own in groups.values()]
        with style():
            figure = page_figure(0.6 + 0.17 * sum(heights), 5.6)
            panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
            for axes, (column, own) in zip(panels, groups.items(), strict=True):
                axes.set_title(f"{column}: {attrs['metric']}")
                _draw_map(axes, own, lower=attrs["lower"], decimals=attrs["decimals"])
            panels[-1].set_xlabel(attrs["key"])
            shades = ScalarMappable(LogNorm(1, FAR), colormaps[SEQUENCE].reversed())
            bar = figure.colorbar(shades, ax=list(panels), label="times worse", ticks=[1, 2, FAR], aspect=40)
            bar.ax.set_yticklabels(["1", "2", f"{FAR:g} or more"])
            bar.minorticks_off()
        return figure


def _draw_map(axes: Axes, own: pd.DataFrame, *, lower: bool, decimals: int) -> None:
    import numpy as np
    from matplotlib.patches import Rectangle

    from comt_cli.report.figures.style import SEQUENCE

    order = own.groupby("row", sort=False)["mean"].agg("min" if lower else "max")
    rows = list(order.sort_values(ascending=lower, kind="stable", na_position="last").index)
    table = own.pivot(index="row", columns="value", values="mean").loc[rows]
    means = table.to_numpy(dtype=float)
    shades = shades_of(means, lower=lower)
    axes.imshow(1 - shades, cmap=SEQUENCE, vmin=0, vmax=1, aspect="auto")
    axes.grid(visible=False)
    axes.set_yticks(range(len(rows)), rows, fontsize=6.5)
    axes.set_xticks(range(table.shape[1]), [f"{float(value):.3g}" for value in table.columns.to_list()])
    points = own.set_index(["row", "value"])[["ended", "chosen"]].to_dict("index")
    for (down, across), mean in np.ndenumerate(means):
        point = points[rows[down], table.columns[across]]
        if point["chosen"]:
            axes.add_patch(Rectangle((across - 0.48, down - 0.46), 0.96, 0.92, fill=False, linewidth=1.2))
        if np.isfinite(mean) or point["ended"]:
            said = f"{mean:,.{decimals}f}" if np.isfinite(mean) else "×"
            colour = "white" if shades[down, across] > _DARK else "black"  # black on no colour, too
            weight = "bold" if point["chosen"] else "normal"
            axes.text(across, down, said, ha="center", va="center", fontsize=6, color=colour, fontweight=weight)


def shades_of(means: NDArray[np.float64], *, lower: bool) -> NDArray[np.float64]:
    """0 for the best to 1 for what is `FAR` times worse or more, or, of scores whose best is, not above zero; all 0
    where the best is not: no multiple says how far off a value is. NaN stays."""
    import numpy as np

    if np.isnan(means).all():
        return means
    best = np.nanmin(means) if lower else np.nanmax(means)
    if not best > 0:
        return np.where(np.isnan(means), np.nan, 0.0)
    worse = means / best if lower else best / np.maximum(means, best / FAR)
    shades: NDArray[np.float64] = np.clip(np.log(worse) / np.log(FAR), 0, 1)
    return shades
