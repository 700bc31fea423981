"""What `--set` changes of a recipe, and the name of the table that it makes so: `steps-12` of `table3@steps-12`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from comt_cli.files import canonical_json, sha256
from comt_cli.recipe.merge import Arguments
from comt_cli.recipe.overrides import overrides_of
from comt_cli.recipe.schema import TaskOptions
from comt_cli.recipe.settings import RunSettings
from comt_cli.recipe.validate import valid_keys

MARK = "@"
"""Between the name of a table and that of its settings; no recipe's name has it."""
_LONGEST = 48
_DIGITS = 8


def changes(arguments: Arguments, task: TaskOptions, merge: Callable[..., Mapping[Any, Any]]) -> dict[str, Any]:
    """Those of the `--set` arguments that change what is trained, by dotted key, in the order of the keys, as given.

    Left out is what changes no number (`runtime_keys`), and what has the value anyway in every cell, with the other
    arguments. `merge` is `merged_settings` of arguments and problems.
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


def as_arguments(changed: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings by dotted key as `--set` takes them: `train.steps=12`, `method.sites=["q_proj"]`."""
    return tuple(f"{key}={_text(value)}" for key, value in changed.items())


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return text.replace("+", "") if isinstance(value, float) else text  # 1e18: a name would make 1e-18 of 1e+18


def table_name(table: str, changed: Mapping[str, Any], kind: type[RunSettings]) -> str:
    """What a table is called that has changed settings: `table3@steps-12`, in the order of their keys
    `table3@learning_rate-0.01+steps-12`; `table3` of none. What is long, or has signs that no file's name should have,
    ends with a hash of all of it."""
    if not changed:
        return table
    parts, is_whole = [], True
    for key in sorted(changed):
        section, _, name = key.partition(".")
        is_clear = [each for each in kind.model_fields if name in valid_keys(kind, (each,))] == [section]
        said = f"{name if is_clear else key}-{_text(changed[key])}"
        parts.append(re.sub(r"[^A-Za-z0-9._-]+", "-", said))
        is_whole = is_whole and parts[-1] == said
    whole = "+".join(parts)
    if not is_whole or len(whole) > _LONGEST:
        whole = f"{whole[: _LONGEST - _DIGITS - 1].rstrip('+._-')}-{sha256(canonical_json(dict(changed)))[:_DIGITS]}"
    return f"{table}{MARK}{whole}"


def split_variant(name: str) -> tuple[str, str]:
    """`table3` and `steps-12` of `table3@steps-12`; "" last of a name without settings, or a path."""
    before, mark, variant = name.rpartition(MARK)
    return (before, variant) if mark and "/" not in variant and not Path(name).is_file() else (name, "")
