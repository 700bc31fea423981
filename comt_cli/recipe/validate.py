"""From plain data to typed sections: pydantic's complaints become `Problem`s with the key's line and nearest name."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest

Model = TypeVar("Model", bound=BaseModel)
LineOf = Callable[[KeyPath], int | None]


def validate(
    model: type[Model], data: Any, prefix: KeyPath, line_of: LineOf, problems: list[Problem]
) -> Model | None:
    """Check `data` against `model`, strictly (no "200" for 200); on failure append to `problems` and return None.

    `prefix` is where `data` stands in the recipe, so that errors name the whole dotted key.
    """
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            problems.append(_problem(model, data, detail, prefix, line_of))
        return None


def _problem(
    model: type[BaseModel], data: Any, detail: Mapping[str, Any], prefix: KeyPath, line_of: LineOf
) -> Problem:
    kind, local = detail["type"], _without_union_tags(data, detail["loc"])
    path: KeyPath = (*prefix, *local)
    if kind == "extra_forbidden":
        message = f"unknown key; {nearest(str(local[-1]), valid_keys(model, local[:-1]))}"
    elif kind == "missing":
        message = "is missing"
    elif kind == "literal_error":
        given = detail["input"]
        options = [option.strip("' ") for option in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(",")]
        message = f"{given!r} is not one of {', '.join(options)}; {nearest(str(given), options)}"
    elif kind == "value_error":  # our own validators say `key: what is wrong`
        text = str(detail["ctx"]["error"])
        key, _, rest = text.partition(": ")
        if rest and key.isidentifier():
            path, message = (*path, key), rest
        else:
            message = text
    else:
        message = f"{_shown(detail['input'])} does not fit: {detail['msg'][0].lower()}{detail['msg'][1:]}"
    return Problem(dotted(path), message, line_of(path))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _without_union_tags(data: Any, location: tuple[str | int, ...]) -> KeyPath:
    """Drop the parts that pydantic adds for the branches of a union and for dictionary keys: they name no key."""
    path: list[str | int] = []
    here = data
    for position, part in enumerate(location):
        is_last = position == len(location) - 1
        if isinstance(here, Mapping) and part in here:
            path.append(part)
            here = here[part]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            path.append(part)
            here = here[part]
        elif is_last and isinstance(here, Mapping) and part != "[key]":
            path.append(part)  # a missing key, or an unknown one
    return tuple(path)


def valid_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that may stand at `path` below `model`; empty where any name may."""
    annotation: Any = model
    for part in path:
        current = _section(annotation)
        if current is not None:
            field = current.model_fields.get(str(part))
            if field is None:
                return []
            annotation = field.annotation
        else:
            annotation = _value_type(annotation)
    section = _section(annotation)
    return list(section.model_fields) if section is not None else []


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            found = _section(option)
            if found is not None:
                return found
    return None


def _value_type(annotation: Any) -> Any:
    """The type of a dictionary's values, through an optional."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            if typing.get_origin(option) is dict:
                annotation = option
    arguments = typing.get_args(annotation)
    return arguments[1] if typing.get_origin(annotation) is dict else None
