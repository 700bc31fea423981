"""Settings as a recipe gives them: any keys of a run's sections, at any of the places where settings may stand.

They are complete only after merging, and checked as a whole then; here each key is checked by itself.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any

from pydantic import create_model

from comt_cli.recipe.problems import KeyPath, Problem
from comt_cli.recipe.schema import Recipe
from comt_cli.recipe.settings import RunSettings, Section, Training
from comt_cli.recipe.validate import LineOf, salvage, validate


class Overrides(Section):
    """Keys of a run's sections, all optional. `overrides_of` makes the class for each kind of settings."""


@functools.cache
def overrides_of(settings: type[RunSettings]) -> type[Overrides]:
    """What one place may say of such settings: any of their keys, moments of the training as shares of it too."""
    sections: dict[str, Any] = {
        name: (_optional(info.annotation) | None, None)  # type: ignore[arg-type]
        for name, info in settings.model_fields.items()
    }
    return create_model(f"Overrides{settings.__name__}", __base__=Overrides, **sections)


def _optional(section: type[Section]) -> type[Section]:
    """The same section with every key optional. Types and limits stay, but for `Training.moments`."""
    wider = section.moments if issubclass(section, Training) else {}
    fields: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        constrained = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        fields[name] = (wider.get(name, constrained), None)
    return create_model(f"Partial{section.__name__}", __base__=Section, **fields)


def typed_settings(
    recipe: Recipe, kind: type[Overrides], line_of: LineOf, problems: list[Problem]
) -> dict[KeyPath, Overrides]:
    """The settings of every place of `recipe` that has some, by that place. What is wrong in them becomes problems, and
    is left out."""
    typed: dict[KeyPath, Overrides] = {}
    for place_path, place in recipe.places():
        if place.settings is not None:
            path = (*place_path, "settings")
            checked = validate(kind, place.settings, path, line_of, problems)
            typed[path] = checked or salvage(kind, place.settings, {}) or kind()
    return typed
