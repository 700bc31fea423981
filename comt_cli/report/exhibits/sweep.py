"""A sweep: the values that separate trials select for every cell, the table of every row at the recipe's values, at the
baseline's best and at its own best, and the map of the trials. A best value at the edge of the grid is no optimum: the
cell has a problem instead of a selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.merge import LoadedGrid
from comt_cli.report import format
from comt_cli.report.caption import in_markdown, notes, pipes
from comt_cli.report.cells import cells_frame
from comt_cli.report.collect import ENDED, Cell, Run, by_point, collect, mean_of
from comt_cli.report.exhibits import Exhibit, Input
from comt_cli.report.frame import Record, TableInfo, cells_of, frame_of, run_record, table_info
from comt_cli.report.words import tried_values
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import RunSpec, chosen_runs, point_in_words
from comt_cli.words import in_words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Place = Literal["recipe", "baseline", "own"]
PLACES: dict[Place, str] = {"recipe": "the recipe's", "baseline": "the baseline's best", "own": "its own best"}
"""The values at which the runs of a cell are shown."""
CellName = tuple[str, str]  # row and column

FAR = 4.0  # a mean so many times worse than the best of its column, or more, has the darkest colour


@dataclass(frozen=True)
class Tried:
    """A configuration of a cell's grid: its trials, and the mean of the selecting metric; None if a trial diverged, has
    no value, or has not ended."""

    point: Mapping[str, Any]
    runs: tuple[Run, ...]
    mean: float | None


@dataclass(frozen=True)
class Tuned:
    """Outcome of a cell's trials: every configuration in the order of the grid, the number of the `best`, None if a
    trial has not ended or none has a value; and the `problem` that prevents its selection."""

    tried: tuple[Tried, ...]
    best: int | None = None
    problem: str | None = None

    @property
    def chosen(self) -> int | None:
        """The number of the selected configuration, as `LoadedGrid.planned` counts; None without one."""
        return None if self.best is None or self.problem is not None else self.best + 1

    @property
    def point(self) -> Mapping[str, Any] | None:
        """The best configuration, selected or not."""
        return None if self.best is None else self.tried[self.best].point


@dataclass(frozen=True)
class SweepState:
    """The state of a sweep: `shown` has the runs at all known values."""

    loaded: LoadedRecipe
    scale: str
    seeds: tuple[int, ...]
    tuned: dict[CellName, Tuned]
    trials: list[RunSpec]
    shown: dict[Place, dict[CellName, list[RunSpec]]] = field(default_factory=dict)

    @property
    def grid(self) -> LoadedGrid:
        """The grid."""
        return self.loaded.grids[self.scale]

    @property
    def specs(self) -> list[RunSpec]:
        """All runs known so far: the trials, then those that are shown, each once."""
        every = [*self.trials, *(spec for cells in self.shown.values() for specs in cells.values() for spec in specs)]
        return list({spec.request: spec for spec in every}.values())

    @property
    def problems(self) -> dict[CellName, str]:
        """The reasons why cells without open trials have no selection."""
        return {cell: tuned.problem for cell, tuned in self.tuned.items() if tuned.problem is not None}

    @property
    def at_most(self) -> list[RunSpec]:
        """`specs`, and for every open selection runs of the same cost as the selected ones."""
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
    """The sweep of a plan (`runs.plan.plan`), from the run directories below `runs`. A baseline that was planned only
    for its trials is not shown."""
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
    for place in ("baseline", "own"):  # the trials know the hash of data that is not prepared here
        for name, each in shown[place].items():
            shown[place][name] = [spec.with_contents(contents) for spec in each]
    return SweepState(loaded, scale, seeds, tuned, trials, shown)


def whole_columns(chosen: Mapping[CellName, list[RunSpec]]) -> dict[CellName, list[RunSpec]]:
    """The cells of a table: of the rows that have a selection anywhere, the columns in which all of them have one;
    without any, the first column."""
    rows, columns = {row for row, _ in chosen}, list(dict.fromkeys(column for _, column in chosen))
    whole = [column for column in columns if all((row, column) in chosen for row in rows)] or columns[:1]
    return {cell: specs for cell, specs in chosen.items() if cell[1] in whole}


def sweep_frame(state: SweepState, runs: Path) -> pd.DataFrame:
    """The frame of all runs of a sweep: the trials, and the runs at each of the three values (`place`)."""
    shown = {place: [spec for specs in each.values() for spec in specs] for place, each in state.shown.items()}
    order, records = list(state.tuned), []
    for place, specs in (("trial", state.trials), *shown.items()):
        cells = collect(specs, runs, remarks=False).cells
        for name in sorted(cells, key=order.index):
            # by configuration, as in the table of trials
            shown_runs = (run for each in state.tuned[name].tried for run in each.runs)
            for run in shown_runs if place == "trial" else cells[name].every:
                records.append({**run_record(run, state.loaded.origin), "_cell": cells[name], "place": place})
    frame = frame_of(records)
    frame.attrs = {"table": table_info(state.loaded, state.trials), "notes": (), "seeds": state.seeds}
    return frame


def tuned_cell(cell: Cell, grid: LoadedGrid) -> Tuned:
    """The outcome of the trials of a cell: the best mean, of equal ones the nearest to the centre of the grid."""
    first = cell.runs[0].spec
    # By seed, so that every seed's configurations are in the order of the grid.
    tried = tuple(Tried(each[0].spec.point, tuple(each), mean_of(each, grid.metric))
                  for each in by_point(cell.runs).values())  # fmt: skip
    if any(run.state not in ENDED for run in cell.runs):
        return Tuned(tried)
    means = {number: each.mean for number, each in enumerate(tried) if each.mean is not None}
    where = f"{first.row} at {first.column}"
    if not means:
        return Tuned(tried, None, f"{where}: at every value a trial diverged, or has no {grid.metric}: try others")
    sign = 1 if first.task.metrics[grid.metric].better == "lower" else -1
    values = {key: sorted({each.point[key] for each in tried}) for key in grid.values}

    def order(number: int) -> tuple[float, list[int], list[Any]]:
        """By the mean, then for every key by the distance of the value's rank from the middle, then by values."""
        own = tried[number].point
        apart = [abs(2 * known.index(own[key]) - len(known) + 1) for key, known in values.items()]
        return sign * means[number], apart, [own[key] for key in values]

    best = min(means, key=order)
    problems = []
    for key, known in values.items():
        if (value := tried[best].point[key]) in (known[0], known[-1]):
            end, way = ("least", "below") if value == known[0] else ("greatest", "above")
            said = f"{value:g}, is the {end} that was tried; give {key} also values {way} {value!r}"
            problems.append(f"{where}: the best {key} of the trials, {said}")
    return Tuned(tried, best, "; ".join(problems) or None)


