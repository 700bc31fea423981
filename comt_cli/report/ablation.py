"""An ablation of a table: which of its rows are points of it, and where they stand. Plain data, not yet drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.schema import Ablation, AblationName
from comt_cli.report import ablation_words, format, trained
from comt_cli.report.ablation_points import Curve, Panel, Point
from comt_cli.report.caption import Caption
from comt_cli.report.csv_tables import csv_text
from comt_cli.report.entry import Entry
from comt_cli.report.remarks import other_settings
from comt_cli.report.table import Table
from comt_cli.report.words import paper_name
from comt_cli.report.write import place
from comt_cli.runs.directory import RunState
from comt_cli.tasks.base import Metric
from comt_cli.words import in_words

COST = "cost"
"""The ablation whose quantity is not an option but the price: parameters beyond the plain model."""
_NEAR_FLOOR = 2
"""An accuracy of at most so many times that of guessing is no learning to speak of."""
_LARGEST = 1e100
"""Of numbers so large, or so near to 0, a drawing's own arithmetic overflows."""
Axis = Literal["number", "category", "cost"]


@dataclass(frozen=True)
class AblationData:
    """What the figure of an ablation shows. `points` are in table order within a column, the baseline's first.

    `title` is the question, `trained` says what our runs were. `metric` is the label of the axis of values, of which
    the `better` ones are the lower or the higher. Differences are `relative` to the baseline, in per cent, or else in
    points. `shares`: the numbers are shares from 0 to 1. `floors`: for each of our columns the value of a network that
    has learned nothing, where it is known.
    """

    title: str
    name: str
    scale: str
    metric: str
    better: Literal["lower", "higher"]
    baseline: str
    axis: Axis
    quantity: str
    points: tuple[Point, ...]
    notes: tuple[str, ...]
    trained: str = ""
    paper: str = "the paper"
    relative: bool = True
    shares: bool = False
    floors: Mapping[str, float] = field(default_factory=dict)

    def columns(self, panel: Panel) -> list[str]:
        """The columns that have a point on one side, in table order."""
        return list(dict.fromkeys(point.column for point in self.points if point.panel == panel))

    def of(self, panel: Panel, column: str) -> list[Point]:
        """The points of a curve, without the baseline."""
        return [p for p in self.points if (p.panel, p.column, p.baseline) == (panel, column, False)]

    def baseline_of(self, panel: Panel, column: str) -> Point | None:
        """The baseline of a curve."""
        found = (p for p in self.points if (p.panel, p.column, p.baseline) == (panel, column, True))
        return next(found, None)

    def rows(self, panel: Panel) -> list[str]:
        """The rows but the baseline that have a point on one side, in table order: its categories."""
        return list(dict.fromkeys(p.row for p in self.points if not p.baseline and p.panel == panel))

    def curves(self, panel: Panel) -> list[Curve]:
        """The curves of one side, in table order."""
        worse_is_up = self.better == "lower"
        return [
            Curve(panel, name, tuple(self.of(panel, name)), self.baseline_of(panel, name), worse_is_up, self.relative)
            for name in self.columns(panel)
        ]

    def at_floor(self, point: Point) -> bool:
        """Whether a point of ours is so near to what guessing gets that its network has learned nothing to speak of."""
        floor = self.floors.get(point.column) if point.panel == "ours" else None
        return floor is not None and point.value is not None and point.value <= _NEAR_FLOOR * floor

    def csv(self) -> str:
        """Every point as a line."""
        return csv_text([asdict(point) for point in self.points])

    def caption(self) -> Caption:
        """The text beside the figure."""
        return Caption(self.title, self.trained, self.notes)


def ablation_rows(loaded: LoadedRecipe, name: AblationName) -> list[str]:
    """The rows of an ablation in table order, with the baseline.

    Those that the recipe names (or all), and every other row that differs from one of them in the varied option alone:
    a point that was added.
    """
    ablation, recipe = loaded.recipe.ablations[name], loaded.recipe
    named = list(ablation.rows or recipe.rows)
    option = ablation.option
    if option is not None:
        apart = [_without(loaded.methods[row], option) for row in named if option in loaded.methods[row]]
        named += [
            row
            for row, method in loaded.methods.items()
            if row not in named and option in method and _without(method, option) in apart
        ]
    return [row for row in recipe.rows if row in named or row == recipe.baseline]


