"""An ablation of a table: which of its rows are points of it, and where they stand. Plain data, not yet drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.run_directory import RunState
from comt_cli.recipe.schema import DIRECTION, Ablation, AblationName
from comt_cli.report import format
from comt_cli.report.csv_tables import csv_text
from comt_cli.report.metric import METRICS
from comt_cli.report.table import Entry, Table
from comt_cli.report.verdict import collapsed
from comt_cli.report.write import place

COST = "cost"
"""The ablation whose quantity is not an option but the price: parameters beyond the plain model."""
_LARGEST = 1e100
"""Of numbers so large, or so near to 0, a drawing's own arithmetic overflows."""
Axis = Literal["number", "category", "cost"]
Panel = Literal["ours", "paper"]


@dataclass(frozen=True)
class Point:
    """One row under one column, ours or the paper's.

    `x` is the option's value, or for the cost the extra parameters in per cent; None for a category, and where it is
    not known. `value` is the metric (the mean over n seeds, or the printed one), None where there is none.
    `state` is `done`, `missing`, `2 done, 1 diverged` ...; of the paper's `printed`. `collapsed`: a printed value
    above 1000. Of our own runs it is known which diverged.
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


@dataclass(frozen=True)
class AblationData:
    """What the figure of an ablation shows. `points` are in table order within a column, the baseline's first.

    `metric` is the label of the axis of values, of which the `better` ones are the lower or the higher.
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

    def rows(self) -> list[str]:
        """The rows but the baseline, in table order: the categories."""
        return list(dict.fromkeys(point.row for point in self.points if not point.baseline))

    def csv(self) -> str:
        """Every point as a line."""
        return csv_text([asdict(point) for point in self.points])


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
    """What the ablation `name` of a table shows; None while none of its rows but the baseline has ended."""
    ablation = loaded.recipe.ablations[name]
    rows = [row for row in ablation_rows(loaded, name) if row in table.rows]
    others = [row for row in rows if row != table.baseline]
    axis, positions = _positions(loaded, name, ablation, others)
    ordered = [row for row in rows if row == table.baseline]
    ordered += sorted(others, key=lambda row: positions.get(row, 0.0)) if axis == "number" else others
    points = [*_ours(table, ordered, axis, positions), *_paper(loaded, table, ordered, axis, positions)]
    if not any(p.panel == "ours" and not p.baseline and (p.n or "diverged" in p.state) for p in points):
        return None
    return AblationData(
        title=table.title,
        name=name,
        scale=table.scale,
        metric=METRICS[table.metric].label,
        better=DIRECTION[table.metric],
        baseline=table.baseline,
        axis=axis,
        quantity=_quantity(name, ablation),
        points=tuple(points),
        notes=tuple(_notes(table, points, axis)),
    )


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


def _quantity(name: str, ablation: Ablation) -> str:
    return "parameters beyond the plain model, %" if name == COST else ablation.option or name


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
            )


def _paper(
    loaded: LoadedRecipe, table: Table, rows: Iterable[str], axis: Axis, positions: dict[str, float]
) -> Iterator[Point]:
    """Every column of the paper's, whatever the scale's are."""
    recipe = loaded.recipe
    rows = list(rows)
    for column in recipe.columns:
        for row in rows:
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
                collapsed=collapsed(value, table.metric),
                printed_increase=printed,
            )


def _increase(printed: str | None) -> float | None:
    """`22.9%` as a number; `<1%` as the middle of what it may be."""
    if printed is None:
        return None
    number = float(printed.strip("<% "))
    return number / 2 if printed.startswith("<") else number


def _notes(table: Table, points: Iterable[Point], axis: Axis) -> Iterator[str]:
    """What must be said beside the marks: what bars are, seeds that are absent, what could not be placed."""
    ours = [point for point in points if point.panel == "ours"]
    seeds = format.seeds(table.seeds)
    if any(point.stderr is not None for point in ours):
        yield f"Ours: mean ± standard error over seeds {seeds}."
    elif len(table.seeds) == 1:
        yield "Ours: one seed, so no error bars."
    else:
        yield f"Ours: no point has more than one seed of {seeds}, so no error bars."
    shaky = [_named(table, point) for point in ours if point.n and _is_partial(table.entries[point.row, point.column])]
    if shaky:
        yield f"Hollow, since seeds diverged or are absent: {format.listing(shaky)}."
    absent = [f"{_named(table, point)} ({point.state})" for point in ours if not point.n]
    if absent:
        yield f"Without a value: {format.listing(absent)}."
    if axis == "cost" and any((point.printed_increase or "").startswith("<") for point in points):
        yield "An increase printed as <1 % is drawn at 0.5 %."
    if axis == "cost":
        lost = sorted({p.row for p in points if p.panel == "paper" and not p.baseline and p.x is None})
        if lost:
            yield f"The paper prints no increase for {format.listing(lost)}."


def _named(table: Table, point: Point) -> str:
    return f"{point.row} at {point.column}" if len(table.columns) > 1 else point.row


def _is_partial(entry: Entry) -> bool:
    return entry.ours is not None and len(entry.cell.having(RunState.done)) < len(entry.cell.runs)
