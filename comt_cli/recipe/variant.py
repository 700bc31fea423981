"""What `--set` changes of a recipe, and the name of the table that it makes so: `steps-12` of `table3@steps-12`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from comt_cli.files import canonical_json, sha256
from comt_cli.recipe.merge import Arguments
from comt_cli.recipe.schema import TaskOptions
from comt_cli.recipe.settings import RunSettings
from comt_cli.recipe.validate import valid_keys

MARK = "@"
"""Between the name of a table and that of its settings; no recipe's name has it."""
_LONGEST = 48
_DIGITS = 8


def changes(arguments: Arguments, task: TaskOptions, merge: Callable[..., Mapping[Any, Any]]) -> dict[str, Any]:
    """Those of the `--set` arguments that change what is trained, by dotted key, in the order of the keys.

    Left out is what changes no number (`runtime_keys`), and what has the value anyway, with the other arguments.
    `merge` is `merged_settings` of arguments and problems. A value is the one that the runs have; where they have
    several, as with a share of unequal numbers of steps, it is what was given.
    """
    found: dict[str, Any] = {}
    if not arguments.origin:
        return found

    def settings(given: Arguments) -> list[list[RunSettings]]:
        return [[each for each, _ in points] for points in merge(given, []).values()]

    whole, left = settings(arguments), arguments
    for section, name in sorted(arguments.origin):
        if name in task.runtime_keys.get(str(section), ()):
            continue
        if settings(left.without(section, name)) == whole:
            left = left.without(section, name)
            continue
        values = [each.model_dump(mode="json")[str(section)][str(name)] for points in whole for each in points]
        is_one = all(value == values[0] for value in values)
        found[f"{section}.{name}"] = values[0] if is_one else arguments.values[str(section)][str(name)]
    return found


def as_arguments(changed: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings by dotted key as `--set` takes them: `train.steps=12`, `method.sites=["q_proj"]`."""
    return tuple(f"{key}={_text(value)}" for key, value in changed.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def variant_name(changed: Mapping[str, Any], kind: type[RunSettings]) -> str:
    """The name of changed settings: `steps-12`, of several in the order of their keys `learning_rate-0.01+steps-12`;
    "" of none. What is long, or has signs that no file's name should have, ends with a hash of all of it."""
    parts, is_whole = [], True
    for key in sorted(changed):
        section, _, name = key.partition(".")
        is_clear = [each for each in kind.model_fields if name in valid_keys(kind, (each,))] == [section]
        text = _text(changed[key])
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
        is_whole = is_whole and slug == text
        parts.append(f"{name if is_clear else key}-{slug}")
    whole = "+".join(parts)
    if is_whole and len(whole) <= _LONGEST:
        return whole
    return f"{whole[: _LONGEST - _DIGITS - 1].rstrip('+._-')}-{sha256(canonical_json(dict(changed)))[:_DIGITS]}"


def split_variant(name: str) -> tuple[str, str]:
    """`table3` and `steps-12` of `table3@steps-12`; "" last of a name without settings, or a path."""
    before, mark, variant = name.rpartition(MARK)
    return (before, variant) if mark and "/" not in variant and not Path(name).is_file() else (name, "")
