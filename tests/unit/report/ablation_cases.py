"""A recipe with ablations whose runs end as a test says, and what can be read off a drawn panel."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from planning_on import plan_on

from comt_cli.methods import catalogue
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.report.ablation import AblationData, ablation_data
from comt_cli.report.ablation_points import Point
from comt_cli.report.table import build_table
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.words import in_words

RECIPE = """
title: Widths
paper: comt
table: table9
command: train-lm
baseline: baseline
seeds: [1, 2, 3]
settings:
  model: {size: tiny}
  data: {corpus: python-docs, vocabulary: 512, sequence_length: 64}
  train: {steps: 200, batch_size: 8}
rows:
  baseline: {method: pre-ln, paper: {c4/60m: 33.28, c4/130m: 26.07, c4/250m: 1409.79}}
  "16": {method: {name: comt, hidden: 16}, paper: {c4/60m: 32.56, c4/130m: 23.82, c4/250m: 21}}
  "2": {method: {name: comt, hidden: 2}, paper: {c4/60m: 32.69, c4/130m: 23.83, c4/250m: null}}
  "8": {method: {name: comt, hidden: 8}, paper: {c4/60m: 32.21, c4/130m: 1088, c4/250m: 22}}
columns:
  c4/60m: {}
  c4/130m: {}
  c4/250m: {}
ablations:
  hidden-size: {rows: ["2", "8"], option: hidden}
  modules: {}
  cost: {}
scales:
  smoke: {description: Tiny, columns: {tiny: {compare_to: c4/60m}}}
"""
INCREASES = {"2": "<1%", "8": "1.5%", "16": "3%"}
VALUES = {"baseline": 100.0, "16": 94.0, "2": 97.0, "8": 95.0}


class Bench:
    """The recipe with some rows added, and runs that ended as a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        text = RECIPE
        for row, increase in INCREASES.items():
            text = text.replace(f"hidden: {row}}}, ", f"hidden: {row}}}, paper_increase: {{c4/60m: {increase}}}, ")
        self.recipe = folder / "table9.yaml"
        self.recipe.write_text(text, encoding="utf-8")
        self.also: dict[str, object] = {}

    def loaded(self) -> LoadedRecipe:
        return load_recipe(self.recipe, catalogue(), also=self.also)

    def specs(self, seeds: list[int] | None = None) -> list[RunSpec]:
        return plan_on(self.loaded(), "smoke", lambda _: ("feedfeedfeedfeed", "c0ffee"), seeds=seeds)

    def ended(self, row: str, seeds: tuple[int, ...] = (1, 2, 3), *, value: float | None = None, **result) -> None:
        for spec in self.specs():
            if spec.row == row and spec.seed in seeds:
                directory = RunDirectory.of(self.runs, spec)
                directory.create(spec)
                perplexity = (VALUES[row] if value is None else value) + spec.seed
                content = {"state": "done", "perplexity": perplexity, "extra_parameters_percent": len(row), **result}
                directory.result_file.write_text(json.dumps(content), encoding="utf-8")

    def data(self, name: str = "hidden-size", seeds: list[int] | None = None) -> AblationData:
        found = ablation_data(self.loaded(), build_table(self.loaded(), self.specs(seeds), self.runs), name)
        assert found is not None
        return found


def synthetic(axis: str, columns: int, rows: int) -> AblationData:
    """As many columns on both sides, rows with long names, values of every kind."""
    points = []
    for side in ("ours", "paper"):
        for column in range(columns):
            for row in range(rows + 1):
                is_absent = side == "ours" and row == 2
                point = Point(
                    panel=side,
                    column=f"openwebtext/{column}50m",
                    row=f"without-learnable-{row}",
                    baseline=row == 0,
                    x=None if axis == "category" else 2.0**row - 1 if axis == "cost" else 2.0**row,
                    value=None if is_absent else 20.0 + row + 1300 * (row == 3),
                    stderr=0.5 if side == "ours" and not is_absent else None,
                    n=0 if is_absent else 3,
                    state="diverged" if is_absent else "done",
                    collapsed=side == "paper" and row == 3,
                    printed_increase=None,
                )
                points.append(point)
    title = "A title that is longer than any page of a figure is wide, " * 3
    notes = ("A note that says what is absent, and why the others are as they are, at length.",) * 3
    quantity = "a quantity, %"
    trained = "LLaMA tiny (4 layers, 128 wide) on python-docs, 480 steps of 4 x 128 tokens; seeds 1-3; scale smoke"
    return AblationData(
        title, "cost", "smoke", "perplexity", "lower", "plain", axis, quantity, tuple(points), notes, trained
    )


def accuracies(*values: float | None) -> AblationData:
    """A baseline of 91.1 and a point for each value, ours alone, of which the higher ones are the better."""
    rows = [("baseline", None, 91.1), *((str(2**n), 2.0**n, value) for n, value in enumerate(values, start=1))]
    points = tuple(
        Point("ours", "cifar10", row, row == "baseline", x, value, 0.1 if value else None, 3 if value else 0,
              "done" if value else "missing", collapsed=False, printed_increase=None)
        for row, x, value in rows
    )  # fmt: skip
    return AblationData("A", "ratio", "smoke", "accuracy", "higher", "baseline", "number", "ratio", points, ())


def spread(*numbers: float) -> AblationData:
    """A point at each of the numbers."""
    data = accuracies(*(60.0 + place for place in range(len(numbers))))
    points = [replace(point, x=x) for point, x in zip(data.points, (None, *numbers), strict=True)]
    return replace(data, points=tuple(points))


def panel(figure: Figure, title: str) -> Axes:
    """The panel of a column; of ours it is called tiny."""
    (found,) = [axes for axes in figure.axes if axes.get_title(loc="left").split("\n")[0] == in_words(title)]
    return found


def marks(axes: Axes) -> list[tuple[float, float]]:
    """Where points are drawn, on the panel's scales."""
    lines = [line for line in axes.get_lines() if line.get_marker() == "o"]
    return sorted((float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines)


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_text()]


def beyond(axes: Axes) -> Axes:
    """The strip of what is off a panel's scale."""
    (found,) = axes.child_axes
    return found


def bars(axes: Axes) -> list[tuple[float, float, float]]:
    """The bars of a panel: x and both ends."""
    lines = [line for line in axes.get_lines() if line.get_label() == "bar"]
    return sorted((float(line.get_xdata()[0]), *map(float, line.get_ydata())) for line in lines)


def said_below(figure: Figure) -> str:
    """What stands under the panels, in a line."""
    return figure.get_supxlabel().replace("\n", " ")