def _without(method: dict[str, Any], option: str) -> dict[str, Any]:
    return {key: value for key, value in method.items() if key != option}


def ablation_stem(results: Path, table: Table, name: str) -> tuple[Path, str]:
    """Folder and stem of an ablation's figure: `<results>/<scale>/<folder>/<name>-<ablation>`."""
    return place(results, table.scale, table.folder, f"{table.name}-{name}")


def ablation_data(loaded: LoadedRecipe, table: Table, name: AblationName) -> AblationData | None:
    """What the ablation `name` of a table shows, in the columns of the recipe's own metric; None while none of its rows
    but the baseline has ended."""
    ablation, key = loaded.recipe.ablations[name], loaded.recipe.metric
    elsewhere = [column for column in table.columns if table.metrics[column] != key]
    table = table.only(table.rows, [column for column in table.columns if column not in elsewhere])
    metric = table.task.metrics[key]
    if not table.columns:
        return None
    rows = [row for row in ablation_rows(loaded, name) if row in table.rows]
    others = [row for row in rows if row != table.baseline]
    axis, positions = _positions(loaded, name, ablation, others)
    ordered = [row for row in rows if row == table.baseline]
    ordered += sorted(others, key=lambda row: positions.get(row, 0.0)) if axis == "number" else others
    points = [*_ours(table, ordered, axis, positions)]
    if table.paper is not None:  # no number of the paper's stands beside runs of another text, size or length
        points += _paper(loaded, metric, ordered, axis, positions)
    if not any(p.panel == "ours" and not p.baseline and (p.n or "diverged" in p.state) for p in points):
        return None
    share = ablation_words.SHARES.get(ablation.option or "") if axis == "number" else None
    points = [replace(p, position=share(p.x) if share and p.x is not None else p.x) for p in points]
    guessed = table.columns if key == table.task.metric else ()
    floors = {column: table.task.chance(table.specs[column].settings) for column in guessed}
    data = AblationData(
        title=ablation_words.QUESTIONS[name],
        name=name,
        scale=table.scale,
        metric=metric.label,
        better=metric.better,
        baseline=table.baseline,
        axis=axis,
        quantity=ablation_words.COST_WORDS if name == COST else ablation_words.axis_words(ablation.option),
        points=tuple(points),
        notes=(),
        trained=trained.of_table(table),
        paper=paper_name(table.paper or ""),
        relative=metric.difference.is_relative,
        shares=share is not None,
        floors={column: floor for column, floor in floors.items() if floor is not None},
    )
    left_out = f"Not drawn, since they show another metric: {format.listing(elsewhere)}."
    return replace(data, notes=(*_notes(table, data), *([left_out] if elsewhere else [])))


