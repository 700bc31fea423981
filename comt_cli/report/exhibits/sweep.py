"""A sweep: what trials chose for every cell, the table of every row at three choices of the grid's values, and the map
of the trials.

The trials have seeds of their own and are compared on validation data. Each cell's runs are shown three times: at the
recipe's own values, at the baseline's best and at the cell's own best. A best at the edge of the grid is no optimum:
such a cell has a problem instead of a choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.merge import LoadedGrid
from comt_cli.report import format
from comt_cli.report.cells import cells_frame
from comt_cli.report.collect import ENDED, Cell, Run, by_point, collect, mean_of
from comt_cli.report.exhibits import Exhibit, Input
from comt_cli.report.frame import Record, TableInfo, frame_of, rows_of, run_record, table_info
from comt_cli.report.markdown import escaped, pipes
from comt_cli.report.statistics import paired_difference, summarise
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import RunSpec, chosen_runs, point_in_words

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

Place = Literal["recipe", "baseline", "own"]
PLACES: dict[Place, str] = {"recipe": "the recipe's", "baseline": "the baseline's best", "own": "its own best"}
"""At which values the runs of a cell are shown."""
CellName = tuple[str, str]
"""Row and column."""


FAR = 4.0
"""A mean so many times worse than the best of its column, or more, has the darkest colour."""
_DARK = 0.5
"""Of the shades, from 0 for the best: beyond it letters are white."""


@dataclass(frozen=True)
class Tried:
    """A point of a cell's grid: its trials, and the mean of what decides; None where one diverged, has no value, or
    has not ended."""

    point: Mapping[str, Any]
    runs: tuple[Run, ...]
    mean: float | None


@dataclass(frozen=True)
class Tuned:
    """Outcome of a cell's trials: every point in the order of the grid, the number of the `best`, None while a trial
    has not ended, or where none has a value; and why the best is not taken (`problem`)."""

    tried: tuple[Tried, ...]
    best: int | None = None
    problem: str | None = None

    @property
    def chosen(self) -> int | None:
        """The number of the point that is taken, as `LoadedGrid.planned` counts them; None where none is."""
        return None if self.best is None or self.problem is not None else self.best + 1

    @property
    def point(self) -> Mapping[str, Any] | None:
        """The best point; also one that is not taken."""
        return None if self.best is None else self.tried[self.best].point


@dataclass(frozen=True)
class SweepState:
    """A sweep as it stands: `shown` has the runs of every place whose values are known."""

    loaded: LoadedRecipe
    scale: str
    seeds: tuple[int, ...]
    tuned: dict[CellName, Tuned]
    trials: list[RunSpec]
    shown: dict[Place, dict[CellName, list[RunSpec]]] = field(default_factory=dict)

    @property
    def grid(self) -> LoadedGrid:
        """The values that are tried."""
        return self.loaded.grids[self.scale]

    @property
    def specs(self) -> list[RunSpec]:
        """All runs that are known by now: the trials, then those that are shown, each once."""
        every = [*self.trials, *(spec for cells in self.shown.values() for specs in cells.values() for spec in specs)]
        return list({spec.request: spec for spec in every}.values())

    @property
    def problems(self) -> dict[CellName, str]:
        """Why cells have no choice though their trials have ended."""
        return {cell: tuned.problem for cell, tuned in self.tuned.items() if tuned.problem is not None}

    @property
    def at_most(self) -> list[RunSpec]:
        """`specs`, and for every choice that is open runs that cost what the chosen ones will."""
        baseline, specs = self.loaded.recipe.baseline, self.specs
        known = {spec.request for spec in specs}
        for cell in self.shown["recipe"]:
            wanted = sum(cell not in self.shown[place] for place in ("baseline", "own"))
            wanted = min(wanted, 1 if cell[0] == baseline else 2)
            for number in range(1, len(self.grid.planned)):
                [stand_ins] = chosen_runs(self.loaded, self.scale, {cell: number}, self.seeds).values()
                if wanted and not known & {spec.request for spec in stand_ins}:
                    specs += stand_ins
                    wanted -= 1
        return specs


def read_sweep(loaded: LoadedRecipe, scale: str, specs: Sequence[RunSpec], runs: Path) -> SweepState:
    """The sweep of a plan (`runs.plan.plan`), from the run directories below `runs`. A baseline that the plan has for
    its trials alone is not shown."""
    grid = loaded.grids[scale]
    trials = [spec for spec in specs if spec.seed in grid.seeds]
    at_recipe: dict[CellName, list[RunSpec]] = {}
    for spec in specs:
        if spec.seed not in grid.seeds:
            at_recipe.setdefault((spec.row, spec.column), []).append(spec)
    cells = collect(trials, runs, remarks=False).cells
    tuned = {name: tuned_cell(cell, grid) for name, cell in cells.items()}
    chosen = {name: each.chosen for name, each in tuned.items() if each.chosen is not None}
    own = {name: number for name, number in chosen.items() if name in at_recipe}
    baseline = {column: number for (row, column), number in chosen.items() if row == loaded.recipe.baseline}
    at_baseline = {(row, column): baseline[column] for row, column in at_recipe if column in baseline}
    seeds = tuple(dict.fromkeys(spec.seed for each in at_recipe.values() for spec in each))
    shown: dict[Place, dict[CellName, list[RunSpec]]] = {
        "recipe": at_recipe,
        "baseline": chosen_runs(loaded, scale, at_baseline, seeds),
        "own": chosen_runs(loaded, scale, own, seeds),
    }
    contents = {spec.data_fingerprint: spec.data_content for spec in specs if spec.data_content is not None}
    for place in ("baseline", "own"):  # of data that is not prepared here the trials know the content
        for name, each in shown[place].items():
            shown[place][name] = [spec.with_contents(contents) for spec in each]
    return SweepState(loaded, scale, seeds, tuned, trials, shown)


def whole_columns(chosen: Mapping[CellName, list[RunSpec]]) -> dict[CellName, list[RunSpec]]:
    """The cells that make a table: of the rows that have a choice anywhere, the columns in which all of them have one;
    while there is none, the first column."""
    rows, columns = {row for row, _ in chosen}, list(dict.fromkeys(column for _, column in chosen))
    whole = [column for column in columns if all((row, column) in chosen for row in rows)] or columns[:1]
    return {cell: specs for cell, specs in chosen.items() if cell[1] in whole}


def sweep_frame(state: SweepState, runs: Path) -> pd.DataFrame:
    """The frame of all runs of a sweep: the trials, and at each place the runs that are shown there (`place`)."""
    shown = {place: [spec for specs in each.values() for spec in specs] for place, each in state.shown.items()}
    order, records = list(state.tuned), []
    for place, specs in (("trial", state.trials), *shown.items()):
        cells = collect(specs, runs, remarks=False).cells
        for name in sorted(cells, key=order.index):
            # point by point, as the table of trials has them
            shown_runs = (run for each in state.tuned[name].tried for run in each.runs)
            for run in shown_runs if place == "trial" else cells[name].every:
                records.append({**run_record(run, state.loaded.origin), "_cell": cells[name], "place": place})
    frame = frame_of(records)
    frame.attrs = {"table": table_info(state.loaded, state.trials), "notes": (), "seeds": state.seeds}
    return frame


def tuned_cell(cell: Cell, grid: LoadedGrid) -> Tuned:
    """The outcome of the trials of a cell: the best mean, of equal ones the nearest to the centre of the grid."""
    first = cell.runs[0].spec
    # By seed, and so every seed's points in the order of the grid.
    tried = tuple(Tried(each[0].spec.point, tuple(each), mean_of(each, grid.metric))
                  for each in by_point(cell.runs).values())  # fmt: skip
    if any(run.state not in ENDED for run in cell.runs):
        return Tuned(tried)
    means = {number: each.mean for number, each in enumerate(tried) if each.mean is not None}
    where = f"{first.row} at {first.column}"
    if not means:
        return Tuned(tried, None, f"{where}: at every value a trial diverged, or has no {grid.metric}: try others")
    sign = 1 if first.task.metrics[grid.metric].better == "lower" else -1

    def off_centre(number: int) -> tuple[list[int], list[float]]:
        """For every key how far the value's rank is from the middle, then the values."""
        own = {key: float(value) for key, value in tried[number].point.items()}
        ranks = {key: sorted({float(each.point[key]) for each in tried}) for key in own}
        apart = [abs(2 * ranks[key].index(value) - len(ranks[key]) + 1) for key, value in own.items()]
        return apart, list(own.values())

    best = min(means, key=lambda number: (sign * means[number], *off_centre(number)))
    return Tuned(tried, best, "; ".join(_at_edges(tried, best, grid, where)) or None)


