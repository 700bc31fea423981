"""The settings of a run: the recipe's, then the scale's, the column's, the row's, the grid's, then the command line's.

The later wins, key by key; a setup comes just before the settings of the place that names it. Each key remembers where
it came from, so that a combination that cannot work is blamed on the line that made it so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, dotted, known_as, nearest
from comt_cli.recipe.schema import Recipe, TaskOptions
from comt_cli.recipe.settings import Overrides, RunSettings
from comt_cli.recipe.validate import every_key, validate
from comt_cli.recipe.yaml_lines import Document, parse


@dataclass(frozen=True)
class Origin:
    """The place where a setting was given: a key of the recipe, one of a setup (`source`, its file), or an argument of
    the command line."""

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
Layer = Mapping[str, tuple[Any, Origin]]
"""Values by dotted key, each with where it stands: of one place, of a point of a grid, or of the command line."""
Point = tuple[RunSettings, Origins]
"""The settings of a run, and where each was given."""


def layer_of(settings: Overrides, origin: Origin) -> Layer:
    """The settings of a place, whose keys stand below `origin`."""
    given = settings.model_dump(mode="json", exclude_unset=True)
    return {
        f"{section}.{key}": (value, origin if origin.argument else replace(origin, path=(*origin.path, section, key)))
        for section, values in given.items()
        for key, value in (values or {}).items()
    }


def parse_arguments(arguments: Sequence[str], kind: type[Overrides], problems: list[Problem]) -> Layer:
    """The settings of arguments such as `train.steps=200`, of the kind that the recipe has; problems name the
    argument."""
    parsed: dict[str, tuple[Any, Origin]] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        section, _, name = key.strip().partition(".")
        shown, found = f"--set {argument}", list[Problem]()
        if not equals or not name:
            meant = known_as(key.strip(), every_key(kind))
            example = f"{meant}={text or '...'}" if meant is not None else "train.steps=200"
            found.append(Problem("", f"write SECTION.KEY=VALUE, for instance {example}"))
        elif section not in kind.model_fields:
            found.append(Problem("", f"there is no section {section!r}; {nearest(section, kind.model_fields)}"))
        else:
            try:
                document = parse(text, shown)
            except RecipeError as error:
                document = Document(None, problems=[*error.problems])
            found = [Problem("", str(replace(each, line=None))) for each in document.problems]
            value = document.data if text.strip() else None
            given = None if found else validate(kind, {section: {name: value}}, (), lambda _: None, found)
            if given is not None:
                parsed |= layer_of(given, Origin(argument=shown))
        problems.extend(Problem(shown, problem.message) for problem in found)
    return parsed


def merge(kind: type[RunSettings], layers: Sequence[Layer]) -> tuple[RunSettings | None, Origins, list[Problem]]:
    """The settings, None where they are wrong, where each was given, and what is wrong."""
    together = {key: given for layer in layers for key, given in layer.items()}
    merged: dict[str, dict[str, Any]] = {section: {} for section in kind.model_fields}
    for name, (value, _) in together.items():
        section, _, key = name.partition(".")
        merged[section][key] = value
    found: list[Problem] = []
    settings = validate(kind, merged, (), lambda _: None, found)
    return settings, {key: origin for key, (_, origin) in together.items()}, found


def located(
    problem: Problem, kind: type[RunSettings], layers: Sequence[Layer], origins: Origins, column: Problem
) -> Problem:
    """`problem` of merged settings where it stands: on the line that gave the value, or the argument; with the
    arguments without which there would not be this problem; else where the `column` stands that needs the key."""
    origin, by = origins.get(problem.key), dict[str, None]()
    if origin is not None and origin.argument is not None:
        by[origin.argument] = None
    for each in origins.values():
        if each.argument is not None and each.argument not in by:
            others = [{key: given for key, given in layer.items() if given[1] != each} for layer in layers]
            if problem not in merge(kind, others)[2]:
                by[each.argument] = None
    if by:
        place = "" if origin is None or origin.argument is not None else f" (line {origin.line})"
        if origin is not None and origin.source:
            place = f" ({origin.source}, line {origin.line})"
        told = problem.key and (origin is None or origin.argument is None)
        return Problem(" with ".join(by), f"{problem.key}{place}: {problem.message}" if told else problem.message)
    if origin is not None:
        return Problem(dotted(origin.path), problem.message, origin.line, origin.source)
    return Problem(problem.key, f"{problem.message} (needed by {column.key})", column.line)


@dataclass(frozen=True)
class Merger:
    """Merges the settings of a recipe's cells, from the `layers` of every place. Where not `complete`, broken parts of
    the recipe were left out: a missing key then proves nothing."""

    recipe: Recipe
    document: Document
    kind: type[RunSettings]
    layers: Mapping[KeyPath, Sequence[Layer]]
    complete: bool

    def settings(
        self, scale: str, points: Sequence[Layer], arguments: Layer, problems: list[Problem]
    ) -> dict[tuple[str, str], list[Point]]:
        """The settings of every (row, column) of a scale at each of the points; a problem that several cells share is
        reported once."""
        merged: dict[tuple[str, str], list[Point]] = {}
        seen = {*problems}
        for column in self.recipe.columns_at(scale):
            at = self.recipe.column_path(scale, column)
            for row in self.recipe.rows:
                own = [each for path in ((), ("scales", scale), at, ("rows", row)) for each in self.layers[path]]
                for point in points:
                    layers = [*own, point, arguments]
                    settings, origins, found = merge(self.kind, layers)
                    for problem in found:
                        if self.complete or problem.key in origins:
                            where = located(problem, self.kind, layers, origins, self.document.problem(at, ""))
                            if where not in seen:
                                seen.add(where)
                                problems.append(where)
                    if settings is not None:
                        merged.setdefault((row, column), []).append((settings, origins))
        return merged


def changes(
    arguments: Layer, task: TaskOptions, merged: Callable[[Layer, list[Problem]], Mapping[Any, Sequence[Point]]]
) -> Iterator[tuple[str, Any]]:
    """The `--set` arguments that change what is trained, by dotted key, in the order of the keys: neither those that
    change no number (`runtime_keys`), nor those whose value every cell has anyway. `merged` gives all settings of a
    scale with such arguments."""

    def settings(given: Layer) -> list[list[RunSettings]]:
        return [[each for each, _ in points] for points in merged(given, []).values()]

    left, whole = dict(arguments), settings(arguments) if arguments else []
    for key in sorted(arguments):
        without = {other: given for other, given in left.items() if other != key}
        if settings(without) == whole:
            left = without
    for key in sorted(left):
        section, _, name = key.partition(".")
        if name not in task.runtime_keys.get(section, ()):
            yield key, left[key][0]