class Rates(Exhibit):
    """One line per cell: for each of the three values the mean, its standard error and n, and the difference to the
    baseline there (at its own best if the row is at its own) with its 95 % interval; then the selected values, and the
    verdict of the table at every row's own best."""

    name = "rates"
    of: ClassVar[Input] = "sweep"
    digits: ClassVar[int] = 8

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        info: TableInfo = runs.attrs["table"]
        grid = info.grid
        assert grid is not None
        parts = {place: runs[runs["place"] == place] for place in PLACES}
        tables = {place: cells_frame(part).to_dict("records") if len(part) else [] for place, part in parts.items()}
        cells = {place: {(each["row"], each["column"]): each for each in found} for place, found in tables.items()}
        whole = whole_columns({name: [] for name in cells["own"]})
        trials = _trials_of(runs)
        columns = list(dict.fromkeys(column for _, column in trials))
        lines: list[Record] = []
        for name in sorted(trials, key=lambda name: columns.index(name[1])):
            tuned, ran = tuned_cell(trials[name], grid), trials[name].runs
            row, column = name
            metric = info.metrics[column]
            line: Record = {"row": row, "column": column, "metric": info.keys[column]}
            for place in PLACES:
                cell = cells[place].get(name)
                point = cell["_cell"].runs[0].spec.point if cell else {}
                line |= {f"{place}.{key}": point.get(key) for key in grid.values}
                shown = ("mean", "stderr", "n", f"difference_{metric.difference.name}", "interval_low", "interval_high")
                line |= {f"{place}.{key}": cell[key] if cell else 0 if key == "n" else None for key in shown}
                line |= {f"_{place}": cell}
            line |= {
                "trials": len(ran),
                "trials_ended": sum(run.state in ENDED for run in ran),
                "trials_diverged": sum(run.state is RunState.diverged for run in ran),
                "verdict": cells["own"][name]["verdict"] if name in whole else None,
                "problem": tuned.problem,
                "_tuned": tuned,
                "_metric": metric,
            }
            lines.append(line)
        frame = frame_of(lines)
        at_recipe = {point_in_words(each["_cell"].runs[0].spec.point) for each in cells["recipe"].values()}
        frame.attrs = {
            "title": f"{info.recipe.title}: sweep",
            "baseline": info.baseline,
            "tried": tried_values(grid),
            "grid": grid,
            "at_recipe": sorted(at_recipe),
            "seeds": runs.attrs["seeds"],
        }
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        return notes("rates", frame.attrs, problems=frame["problem"].dropna())

    def page(self, frame: pd.DataFrame) -> str:
        said = map(in_markdown, self.sentences(frame))
        return "\n\n".join([f"# {in_markdown(frame.attrs['title'])}", *said, pipes(texts(frame))]) + "\n"