def _at_edges(tried: Sequence[Tried], best: int, grid: LoadedGrid, where: str) -> Iterator[str]:
    """The values to try besides, for every key whose best value is the least or the greatest."""
    for key in grid.values:
        values = sorted({each.point[key] for each in tried})
        value = tried[best].point[key]
        if value not in (values[0], values[-1]):
            continue
        least = value == values[0]
        yield (
            f"{where}: the best {key} of the trials, {value:g}, is the {'least' if least else 'greatest'} that was "
            f"tried; {_wider(key, values if least else values[::-1])}"
        )


def _wider(key: str, values: Sequence[float]) -> str:
    """The grid with one step more, by the ratio of the first two values, beyond the first. Values stay as they were
    given, so that none is trained again. Where that step may leave what the key can be (below 0, or a share of 1 and
    more), only its direction is said."""
    first, second = values[:2]
    beyond = first * first / second if first > 0 and second > 0 else 2 * first - second
    if all(isinstance(each, int) for each in values):
        beyond = math.ceil(beyond) if beyond > first else math.floor(beyond)
    if beyond == first or (all(0 <= each < 1 for each in values) and beyond >= 1) or beyond <= 0 <= min(values):
        return f"give {key} also values {'above' if first > second else 'below'} {first!r}"
    wider = sorted([float(f"{beyond:.4g}") if isinstance(beyond, float) else beyond, *values])
    return f"widen the grid: {key}: [{', '.join(map(repr, wider))}]"


