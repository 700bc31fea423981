"""The settings of a run: the recipe's, then the scale's, the column's, the row's, the grid's, then the command line's.

The later wins, key by key; a setup comes just before the settings of the place that names it. Each key remembers where
it came from, so that a combination that cannot work is blamed on the line that made it so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, dotted, known_as, nearest
from comt_cli.recipe.schema import Place, Recipe, TaskOptions
from comt_cli.recipe.settings import Overrides, RunSettings, overrides_of
from comt_cli.recipe.validate import every_key, validate
from comt_cli.recipe.yaml_lines import Document, parse

if TYPE_CHECKING:
    from comt_cli.recipe.grid import LoadedGrid
    from comt_cli.recipe.sources import Setup


@dataclass(frozen=True)
class Origin:
    """Where the value of a setting was given: by a key of the recipe, by one of a setup (`source`, its file), or by an
    argument of the command line."""

    path: KeyPath = ()
    document: Document | None = None
    source: str | None = None
    argument: str | None = None

    @property
    def line(self) -> int | None:
        """The line of the key in its file."""
        return self.document.line(self.path) if self.document is not None else None


Origins = Mapping[str, Origin]
"""By the dotted key of a setting, `train.steps`; what stands nowhere has its default."""
Given = Mapping[str, tuple[Any, Origin]]
"""Values by dotted key, each with where it stands: of one place, or of a point of a grid."""
Merged = Mapping[tuple[str, str], Sequence[tuple[RunSettings, Origins]]]
"""By row and column the settings at each point of the grid, and where each was given."""


@dataclass
class Arguments:
    """`--set` arguments, parsed and typed; `origin[section, key]` is the argument as it was written."""

    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    origin: dict[KeyPath, str] = field(default_factory=dict)

    def without(self, section: str | int, name: str | int) -> Arguments:
        """The other arguments."""
        kept = {path: said for path, said in self.origin.items() if path != (section, name)}
        return Arguments(
            {key: {k: v for k, v in given.items() if (key, k) in kept} for key, given in self.values.items()}, kept
        )

    @property
    def given(self) -> Given:
        """The values with their arguments."""
        return {
            f"{section}.{key}": (self.values[str(section)][str(key)], Origin(argument=said))
            for (section, key), said in self.origin.items()
        }


def parse_arguments(arguments: Sequence[str], kind: type[Overrides], problems: list[Problem]) -> Arguments:
    """Turn `train.steps=200` into settings, of the kind that the recipe has; problems name the argument."""
    parsed = Arguments()
    for argument in arguments:
        key, equals, text = argument.partition("=")
        section, _, name = key.strip().partition(".")
        shown = f"--set {argument}"
        found: list[Problem] = []
        if not equals or not name:
            meant = known_as(key.strip(), every_key(kind))
            example = f"{meant}={text or '...'}" if meant is not None else "train.steps=200"
            found.append(Problem("", f"write SECTION.KEY=VALUE, for instance {example}"))
        elif section not in kind.model_fields:
            found.append(Problem("", f"there is no section {section!r}; {nearest(section, kind.model_fields)}"))
        else:
            try:
                document = parse(text, shown)
                found = [Problem("", str(replace(each, line=None))) for each in document.problems]
            except RecipeError as error:
                found = [Problem("", str(replace(each, line=None))) for each in error.problems]
            else:
                value = document.data if text.strip() else None
                if not found:
                    validate(kind, {section: {name: value}}, (), lambda _: None, found)
        problems.extend(Problem(shown, problem.message) for problem in found)
        if not found:
            parsed.values.setdefault(section, {})[name] = value
            parsed.origin[section, name] = shown
    return parsed


class Merger:
    """Merges the settings of a recipe's cells. `kind` is the class of the settings, `given` has those of each place.

    `complete` is False where broken parts of the recipe were left out: a missing key then proves nothing.
    """

    def __init__(
        self,
        recipe: Recipe,
        kind: type[RunSettings],
        given: Mapping[KeyPath, Overrides],
        document: Document,
        setups: Mapping[str, Setup],
        grids: Mapping[str, LoadedGrid],
        *,
        complete: bool,
    ) -> None:
        self._recipe, self._kind, self._given, self._document = recipe, kind, given, document
        self._setups, self._grids, self._complete = setups, grids, complete

    def settings(self, scale: str, arguments: Arguments, problems: list[Problem]) -> Merged:
        """The settings of every (row, column) of a scale at each of the points that the `arguments` leave of its grid;
        a problem that several cells share is reported once."""
        recipe = self._recipe
        merged: dict[tuple[str, str], list[tuple[RunSettings, Origins]]] = {}
        seen = {(problem.source, problem.key, problem.message) for problem in problems}
        grid = self._grids[scale].without(arguments) if scale in self._grids else None
        points: Sequence[Given] = ({},) if grid is None else grid.planned
        outer = [*self._layers((), recipe), *self._layers(("scales", scale), recipe.scales[scale])]
        of_rows = {name: self._layers(("rows", name), row) for name, row in recipe.rows.items()}
        for column_name, column in recipe.columns_at(scale).items():
            column_path = recipe.column_path(scale, column_name)
            of_column = self._layers(column_path, column)
            for row_name, of_row in of_rows.items():
                for point in points:
                    layers = [*outer, *of_column, *of_row, point, arguments.given]
                    result, origins, found = self._merge(layers)
                    for problem in found:
                        if not self._complete and problem.key not in origins:
                            continue
                        located = self._located(problem, layers, origins, column_path)
                        if (located.source, located.key, located.message) not in seen:
                            seen.add((located.source, located.key, located.message))
                            problems.append(located)
                    if result is not None:
                        merged.setdefault((row_name, column_name), []).append((result, origins))
        return merged

    def _layers(self, path: KeyPath, place: Place) -> list[Given]:
        """The setup that a place names, unless it is not there, which was reported, then the settings of its own."""
        setup = self._setups.get(getattr(place, "setup", None) or "")
        own = _flat(self._given.get((*path, "settings")), (*path, "settings"), self._document)
        return [own] if setup is None else [_flat(setup.settings, (), setup.document, str(setup.path)), own]

    def _merge(self, layers: Sequence[Given]) -> tuple[RunSettings | None, dict[str, Origin], list[Problem]]:
        """The merged settings, None where they are wrong, where each was given, and what is wrong."""
        merged: dict[str, dict[str, Any]] = {section: {} for section in self._kind.model_fields}
        origins: dict[str, Origin] = {}
        for layer in layers:
            for name, (value, origin) in layer.items():
                section, _, key = name.partition(".")
                merged[section][key], origins[name] = value, origin
        found: list[Problem] = []
        return validate(self._kind, merged, (), lambda _: None, found), origins, found

    def _located(self, problem: Problem, layers: Sequence[Given], origins: Origins, column: KeyPath) -> Problem:
        """`problem` of merged settings where it stands: on the line that gave the value, or the argument. Where it is
        of arguments that a value of the recipe does not go with, both are named, and what would mend it."""
        origin, by = origins.get(problem.key), []
        for each in origins.values():
            if each.argument is not None:  # of the arguments those without which there would not be this problem
                others = [{key: given for key, given in layer.items() if given[1] != each} for layer in layers]
                if problem not in self._merge(others)[2]:
                    by.append(each.argument)
        if origin is not None and origin.argument is not None:
            return Problem(" with ".join(dict.fromkeys([origin.argument, *by])), problem.message)
        said = " with ".join(dict.fromkeys(by))
        if said and origin is not None:
            section, _, key = problem.key.partition(".")
            default = self._kind.model_fields[section].annotation.model_fields[key].default  # type: ignore[union-attr]
            mend = f"{problem.key}=null takes it away" if default is None else f"{problem.key}=VALUE gives another"
            place = f"{origin.source}, line {origin.line}" if origin.source else f"line {origin.line}"
            return Problem(said, f"{problem.key} ({place}): {problem.message}; --set {mend}")
        if said:
            return Problem(said, f"{problem.key}: {problem.message}" if problem.key else problem.message)
        if origin is not None:
            return Problem(dotted(origin.path), problem.message, origin.line, origin.source)
        needed_by = f"{problem.message} (needed by {dotted(column)})"
        return Problem(problem.key, needed_by, self._document.line(column))


def _flat(settings: Overrides | None, path: KeyPath, document: Document, source: str | None = None) -> Given:
    given = {} if settings is None else settings.model_dump(mode="json", exclude_unset=True)
    return {
        f"{section}.{key}": (value, Origin((*path, section, key), document, source))
        for section, values in given.items()
        for key, value in (values or {}).items()
    }


def changes(
    arguments: Arguments, task: TaskOptions, merge: Callable[[Arguments, list[Problem]], Merged]
) -> dict[str, Any]:
    """Those of the `--set` arguments that change what is trained, by dotted key, in the order of the keys, as given.

    Left out is what changes no number (`runtime_keys`), and what has the value anyway in every cell, with the other
    arguments. `merge` is `Merger.settings` at a scale.
    """
    if not arguments.origin:
        return {}

    def settings(given: Arguments) -> list[list[RunSettings]]:
        return [[each for each, _ in points] for points in merge(given, []).values()]

    whole, left = settings(arguments), arguments
    for path in sorted(arguments.origin):
        if settings(left.without(*path)) == whole:
            left = left.without(*path)
    given = overrides_of(task.settings).model_validate(left.values).model_dump(mode="json", exclude_unset=True)
    return {
        f"{section}.{name}": value
        for section, values in sorted(given.items())
        for name, value in sorted(values.items())
        if name not in task.runtime_keys.get(section, ())
    }
