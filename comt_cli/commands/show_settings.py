"""`comt show --settings ROW,COLUMN`: every setting of a cell, and where its value was given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from comt_cli.errors import UserError
from comt_cli.recipe.load import LoadedRecipe, select
from comt_cli.recipe.merge import Origin

LONG = 24
"""Characters of a value that does not decide how wide the column of values is."""


@dataclass(frozen=True)
class Setting:
    """A setting as a run has it. `given_by` is `FILE:LINE`, an argument, or `default`."""

    key: str
    value: Any
    given_by: str


def print_settings(loaded: LoadedRecipe, scale: str, cell: str, *, as_json: bool) -> None:
    """Print the settings of `cell`, a row and, where the scale has several columns, a column: `pre-ln,c4/130m`.

    Raises:
        UserError: the recipe has no such scale, or the scale no such row or column, or the column is not said.
    """
    select(scale, map(str, loaded.recipe.scales), "scale")
    row, column = _cell(loaded, scale, cell)
    found = list(settings_of(loaded, scale, row, column))
    if as_json:
        typer.echo(json.dumps([asdict(setting) for setting in found], indent=2))
        return
    typer.echo(f"{loaded.name}, scale {scale}: {row} under {column}\n")
    keys, values = [setting.key for setting in found], [_shown(setting.value) for setting in found]
    key_width = max(map(len, keys))
    value_width = max(len(value) for value in values if len(value) <= LONG)
    for key, value, setting in zip(keys, values, found, strict=True):
        typer.echo(f"{key:{key_width}}  {value:{value_width}}  {setting.given_by}")


def settings_of(loaded: LoadedRecipe, scale: str, row: str, column: str) -> Iterator[Setting]:
    """The options of the method, then the sections of the settings, key by key, and the run that it starts from. What a
    named size decides has its number."""
    stands = loaded.document.data["rows"][row]["method"]
    for key, value in loaded.methods[row].items():
        is_given = key == "name" or (isinstance(stands, dict) and key in stands)
        path = ("rows", row, "method", key)
        origin = Origin(path, loaded.document) if path[:2] in loaded.document.lines else Origin(argument="--also")
        yield Setting(f"method.{key}", value, _place(loaded, origin) if is_given else "default")
    settings, origins = loaded.settings[scale][row, column], loaded.origins[scale][row, column]
    grid = loaded.grids.get(scale)
    tried = [] if grid is None or grid.seeds else [grid.of(point) for point in loaded.points[scale][row, column]]
    shape = settings.model.shape()
    for section, values in settings.model_dump(mode="json").items():
        for key, value in values.items():
            name = f"{section}.{key}"
            if tried and name in tried[0]:
                every = [point[name] for point in tried]
                several = [each for number, each in enumerate(every) if each not in every[:number]]
                yield Setting(name, several, _place(loaded, origins[name]))
            elif section == "model" and value is None and hasattr(shape, key):
                yield Setting(name, getattr(shape, key), f"size {settings.model.size}")
            else:
                yield Setting(name, value, _place(loaded, origins[name]) if name in origins else "default")
    start = loaded.starts[scale].get((row, column))
    if start is not None:
        source = {"recipe": start.source.file, "row": start.row, "column": start.column, "seed": start.seed}
        for key, value in {**source, "new": list(start.new), "drop": list(start.drop)}.items():
            origin = Origin((*start.path, key), loaded.document)
            is_given = origin.path in loaded.document.lines
            yield Setting(f"start.{key}", value, _place(loaded, origin) if is_given else "default")


def _cell(loaded: LoadedRecipe, scale: str, cell: str) -> tuple[str, str]:
    row, comma, column = cell.partition(",")
    (row,) = select(row, loaded.recipe.rows, "row")
    columns = list(loaded.columns(scale))
    if comma:
        (column,) = select(column, columns, "column")
    elif len(columns) == 1:
        (column,) = columns
    else:
        raise UserError(f"--settings {cell}: say under which column", f"for instance {row},{columns[0]}")
    return row, column


def _place(loaded: LoadedRecipe, origin: Origin) -> str:
    if origin.argument is not None:
        return origin.argument
    path = Path(origin.source) if origin.source is not None else loaded.path
    whole = path.resolve()
    shown = whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole
    return f"{shown}:{origin.line}" if origin.line is not None else str(shown)


def _shown(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)