def _trials_of(runs: pd.DataFrame) -> dict[CellName, Cell]:
    return cells_of(runs[runs["place"] == "trial"])


def texts(frame: pd.DataFrame) -> list[list[str]]:
    """The table as texts, the headings first."""
    lines, baseline = frame.to_dict("records"), frame.attrs["baseline"]
    several = frame["column"].nunique() > 1
    signs = "/".join(dict.fromkeys(each["_metric"].difference.sign for each in lines))
    head = ["method", *(["column"] if several else [])]
    for said in PLACES.values():
        head += [f"at {said}", f"vs {baseline}, {signs} [95 %]"]
    made = [[*head, "best of the trials", "trials (n)", "verdict at own best"]]
    for each in lines:
        texts = [each["row"], *([each["column"]] if several else [])]
        for cell in (each[f"_{place}"] or {"_ours": None, "_apart": None, "state": "-"} for place in PLACES):
            ours, apart = cell["_ours"], cell["_apart"]
            texts.append(format.summary(ours, each["_metric"].decimals) if ours else cell["state"])
            texts.append("-" if apart is None else format.difference(apart))
        tuned, ended, lost = each["_tuned"], each["trials_ended"], each["trials_diverged"]
        edge = ", at the edge" if tuned.problem else ""
        best = point_in_words(tuned.point) + edge if tuned.point is not None else "none" if edge else "-"
        count = str(ended) if ended == each["trials"] else f"{ended} of {each['trials']}"
        made.append([*texts, best, f"{count}, {lost} diverged" if lost else count, each["verdict"] or "-"])
    return made


