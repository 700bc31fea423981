"""The figure of a sweep: a map of what decides, a line a row and a cell a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.report import format
from comt_cli.report.collect import ENDED
from comt_cli.report.exhibits.base import Exhibit
from comt_cli.report.sweep import tuned_cell
from comt_cli.runs.directory import RunState

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


class Trials(Exhibit):
    """Every value that was tried of a grid of one key; there is none of a grid of several."""

    name = "figure"
    of: ClassVar[Literal["table", "sweep", "command"]] = "sweep"

    def frame(self, runs: pd.DataFrame, loaded: LoadedRecipe) -> pd.DataFrame:
        """A line a point of every cell: `mean` of what decides (NaN where a trial diverged, has no value or has not
        ended), `least` and `greatest` of the trials, whether all have `ended`, and whether it was `chosen`."""
        import pandas as pd

        grid = loaded.grids[str(runs["scale"].iloc[0])]
        keys = list(grid.values)
        if len(keys) != 1:
            return pd.DataFrame()
        cells = {(cell.row, cell.column): cell for cell in runs.loc[runs["place"] == "trial", "_cell"]}
        every = {name: tuned_cell(cell, grid) for name, cell in cells.items()}
        lines: list[dict[str, Any]] = []
        for (row, column), tuned in every.items():
            for number, tried in enumerate(tuned.tried):
                values = [value for run in tried.runs if (value := run.value(grid.metric)) is not None]
                lines.append(
                    {
                        "column": column,
                        "row": row,
                        "value": float(tried.point[keys[0]]),
                        "mean": tried.mean,
                        "least": min(values, default=None),
                        "greatest": max(values, default=None),
                        "n": len(values),
                        "diverged": sum(run.state is RunState.diverged for run in tried.runs),
                        "ended": all(run.state in ENDED for run in tried.runs),
                        "chosen": tuned.chosen == number + 1,
                    }
                )
        frame = pd.DataFrame(lines).astype({"mean": float, "least": float, "greatest": float})
        specs = {column: cell.runs[0].spec for (_, column), cell in reversed(cells.items())}
        trained = {column: spec.task.network_and_data(spec.settings) for column, spec in reversed(specs.items())}
        metric = next(iter(specs.values())).task.metrics[grid.metric]
        said = keys[0].rpartition(".")[2].replace("_", " ")
        frame.attrs = {
            "title": f"{loaded.recipe.title}: {metric.label} against the {said}",
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
        """How to read the map; then the problems."""
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
    """A line a row, the best first, a cell a value: a frame is the chosen point, a cross one without a value."""
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
