"""Find a recipe, read it, and report everything that is wrong with it at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from comt_cli.errors import UserError
from comt_cli.recipe.merge import Overrides, merged_settings, parse_overrides
from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, dotted, nearest
from comt_cli.recipe.schema import Column, Recipe, Row
from comt_cli.recipe.settings import Settings
from comt_cli.recipe.validate import salvage, validate
from comt_cli.recipe.yaml_lines import UNREADABLE, Document, parse, read

MethodConfigs = Mapping[str, type[BaseModel]]
"""Every method's name and the class of its options; handed in, because methods stand above recipes."""

DEFAULT_PAPER = "comt"


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe that passed every check, with the command line's overrides applied.

    `methods[row]` has the method's name and all its options, defaults included;
    `settings[scale][row, column]` is what a run of that cell is told.
    """

    path: Path
    recipe: Recipe
    methods: dict[str, dict[str, Any]]
    settings: dict[str, dict[tuple[str, str], Settings]]

    def columns(self, scale: str) -> dict[str, Column]:
        """The columns of a scale: its own, or the paper's."""
        return columns_of(self.recipe, scale)

    def compared_column(self, scale: str, column: str) -> str | None:
        """The paper's column that `column` stands beside, None if it stands beside none."""
        if self.recipe.scales[scale].columns is None:  # type: ignore[index]
            return column
        return self.columns(scale)[column].compare_to


def columns_of(recipe: Recipe, scale: str) -> dict[str, Column]:
    """The columns of a scale: its own, or the paper's."""
    return recipe.scales[scale].columns or recipe.columns  # type: ignore[index]


def recipe_roots() -> list[Path]:
    """Folders in which recipes are looked up by name: `./recipes`, then those that came with the program."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "_recipes"
    return [
        root for root in (Path("recipes"), shipped if shipped.is_dir() else package.parent / "recipes") if root.is_dir()
    ]


def available_recipes() -> dict[str, Path]:
    """`paper/table` -> file, for every recipe that a name can reach; sorted by name."""
    found: dict[str, Path] = {}
    for root in reversed(recipe_roots()):
        found.update({f"{path.parent.name}/{path.stem}": path for path in root.glob("*/*.yaml")})
    return dict(sorted(found.items()))


def find_recipe(name: str) -> Path:
    """A path as it stands, else a name: `comt/table3.yaml`, `transponder/table2`, or `table3.yaml` for CoMT's.

    Raises:
        UserError: nothing is there; the hint names the nearest recipe.
    """
    path = Path(name)
    if path.is_file():
        return path
    relative = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    for root in recipe_roots():
        for candidate in (root / relative, root / DEFAULT_PAPER / relative):
            if candidate.is_file():
                return candidate
    known = available_recipes()
    wanted = name.removesuffix(".yaml").removesuffix(".yml")
    short = [key.removeprefix(f"{DEFAULT_PAPER}/") for key in known]
    raise UserError(f"there is no recipe {name}", f"{nearest(wanted, [*known, *short])} (comt recipes lists them)")


def load_recipe(
    path: Path, methods: MethodConfigs, overrides: Sequence[str] = (), scale: str | None = None
) -> LoadedRecipe:
    """Read and check the recipe at `path`. `overrides` are `--set` arguments such as `train.steps=200`.

    They apply to `scale` alone if it is given: steps that suit `smoke` may contradict the warm-up of `paper`.

    Raises:
        RecipeError: with every problem of the file and of the overrides, each with its line and dotted key.
    """
    return check_recipe(read(path), path, methods, overrides, scale)


def load_recipe_text(
    text: str, methods: MethodConfigs, overrides: Sequence[str] = (), scale: str | None = None
) -> LoadedRecipe:
    """Like `load_recipe`, from text."""
    return check_recipe(parse(text, "recipe"), Path("recipe"), methods, overrides, scale)


_STAND_INS: dict[str, Any] = {
    "title": "-",
    "paper": "-",
    "table": "-",
    "command": "train-lm",
    "baseline": "-",
    "seeds": [0],
    "method": "-",
    "description": "-",
}
"""For keys that are missing or wrong, while the rest of the recipe is checked all the same."""


def check_recipe(
    document: Document, path: Path, methods: MethodConfigs, overrides: Sequence[str] = (), scale: str | None = None
) -> LoadedRecipe:
    """All checks, in two stages: the shape of the file, then what only the whole can tell.

    The second stage also sees a file that failed the first, without its broken parts, and tells what does not merely
    follow from them: all problems come at once.
    """
    if not isinstance(document.data, dict) or not document.data:
        raise RecipeError(path, [Problem("", "is not a recipe: the file has no keys")])
    problems = list(document.problems)
    unreadable = {problem.key for problem in problems if problem.message == UNREADABLE}
    shape: list[Problem] = []
    recipe = validate(Recipe, document.data, (), document.line, shape)
    problems.extend(problem for problem in shape if problem.key not in unreadable)
    commanded = parse_overrides(overrides, problems)
    resolved = _check_methods(document, methods, problems)
    whole = recipe or salvage(Recipe, document.data, _STAND_INS)
    if whole is None:
        raise RecipeError(path, problems)
    found = [*_names(whole, document), *_place(whole, path, document)]
    settings: dict[str, dict[tuple[str, str], Settings]] = {
        name: merged_settings(
            whole,
            name,
            document,
            commanded if scale in (None, name) else Overrides(),
            found,
            complete=not problems,
        )
        for name in whole.scales
    }
    problems.extend([problem for problem in found if not _follows(problem, problems)])
    if recipe is None or problems:
        raise RecipeError(path, problems)
    return LoadedRecipe(path, recipe, resolved, settings)


def _follows(problem: Problem, earlier: Iterable[Problem]) -> bool:
    """Whether `problem` is about a key, or a section of settings, that something is already known to be wrong with."""
    section = _settings_section(problem.key)
    for other in earlier:
        outer, inner = sorted((other.key, problem.key), key=len)
        if inner == outer or inner.startswith((f"{outer}.", f"{outer}[")):
            return True
        if problem.key.endswith(".paper") and other.key.startswith(f"{problem.key.removesuffix('paper')}in_paper"):
            return True
        if section and _settings_section(other.key) in (section, "all"):
            return True
    return False


def _settings_section(key: str) -> str | None:
    """`train` for `columns.c4.settings.train.steps`; `all` for the whole of the settings; None elsewhere."""
    found = re.search(r"(?:^|\.)settings(?:\.(\w+))?", key)
    return (found[1] or "all") if found else None


def _check_methods(document: Document, methods: MethodConfigs, problems: list[Problem]) -> dict[str, dict[str, Any]]:
    """Every row's method, its options filled in. Works on the raw data, so that a broken row hides no other."""
    rows = document.data.get("rows")
    resolved: dict[str, dict[str, Any]] = {}
    for name, row in rows.items() if isinstance(rows, dict) else ():
        given = row.get("method") if isinstance(row, dict) else None
        path: KeyPath = ("rows", name, "method")
        if isinstance(given, str):
            method, options = given, {}
        elif isinstance(given, dict) and isinstance(given.get("name"), str):
            method, options = given["name"], {key: value for key, value in given.items() if key != "name"}
        elif isinstance(given, dict):
            problems.append(Problem(dotted((*path, "name")), "is missing: say which method", document.line(path)))
            continue
        else:
            continue  # missing or of a wrong type: the schema says so
        if method not in methods:
            problems.append(
                Problem(
                    dotted(path), f"no method is called {method!r}; {nearest(method, methods)}", document.line(path)
                )
            )
            continue
        config = validate(methods[method], options, path, document.line, problems)
        if config is not None:
            resolved[name] = {"name": method, **config.model_dump(mode="json")}
    return resolved