class Trials(Exhibit):
    """All tried values of a grid with one key; empty for a grid with several."""

    name = "figure"
    of: ClassVar[Input] = "sweep"

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """One line per configuration of every cell: `mean` of the selecting metric (NaN if a trial diverged, has no
        value or has not ended), `least` and `greatest` of the trials, whether all have `ended`, and whether it was
        `chosen`."""
        import pandas as pd

        info: TableInfo = runs.attrs["table"]
        grid = info.grid
        if grid is None or len(grid.values) != 1:
            return pd.DataFrame()
        ((key, _),) = grid.values.items()
        cells = _trials_of(runs)
        every = {name: tuned_cell(cell, grid) for name, cell in cells.items()}
        lines: list[dict[str, Any]] = []
        for (row, column), tuned in every.items():
            for number, tried in enumerate(tuned.tried, 1):
                values = [value for run in tried.runs if (value := run.value(grid.metric)) is not None]
                lines.append({
                    "column": column,
                    "row": row,
                    "value": float(tried.point[key]),
                    "mean": tried.mean,
                    "least": min(values, default=None),
                    "greatest": max(values, default=None),
                    "n": len(values),
                    "diverged": sum(run.state is RunState.diverged for run in tried.runs),
                    "ended": all(run.state in ENDED for run in tried.runs),
                    "chosen": tuned.chosen == number,
                })  # fmt: skip
        frame = pd.DataFrame(lines).astype({"mean": float, "least": float, "greatest": float})
        named = {cell.column: cell.runs[0].spec for cell in reversed(cells.values())}
        trained = {column: spec.task.network_and_data(spec.settings) for column, spec in reversed(named.items())}
        metric, said = info.task.metrics[grid.metric], key.rpartition(".")[2].replace("_", " ")
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
        return notes("trials", frame.attrs, far=FAR)

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
                axes.set_title(f"{in_words(column)}: {attrs['metric']}")
                _draw_map(axes, own, lower=attrs["lower"], decimals=attrs["decimals"])
            panels[-1].set_xlabel(attrs["key"])
            shades = ScalarMappable(LogNorm(1, FAR), colormaps[SEQUENCE].reversed())
            bar = figure.colorbar(shades, ax=list(panels), label="times the best", ticks=[1, 2, FAR], aspect=40)
            bar.ax.set_yticklabels(["1", "2", f"{FAR:g} or more"])
            bar.minorticks_off()
        return figure


def _draw_map(axes: Axes, own: pd.DataFrame, *, lower: bool, decimals: int) -> None:
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    from comt_cli.report.figures.style import SEQUENCE

    order = own.groupby("row", sort=False)["mean"].agg("min" if lower else "max")
    rows = list(order.sort_values(ascending=lower, kind="stable", na_position="last").index)
    table = own.pivot(index="row", columns="value", values="mean").loc[rows]
    best = float(order.min() if lower else order.max())
    best = best if best > 0 else 1.0  # of scores that are all 0 no multiple says how far off one is
    norm = LogNorm(best, FAR * best, clip=True) if lower else LogNorm(best / FAR, best, clip=True)
    colours = colormaps[SEQUENCE].reversed() if lower else colormaps[SEQUENCE]
    axes.imshow(table, cmap=colours, norm=norm, aspect="auto")
    axes.grid(visible=False)
    axes.set_yticks(range(len(rows)), rows, fontsize=6.5)
    axes.set_xticks(range(table.shape[1]), [f"{float(value):.3g}" for value in table.columns.to_list()])
    points = own.set_index(["row", "value"])[["ended", "chosen"]].to_dict("index")
    for (down, across), mean in np.ndenumerate(table.to_numpy(dtype=float)):
        point, is_known = points[rows[down], table.columns[across]], bool(np.isfinite(mean))
        if point["chosen"]:
            axes.add_patch(Rectangle((across - 0.48, down - 0.46), 0.96, 0.92, fill=False, linewidth=1.2))
        if is_known or point["ended"]:
            said = f"{mean:,.{decimals}f}" if is_known else "×"
            is_dark = is_known and (norm(mean) > 0.5) == lower
            axes.text(across, down, said, ha="center", va="center", fontsize=6, color="white" if is_dark else "black",
                      fontweight="bold" if point["chosen"] else "normal")  # fmt: skip
