"""The names of tables of changed settings: `steps-12` of `table3@steps-12`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comt_cli.files import canonical_json, sha256
from comt_cli.recipe.settings import RunSettings
from comt_cli.recipe.validate import valid_keys

MARK = "@"
"""Between the name of a table and that of its settings; no recipe's name has it."""
_LONGEST = 48
_DIGITS = 8


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
