"""Cells of a recipe that start from published weights: what is wrong with them, and the tokenizer that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from comt_cli.recipe.merge import Cell
from comt_cli.recipe.schema import Catalogue, Methods, Recipe, Wrong
from comt_cli.recipe.settings import RunSettings


class LoadedWeights(NamedTuple):
    """Published weights that are started from, and how what is added to them starts."""

    weights: str
    added: Literal["identity", "paper"]


Starts = Mapping[str, Mapping[Cell, Any]]
"""By scale and cell what is started from, of which only published weights count here."""


def unfit(starts: Starts, methods: Methods, catalogue: Catalogue, task: Any) -> Wrong:
    """Rows that cannot start from published weights, as far as their names tell."""
    for row, begun in ((row, begun) for cells in starts.values() for (row, _), begun in cells.items()):
        if not isinstance(begun, LoadedWeights) or row not in methods:
            continue
        if not task.takes_weights:
            yield ("start",), f"published weights are those of language models, and {task.command} trains others"
        name = methods[row]["name"]
        if begun.added == "identity" and "scale" in catalogue.methods[name].later and "scale" not in methods[row]:
            said = f"its gates are below one, and the weights are to compute what they did: {{name: {name}, scale: 2}}"
            yield ("rows", row, "method"), f"{said}, or start: {{weights: ..., added: paper}}"


def with_tokenizers(points: dict[str, dict[Cell, list[RunSettings]]], starts: Starts, recipe: Recipe) -> Wrong:
    """Put the name of the weights that a cell starts from in the place of its tokenizer `start`; what is wrong."""
    for scale, cells in points.items():
        for (row, column), several in cells.items():
            if getattr(several[0].data, "tokenizer", None) != "start":
                continue
            begun = starts[scale].get((row, column))
            if not isinstance(begun, LoadedWeights):
                at = (*recipe.column_path(scale, column), "settings", "data", "tokenizer")
                yield at, f"is `start`, and the row {row} starts from no published weights"
                continue
            own = {"tokenizer": f"weights:{begun.weights}"}
            datas = [each.data.model_copy(update=own) for each in several]
            cells[row, column] = [
                each.model_copy(update={"data": data}) for each, data in zip(several, datas, strict=True)
            ]