class Rates(Exhibit):
    """A cell a line: for each place the values, the mean, its standard error and n, and the difference to the baseline
    there (at its own best where the row is at its own) with its 95 % interval; then what the trials chose, and the
    verdict of the table at every row's own best."""

    name = "rates"
    of: ClassVar[Input] = "sweep"
    digits: ClassVar[int] = 8

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        info: TableInfo = runs.attrs["table"]
        grid = info.grid
        assert grid is not None
        cells: dict[str, dict[CellName, Cell]] = {}
        for place, cell in zip(runs["place"], runs["_cell"], strict=True):
            cells.setdefault(place, {})[cell.row, cell.column] = cell
        whole = whole_columns({name: [] for name in cells.get("own", {})})
        places = zip(runs["place"], runs["row"], runs["column"], strict=True)
        at_own = runs[[place == "own" and (row, column) in whole for place, row, column in places]]
        table = rows_of(cells_frame(at_own)) if len(at_own) else []
        verdicts = {(each["row"], each["column"]): each["verdict"] for each in table}
        columns = list(dict.fromkeys(column for _, column in cells["trial"]))
        lines: list[Record] = []
        for name in sorted(cells["trial"], key=lambda name: columns.index(name[1])):
            tuned, trials = tuned_cell(cells["trial"][name], grid), cells["trial"][name].runs
            row, column = name
            key, metric = info.keys[column], info.metrics[column]
            line: Record = {"row": row, "column": column, "metric": key}
            for place in PLACES:
                cell, base = (cells.get(place, {}).get(each) for each in (name, (info.baseline, column)))
                values = {} if cell is None else cell.values(key)
                theirs = base.values(key) if base is not None and row != info.baseline else {}
                ours, apart = summarise(list(values.values())), paired_difference(values, theirs, metric.difference)
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
            line |= {
                "trials": len(trials),
                "trials_ended": sum(run.state in ENDED for run in trials),
                "trials_diverged": sum(run.state is RunState.diverged for run in trials),
                "verdict": verdicts.get(name),
                "problem": tuned.problem,
                "_tuned": tuned,
                "_metric": metric,
            }
            lines.append(line)
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
        tuned, ended, lost = each["_tuned"], each["trials_ended"], each["trials_diverged"]
        edge = ", at the edge" if tuned.problem else ""
        best = point_in_words(tuned.point) + edge if tuned.point is not None else "none" if edge else "-"
        count = str(ended) if ended == each["trials"] else f"{ended} of {each['trials']}"
        made.append([*cells, best, f"{count}, {lost} diverged" if lost else count, each["verdict"] or "-"])
    return made


class Trials(Exhibit):
    """Every value that was tried of a grid of one key; there is none of a grid of several."""

    name = "figure"
    of: ClassVar[Input] = "sweep"

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """A line a point of every cell: `mean` of what decides (NaN where a trial diverged, has no value or has not
        ended), `least` and `greatest` of the trials, whether all have `ended`, and whether it was `chosen`."""
        import pandas as pd

        info: TableInfo = runs.attrs["table"]
        grid = info.grid
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
