"""The settings of a run: the recipe's, then the scale's, the column's, the row's, the grid's, then the command line's.

The later wins, key by key; a setup comes just before the settings of the place that names it. Each key remembers where
it came from, so that a combination that cannot work is blamed on the line that made it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from comt_cli.recipe.overrides import Overrides
from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, dotted, known_as, nearest
from comt_cli.recipe.schema import Place, Recipe
from comt_cli.recipe.settings import RunSettings
from comt_cli.recipe.setups import Setup
from comt_cli.recipe.validate import every_key, validate
from comt_cli.recipe.yaml_lines import Document, parse

if TYPE_CHECKING:
    from comt_cli.recipe.grid import LoadedGrid


@dataclass(frozen=True)
class _Layer:
    """Settings given at one place: their path in the document, and the file if that is not the recipe."""

    settings: Overrides | None
    path: KeyPath
    document: Document
    source: str | None = None


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


Point = Mapping[str, tuple[Any, Origin]]
"""Values of a grid by dotted key, each with where it stands."""


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


def parse_arguments(arguments: Sequence[str], kind: type[Overrides], problems: list[Problem]) -> Arguments:
    """Turn `train.steps=200` into settings, of the kind that the recipe has; problems name the argument."""
    parsed = Arguments()
    for argument in arguments:
        key, equals, text = argument.partition("=")
        section, _, name = key.strip().partition(".")
        shown = f"--set {argument}"
        if not equals or not name:
            meant = known_as(key.strip(), every_key(kind))
            example = f"{meant}={text or '...'}" if meant is not None else "train.steps=200"
            problems.append(Problem(shown, f"write SECTION.KEY=VALUE, for instance {example}"))
            continue
        if section not in kind.model_fields:
            problems.append(Problem(shown, f"there is no section {section!r}; {nearest(section, kind.model_fields)}"))
            continue
        try:
            document = parse(text, shown)
            if document.problems:
                raise RecipeError(shown, document.problems)
        except RecipeError as error:
            problems.extend(Problem(shown, str(replace(problem, line=None))) for problem in error.problems)
            continue
        value = document.data if text.strip() else None
        candidate = {section: {name: value}}
        found: list[Problem] = []
        validate(kind, candidate, (), lambda _: None, found)
        if found:
            problems.extend(Problem(shown, problem.message) for problem in found)
            continue
        parsed.values.setdefault(section, {})[name] = value
        parsed.origin[section, name] = shown
    return parsed


def merged_settings(
    recipe: Recipe,
    kind: type[RunSettings],
    given: Mapping[KeyPath, Overrides],
    document: Document,
    setups: Mapping[str, Setup],
    grids: Mapping[str, LoadedGrid],
    scale: str,
    arguments: Arguments,
    problems: list[Problem],
    *,
    complete: bool = True,
) -> dict[tuple[str, str], list[tuple[RunSettings, Origins]]]:
    """The settings of every (row, column) of a scale at each of the points that the `arguments` leave of its grid, and
    where each was given; a problem that several cells share is reported once. `kind` is the class of the settings,
    `given` those of each place (`overrides.typed_settings`).

    `complete` is False where broken parts of the recipe were left out: a missing key then proves nothing.
    """
    settings: dict[tuple[str, str], list[tuple[RunSettings, Origins]]] = {}
    seen = {(problem.source, problem.key, problem.message) for problem in problems}
    chosen = recipe.scales[scale]
    grid = grids[scale].without(arguments) if scale in grids else None
    points: Sequence[Point] = ({},) if grid is None else grid.planned
    for column_name, column in recipe.columns_at(scale).items():
        column_path = recipe.column_path(scale, column_name)
        for row_name, row in recipe.rows.items():
            places: dict[KeyPath, Place] = {
                (): recipe,
                ("scales", scale): chosen,
                column_path: column,
                ("rows", row_name): row,
            }
            layers = [
                layer for path, place in places.items() for layer in _layers(place, path, setups, given, document)
            ]
            for point in points:
                result, origin, found = _checked(kind, layers, point, arguments)
                for problem in found:
                    if not complete and problem.key not in origin:
                        continue
                    # Of the arguments those without which there would not be this problem.
                    said = {key: place.argument for key, place in origin.items() if place.argument is not None}
                    by = [said[key] for key in said if problem not in _checked(kind, layers, point, arguments, key)[2]]
                    located = _locate(problem, origin, document, column_path, list(dict.fromkeys(by)), kind)
                    if (located.source, located.key, located.message) not in seen:
                        seen.add((located.source, located.key, located.message))
                        problems.append(located)
                if result is not None:
                    settings.setdefault((row_name, column_name), []).append((result, origin))
    return settings


def _layers(
    place: Place,
    path: KeyPath,
    setups: Mapping[str, Setup],
    given: Mapping[KeyPath, Overrides],
    document: Document,
) -> Iterator[_Layer]:
    """The setup that a place names, unless it is not there, which was reported, then the settings of its own."""
    name = getattr(place, "setup", None)
    if name is not None and name in setups:
        yield _Layer(setups[name].settings, (), setups[name].document, str(setups[name].path))
    yield _Layer(given.get((*path, "settings")), (*path, "settings"), document)


def _checked(
    kind: type[RunSettings], layers: Sequence[_Layer], point: Point, arguments: Arguments, without: str = ""
) -> tuple[RunSettings | None, Origins, list[Problem]]:
    """The merged settings, None where they are wrong, where each was given, and what is wrong; leaving out what the
    command line says of one key."""
    merged, origin = _merge(kind.model_fields, layers, point, arguments, without)
    found: list[Problem] = []
    return validate(kind, merged, (), lambda _: None, found), origin, found


def _merge(
    sections: Iterable[str], layers: Iterable[_Layer], point: Point, arguments: Arguments, without: str
) -> tuple[dict[str, dict[str, Any]], dict[str, Origin]]:
    """Merged values, and where each was given."""
    merged: dict[str, dict[str, Any]] = {section: {} for section in sections}
    origin: dict[str, Origin] = {}
    for layer in layers:
        given = layer.settings.model_dump(mode="json", exclude_unset=True) if layer.settings is not None else {}
        for section, values in given.items():
            for key, value in (values or {}).items():
                merged[section][key] = value
                origin[f"{section}.{key}"] = Origin((*layer.path, section, key), layer.document, layer.source)
    said = {
        f"{section}.{key}": (value, Origin(argument=arguments.origin[section, key]))
        for section, values in arguments.values.items()
        for key, value in values.items()
    }
    for name, (value, place) in {**point, **said}.items():
        section, _, key = name.partition(".")
        if name != without:
            merged[section][key], origin[name] = value, place
    return merged, origin


def _locate(
    problem: Problem, origins: Origins, document: Document, column: KeyPath, by: Sequence[str], kind: type[RunSettings]
) -> Problem:
    """`problem` of merged settings where it stands: on the line that gave the value, or the argument. Where it is of
    arguments (`by`) that a value of the recipe does not go with, both are named, and what would mend it."""
    origin = origins.get(problem.key)
    if origin is not None and origin.argument is not None:
        return Problem(" with ".join(dict.fromkeys([origin.argument, *by])), problem.message)
    if by:
        said = " with ".join(by)
        if origin is None:
            return Problem(said, f"{problem.key}: {problem.message}" if problem.key else problem.message)
        section, _, key = problem.key.partition(".")
        default = kind.model_fields[section].annotation.model_fields[key].default  # type: ignore[union-attr]
        mend = f"{problem.key}=null takes it away" if default is None else f"{problem.key}=VALUE gives another"
        place = f"{origin.source}, line {origin.line}" if origin.source else f"line {origin.line}"
        return Problem(said, f"{problem.key} ({place}): {problem.message}; --set {mend}")
    if origin is not None:
        return Problem(dotted(origin.path), problem.message, origin.line, origin.source)
    return Problem(problem.key, f"{problem.message} (needed by {dotted(column)})", document.line(column))