def _place(recipe: Recipe, path: Path, document: Document) -> Iterable[Problem]:
    """A recipe that is looked up by folder and file must be called so: its runs and tables go by its keys."""
    whole = path.resolve()
    if whole.parent.parent not in [root.resolve() for root in recipe_roots()]:
        return
    for key, said, there in (("paper", recipe.paper, whole.parent.name), ("table", recipe.table, whole.stem)):
        if said != there:
            message = f"is {said!r}, but the file is {whole.parent.name}/{whole.name} among the recipes; say {there}"
            yield Problem(key, message, document.line((key,)))


def _names(recipe: Recipe, document: Document) -> Iterable[Problem]:
    """Names that must agree: the baseline, the paper's cells, the columns a scale stands in for."""
    if recipe.baseline not in recipe.rows:
        yield Problem(
            "baseline",
            f"there is no row {recipe.baseline!r}; {nearest(recipe.baseline, recipe.rows)}",
            document.line(("baseline",)),
        )
    for name, row in recipe.rows.items():
        yield from _paper_cells(name, row, recipe, document)
    for scale_name, scale in recipe.scales.items():
        for name, column in (scale.columns or {}).items():
            if column.compare_to is not None and column.compare_to not in recipe.columns:
                path = ("scales", scale_name, "columns", name, "compare_to")
                yield Problem(
                    dotted(path),
                    f"there is no column {column.compare_to!r}; {nearest(column.compare_to, recipe.columns)}",
                    document.line(path),
                )
    for name, column in recipe.columns.items():
        if column.compare_to is not None:
            at: KeyPath = ("columns", name, "compare_to")
            yield Problem(dotted(at), "belongs to the columns of a scale: this is the paper's own", document.line(at))


def _paper_cells(name: str, row: Row, recipe: Recipe, document: Document) -> Iterable[Problem]:
    path: KeyPath = ("rows", name, "paper")
    for column in row.paper:
        if column not in recipe.columns:
            message = f"there is no column {column!r}; {nearest(column, recipe.columns)}"
            yield Problem(dotted((*path, column)), message, document.line((*path, column)))
    if row.in_paper:
        missing = [column for column in recipe.columns if column not in row.paper]
        if missing:
            message = (
                f"has no value for {', '.join(missing)}: give the paper's (null where it prints none), "
                "or say in_paper: false"
            )
            yield Problem(dotted(path), message, document.line(path))
    elif row.paper:
        yield Problem(dotted(path), "has values, but the row says in_paper: false", document.line(path))


def select(names: str | None, available: Iterable[str], what: str) -> list[str]:
    """The names of a comma-separated selection, in the table's order; all of them for None.

    Raises:
        UserError: a name is not there; the hint names the nearest.
    """
    order = list(available)
    if names is None:
        return order
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in order:
            raise UserError(f"there is no {what} {name!r}", nearest(name, order))
    if not wanted:
        raise UserError(f"no {what} was selected", f"there are {', '.join(order)}")
    return [name for name in order if name in wanted]


__all__ = [
    "LoadedRecipe",
    "MethodConfigs",
    "Overrides",
    "available_recipes",
    "find_recipe",
    "load_recipe",
    "load_recipe_text",
    "select",
]