def _positions(
    loaded: LoadedRecipe, name: str, ablation: Ablation, rows: Iterable[str]
) -> tuple[Axis, dict[str, float]]:
    """Numbers where every row has one of its own for the varied option, and an axis can hold them; else the rows are
    categories."""
    if name == COST:
        return "cost", {}
    values = {row: loaded.methods[row].get(ablation.option) for row in rows} if ablation.option else {}
    numbers = {
        row: float(value)
        for row, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    fit = all(not number or 1 / _LARGEST < abs(number) < _LARGEST for number in numbers.values())
    is_numeric = bool(values) and len(set(numbers.values())) == len(values) and fit
    return ("number", numbers) if is_numeric else ("category", {})


def _ours(table: Table, rows: Iterable[str], axis: Axis, positions: dict[str, float]) -> Iterator[Point]:
    rows = list(rows)
    for column in table.columns:
        for row in rows:
            entry = table.entries[row, column]
            ours = entry.ours
            yield Point(
                panel="ours",
                column=column,
                row=row,
                baseline=row == table.baseline,
                x=entry.extra_parameters_percent if axis == "cost" else positions.get(row),
                value=ours.mean if ours else None,
                stderr=ours.stderr if ours else None,
                n=ours.n if ours else 0,
                state=entry.cell.state,
                collapsed=False,
                printed_increase=None,
                difference=entry.difference.mean if entry.difference else None,
                interval_low=entry.difference.low if entry.difference else None,
                interval_high=entry.difference.high if entry.difference else None,
            )


def _paper(
    loaded: LoadedRecipe, metric: Metric, rows: Iterable[str], axis: Axis, positions: dict[str, float]
) -> Iterator[Point]:
    """Every column of the paper with the recipe's metric, at any scale."""
    recipe = loaded.recipe
    rows = list(rows)
    for column, told in recipe.columns.items():
        for row in rows if told.metric in (None, recipe.metric) else ():
            value = recipe.rows[row].paper.get(column)
            if value is None:
                continue
            printed = recipe.rows[row].paper_increase.get(column)
            yield Point(
                panel="paper",
                column=column,
                row=row,
                baseline=row == recipe.baseline,
                x=_increase(printed) if axis == "cost" else positions.get(row),
                value=value,
                stderr=None,
                n=1,
                state="printed",
                collapsed=metric.collapsed(value),
                printed_increase=printed,
            )


def _increase(printed: str | None) -> float | None:
    """`22.9%` as a number; `<1%` as the middle of what it may be."""
    if printed is None:
        return None
    number = float(printed.strip("<% "))
    return number / 2 if printed.startswith("<") else number


def _notes(table: Table, data: AblationData) -> Iterator[str]:
    """What must be said beside the marks: what bars are, seeds that are absent, rows that were trained otherwise, what
    could not be placed."""
    ours = [point for point in data.points if point.panel == "ours"]
    seeds = format.seeds(table.seeds)
    several = len(table.columns) > 1
    curves = [*data.curves("ours"), *data.curves("paper")]
    if any(curve.line() for curve in curves):
        yield f"Broken line (- -): {data.baseline}."
    if any(curve.off_scale() for curve in curves):
        is_told = any(point.collapsed for point in data.points)
        collapse = " (a printed one above 1000 is a collapsed run)" if is_told else ""
        yield f"Triangles on a broken axis: values off the scale, with their numbers{collapse}."
    if any(point.interval_low is not None for point in ours):
        yield (
            f"Bars: 95 % interval of the difference to {table.baseline}, paired by seed ({seeds}) and drawn from the "
            "broken line; a bar that reaches the line is not resolved, and one that ends in an arrow continues."
        )
    if any(point.stderr is not None and not point.baseline and point.interval_low is None for point in ours):
        yield f"Thin bars: mean ± standard error over seeds {seeds}, where there is no pair of seeds to compare."
    if len(table.seeds) == 1:
        yield "Ours: one seed, so no error bars."
    elif all(point.stderr is None for point in ours):
        yield f"Ours: no point has more than one seed of {seeds}, so no error bars."
    low = [_named(point, several=several) for point in ours if data.at_floor(point)]
    if low:
        floors = sorted(set(data.floors.values()))
        guessing = format.listing(f"{floor:g} %" for floor in floors)
        yield (
            f"Hardly anything was learned by {format.listing(low)}: at most {_NEAR_FLOOR} times the accuracy of "
            f"guessing ({guessing})."
        )
    shaky = [
        _named(point, several=several)
        for point in ours
        if point.n and _is_partial(table.entries[point.row, point.column])
    ]
    if shaky:
        yield f"Hollow, since seeds diverged or are absent: {format.listing(shaky)}."
    absent = [f"{_named(point, several=several)} ({point.state})" for point in ours if not point.n]
    if absent:
        yield f"Without a value: {format.listing(absent)}."
    rows = {point.row for point in ours}
    yield from other_settings([run.spec for run in table.runs() if run.spec.row in rows], table.baseline)
    if data.axis == "cost" and any((point.printed_increase or "").startswith("<") for point in data.points):
        yield "An increase printed as <1 % is drawn at 0.5 %."
    if data.axis == "cost":
        lost = sorted({p.row for p in data.points if p.panel == "paper" and not p.baseline and p.x is None})
        if lost:
            yield f"The paper prints no increase for {format.listing(lost)}."


def _named(point: Point, *, several: bool) -> str:
    return f"{point.row} at {in_words(point.column)}" if several else point.row


def _is_partial(entry: Entry) -> bool:
    return entry.ours is not None and len(entry.cell.having(RunState.done)) < len(entry.cell.runs)
