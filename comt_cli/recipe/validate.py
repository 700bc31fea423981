"""From plain data to typed sections: pydantic's complaints become `Problem`s with the key's line and nearest name."""

from __future__ import annotations

import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest, unknown_key

Model = TypeVar("Model", bound=BaseModel)
LineOf = Callable[[KeyPath], int | None]

_EXPECTED = {
    **dict.fromkeys(("dict_type", "model_type"), "should be a group of keys"),
    **dict.fromkeys(("int_from_float", "int_type"), "should be a whole number"),
    "tuple_type": "should be a list",
}
"""pydantic's kinds of complaint, where its own words are not a recipe's."""


def validate(model: type[Model], data: Any, prefix: KeyPath, line_of: LineOf, problems: list[Problem]) -> Model | None:
    """Check `data`, which stands at `prefix` in the recipe, against `model`, strictly (no "200" for 200); on failure
    append to `problems` and return None."""
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first_of_key: dict[str, Problem] = {}
        for detail in error.errors(include_url=False):
            for problem in _problems(model, data, detail, prefix, line_of):
                first_of_key.setdefault(problem.key, problem)  # a union complains once for each of its types
        problems.extend(first_of_key.values())
        return None


def salvage(model: type[Model], data: Any, stand_ins: Mapping[str, Any]) -> Model | None:
    """`data` without what is wrong in it, with `stand_ins` for what is missing; None if too little is left. Only for
    finding further problems: nothing is ever run from it."""
    kept = json.loads(json.dumps(data))
    stood_in: set[KeyPath] = set()
    while True:
        try:
            return model.model_validate_json(json.dumps(kept), strict=True)
        except ValidationError as error:
            wrong = {_key_path(kept, detail): detail["type"] for detail in error.errors()}
        for path in sorted(wrong, reverse=True):  # the inner before the outer, the later item before the earlier
            is_missing = wrong[path] == "missing"
            # A stand-in that is wrong itself would only come back.
            if not path or path in stood_in or (is_missing and path[-1] not in stand_ins):
                return None
            parent = functools.reduce(operator.getitem, path[:-1], kept)
            if is_missing:
                parent[path[-1]] = stand_ins[str(path[-1])]
                stood_in.add(path)
            else:
                del parent[path[-1]]


def _problems(
    model: type[BaseModel], data: Any, detail: ErrorDetails, prefix: KeyPath, line_of: LineOf
) -> Iterator[Problem]:
    """A complaint of pydantic's; one of our own validators may hold several, each an argument of its error."""
    kind, local, given = detail["type"], _key_path(data, detail), detail["input"]
    path: KeyPath = (*prefix, *local)
    if kind == "too_short" and given:
        return  # only because its items were refused
    if kind == "value_error":
        for text in map(str, detail["ctx"]["error"].args):  # `key: what is wrong`
            key, _, rest = text.partition(": ")
            at, said = ((*path, key), rest) if rest and key.isidentifier() else (path, text)
            yield Problem(dotted(at), said, line_of(at))
        return
    if kind == "extra_forbidden":
        known = valid_keys(model, local[:-1])
        # Within a value that a validator of its own took apart, nothing is known of the keys that would be right.
        is_known = known or len(local) == 1
        message = unknown_key(str(local[-1]), known, every_key(model, but=str(local[0]))) if is_known else "unknown key"
    elif kind == "missing":
        message = "is missing"
    elif kind == "literal_error":
        options = [option.strip("' ") for option in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(",")]
        message = f"{given!r} is not one of {', '.join(options)}; {nearest(str(given), options)}"
    else:
        wanted = _EXPECTED.get(kind) or f"{detail['msg'][0].lower()}{detail['msg'][1:]}"
        shown = json.dumps(given, ensure_ascii=False)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        message = f"{shown} does not fit: {wanted.removeprefix('input ')}"
    yield Problem(dotted(path), message, line_of(path))


def _key_path(data: Any, detail: ErrorDetails) -> KeyPath:
    """The place of a complaint, without what pydantic adds for the branches of a union and for dictionary keys."""
    path: list[str | int] = []
    for part in detail["loc"]:
        is_item = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if is_item or (isinstance(data, Mapping) and part in data):
            path.append(part)
            data = data[part]
    return (*path, detail["loc"][-1]) if detail["type"] == "missing" else tuple(path)


def valid_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that may stand at `path` below `model`; empty where any name may."""
    kinds: list[Any] = [model]
    for part in path:
        annotation = next(
            (kind.model_fields[str(part)].annotation for kind in _sections(kinds) if part in kind.model_fields), None
        )
        values = [typing.get_args(kind)[1] for kind in kinds if typing.get_origin(kind) is dict]
        kinds = _kinds(values[0] if values else annotation)
    return [key for kind in _sections(kinds) for key in kind.model_fields]


def _sections(kinds: Iterable[Any]) -> list[type[BaseModel]]:
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _kinds(annotation: Any) -> list[Any]:
    """The types of a union, or the only one."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for option in typing.get_args(annotation) for kind in _kinds(option)]
    return [annotation]


def every_key(settings: type[BaseModel], but: str = "") -> list[str]:
    """`train.steps` and the other keys of settings, without those of one section; none of what is no settings."""
    sections = [section for section in settings.model_fields if section != but and "train" in settings.model_fields]
    return [f"{section}.{key}" for section in sections for key in valid_keys(settings, (section,))]
