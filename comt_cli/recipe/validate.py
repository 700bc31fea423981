"""From plain data to typed sections: pydantic's complaints become `Problem`s with the key's line and nearest name."""

from __future__ import annotations

import copy
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest, unknown_key

Model = TypeVar("Model", bound=BaseModel)
LineOf = Callable[[KeyPath], int | None]

_EXPECTED = {
    "bool_type": "should be true or false",
    "dict_type": "should be a group of keys",
    "finite_number": "should be a finite number",
    "float_type": "should be a number",
    "int_from_float": "should be a whole number",
    "int_type": "should be a whole number",
    "list_type": "should be a list",
    "model_type": "should be a group of keys",
    "string_too_long": "should have fewer letters, since it names folders",
    "string_type": "should be text",
    "too_short": "should have at least one entry",
    "tuple_type": "should be a list",
}
"""pydantic's kinds of complaint in the words of a recipe."""


RENAMED = {"grid": "sweep"}
"""Keys that recipes had once, with their names today."""


def validate(model: type[Model], data: Any, prefix: KeyPath, line_of: LineOf, problems: list[Problem]) -> Model | None:
    """Check `data` against `model`, strictly (no "200" for 200); on failure append to `problems` and return None.

    `prefix` is where `data` stands in the recipe, so that errors name the whole dotted key.
    """
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        found = [problem for detail in _details(error) for problem in _problems(model, data, detail, prefix, line_of)]
        first_of_key: dict[str, Problem] = {}
        for problem in found:
            first_of_key.setdefault(problem.key, problem)  # a union complains once for each of its types
        problems.extend(first_of_key.values())
        return None


def salvage(model: type[Model], data: Any, stand_ins: Mapping[str, Any]) -> Model | None:
    """`data` without what is wrong in it, with `stand_ins` for what is missing; None if too little is left.

    Only for finding further problems: nothing is ever run from it.
    """
    kept = copy.deepcopy(data)
    stood_in: set[KeyPath] = set()
    while True:
        try:
            return model.model_validate_json(json.dumps(kept), strict=True)
        except ValidationError as error:
            wrong = {_without_union_tags(kept, detail["loc"]): detail["type"] for detail in error.errors()}
        for path in sorted(wrong, reverse=True):  # the inner before the outer, the later item before the earlier
            if not path:
                return None
            parent = kept
            for part in path[:-1]:
                parent = parent[part]
            if path in stood_in:  # a stand-in that is wrong itself: taking it out would only bring it back
                return None
            if wrong[path] != "missing":
                del parent[path[-1]]
            elif path[-1] in stand_ins:
                parent[path[-1]] = stand_ins[str(path[-1])]
                stood_in.add(path)
            else:
                return None


def _details(error: ValidationError) -> list[ErrorDetails]:
    """What pydantic complains of, without those that a list is too short only because its items were refused."""
    details = error.errors(include_url=False)
    return [detail for detail in details if not (detail["type"] == "too_short" and detail["input"])]


def _problems(
    model: type[BaseModel], data: Any, detail: Mapping[str, Any], prefix: KeyPath, line_of: LineOf
) -> Iterator[Problem]:
    """A complaint of pydantic's; one of our own validators may hold several, each an argument of its error."""
    if detail["type"] != "value_error":
        yield _problem(model, data, detail, prefix, line_of)
        return
    path: KeyPath = (*prefix, *_without_union_tags(data, detail["loc"]))
    for text in map(str, detail["ctx"]["error"].args):  # `key: what is wrong`
        key, _, rest = text.partition(": ")
        if rest and key.isidentifier():
            yield Problem(dotted((*path, key)), rest, line_of((*path, key)))
        else:
            yield Problem(dotted(path), text, line_of(path))


def _problem(model: type[BaseModel], data: Any, detail: Mapping[str, Any], prefix: KeyPath, line_of: LineOf) -> Problem:
    kind, local = detail["type"], _without_union_tags(data, detail["loc"])
    path: KeyPath = (*prefix, *local)
    if kind == "extra_forbidden":
        known = valid_keys(model, local[:-1])
        # Within a value that a validator of its own took apart, nothing is known of the keys that would be right.
        elsewhere = every_key(model, but=str(local[0]))
        message = unknown_key(str(local[-1]), known, elsewhere) if known or len(local) == 1 else "unknown key"
        now = RENAMED.get(str(local[-1]))
        if now in known:
            message = f"was renamed to {now}"
    elif kind == "missing":
        message = "is missing"
    elif kind == "literal_error":
        given = detail["input"]
        options = [option.strip("' ") for option in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(",")]
        message = f"{given!r} is not one of {', '.join(options)}; {nearest(str(given), options)}"
    else:
        wanted = _EXPECTED.get(kind) or f"{detail['msg'][0].lower()}{detail['msg'][1:]}"
        message = f"{_shown(detail['input'])} does not fit: {wanted.removeprefix('input ')}"
    return Problem(dotted(path), message, line_of(path))


def _shown(value: Any) -> str:
    """A value as it would stand in YAML: `"200"` is text, `200` a number, `true` and `null` what they are."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _without_union_tags(data: Any, location: tuple[str | int, ...]) -> KeyPath:
    """Drop the parts that pydantic adds for the branches of a union and for dictionary keys: they name no key."""
    path: list[str | int] = []
    here = data
    for position, part in enumerate(location):
        is_last = position == len(location) - 1
        is_item = isinstance(here, list) and isinstance(part, int) and part < len(here)
        if is_item or (isinstance(here, Mapping) and part in here):
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


def every_key(settings: type[BaseModel], but: str = "") -> list[str]:
    """`train.steps` and the other keys of settings, without those of one section; none of what is no settings."""
    sections = [section for section in settings.model_fields if section != but and "train" in settings.model_fields]
    return [f"{section}.{key}" for section in sections for key in valid_keys(settings, (section,))]


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
