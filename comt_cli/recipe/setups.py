"""Setups: settings that many recipes share, in files of their own, `setups/NAME.yaml`.

A problem in one is reported with its own file and line, once, however many columns use it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from comt_cli.recipe.find import SETUPS, recipe_roots
from comt_cli.recipe.overrides import Overrides, overrides_of
from comt_cli.recipe.problems import Problem, RecipeError, nearest
from comt_cli.recipe.schema import Catalogue, Recipe, TaskOptions
from comt_cli.recipe.validate import salvage, validate
from comt_cli.recipe.yaml_lines import Document, read


@dataclass(frozen=True)
class Setup:
    """Settings with the file that they stand in. Broken parts were left out, and reported as problems."""

    path: Path
    settings: Overrides
    document: Document


def load_setups(
    recipe: Recipe, path: Path, document: Document, catalogue: Catalogue, task: TaskOptions, problems: list[Problem]
) -> dict[str, Setup]:
    """Every setup that `recipe`, the file at `path` of `task`, names. Those that are not there, or broken, or of
    another task, become problems."""
    folders = _folders(path)
    found: dict[str, Setup] = {}
    broken: set[str] = set()
    for place_path, place in recipe.places():
        name, key = getattr(place, "setup", None), (*place_path, "setup")
        if name is None or name in found or name in broken:
            continue
        file = next((folder / f"{name}.yaml" for folder in folders if (folder / f"{name}.yaml").is_file()), None)
        setup = None
        if file is None:
            known = dict.fromkeys(other.stem for folder in folders for other in sorted(folder.glob("*.yaml")))
            hint = nearest(name, known) if known else f"there are none in {', '.join(map(str, folders)) or 'reach'}"
            problems.append(document.problem(key, f"no setup is called {name!r}; {hint}"))
        else:
            found_in_it: list[Problem] = []
            setup, other = _load(file, catalogue, task, found_in_it)
            if other is not None:
                message = f"{name} is a setup of {other}; this recipe is for {task.command}"
                problems.append(document.problem(key, message))
            else:
                problems.extend(found_in_it)
        if setup is None:
            broken.add(name)
        else:
            found[name] = setup
    return found


def _folders(path: Path) -> list[Path]:
    """Where setups are looked up: beside the folder of the recipe, then among the recipe roots; each once."""
    beside = [Path(os.path.normpath(path.parent / ".." / SETUPS))] if path.is_file() else []
    folders = [*beside, *(root / SETUPS for root in recipe_roots())]
    return list({folder.resolve(): folder for folder in reversed(folders) if folder.is_dir()}.values())[::-1]


def _load(
    path: Path, catalogue: Catalogue, task: TaskOptions, problems: list[Problem]
) -> tuple[Setup | None, str | None]:
    """The setup of the file, for recipes of `task`; or the command of the other task that it is a setup of."""
    source = str(path)
    try:
        document = read(path)
    except RecipeError as error:
        problems.extend(replace(problem, source=source) for problem in error.problems)
        return None, None
    if not isinstance(document.data, dict) or not document.data:
        message = "is not a setup: it has none of the groups model, data and train"
        problems.append(Problem("", message, source=source))
        return None, None
    kind = overrides_of(task.settings)
    found = list(document.problems)
    settings = validate(kind, document.data, (), document.line, found)
    if settings is None:
        for other, others in catalogue.tasks.items():
            if validate(overrides_of(others.settings), document.data, (), document.line, []) is not None:
                return None, other
    problems.extend(replace(problem, source=source) for problem in found)
    settings = settings or salvage(kind, document.data, {}) or kind()
    return Setup(path, settings, document), None
