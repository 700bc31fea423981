"""Find recipes by name, and name their results and their tables of changed settings (`table3@steps-12`)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.files import canonical_json, sha256
from comt_cli.recipe.problems import closest
from comt_cli.recipe.schema import NAME_LENGTH
from comt_cli.recipe.settings import RunSettings

DEFAULT_PAPER = "comt"
OWN_ROOT = Path("recipes")
"""The first folder in which recipes are looked up by name, before those that came with the program."""
SETUPS = "setups"  # the folder of setups, next to the papers' folders; it contains no recipes
OWN = "own"  # the folder, in the runs and the results, of recipes outside the recipe roots


def recipe_roots() -> list[Path]:
    """Folders in which recipes are looked up by name: `./recipes`, then those that came with the program."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "_recipes"
    return [root for root in (OWN_ROOT, shipped if shipped.is_dir() else package.parent / "recipes") if root.is_dir()]


def available_recipes() -> dict[str, Path]:
    """Map `paper/table` to the file of every recipe that can be found by name, sorted by name."""
    found: dict[str, Path] = {}
    for root in reversed(recipe_roots()):
        recipes = (path for path in root.glob("*/*.yaml") if path.parent.name != SETUPS)
        found.update({f"{path.parent.name}/{path.stem}": path for path in recipes})
    return dict(sorted(found.items()))


def find_recipe(name: str) -> Path:
    """The file of a recipe: a path, or a name such as `comt/table3.yaml`, `transponder/table2`, or `table3.yaml` for
    CoMT's. Raises `UserError` if there is none; the hint names the nearest recipe."""
    path = Path(name)
    if path.is_file():
        return path
    relative = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    for root in recipe_roots():
        for candidate in (root / relative, root / DEFAULT_PAPER / relative):
            if candidate.is_file() and candidate.parent.name != SETUPS:
                return candidate
    short = {key.removeprefix(f"{DEFAULT_PAPER}/"): None for key in available_recipes()}
    near = closest(full_name(name).removeprefix(f"{DEFAULT_PAPER}/"), [*short, *available_recipes()])
    meant = " or ".join(namesakes(name)) or near
    hint = f"did you mean {meant}?" if meant else "comt recipes lists the recipes."
    raise UserError(f"there is no recipe {name}", hint)


def full_name(name: str) -> str:
    """`comt/table3` for `table3.yaml`: a name without a paper is CoMT's."""
    whole = name.removesuffix(".yaml").removesuffix(".yml")
    return whole if "/" in whole else f"{DEFAULT_PAPER}/{whole}"


def namesakes(name: str) -> list[str]:
    """The recipes of other papers that have the same short name, such as `table2`, which selects CoMT's."""
    if "/" in name or Path(name).is_file():
        return []
    own = full_name(name)
    return [key for key in available_recipes() if key.rpartition("/")[2] == own.rpartition("/")[2] and key != own]


def also_called(name: str) -> str | None:
    """A sentence that lists the recipes of other papers with the same name; None if there are none."""
    others = namesakes(name) if full_name(name) in available_recipes() else []
    return f"{name} is {full_name(name)}; there is {' and '.join(others)}, too." if others else None


def is_named(path: Path) -> bool:
    """Whether a recipe is in a recipe root, so that a name such as `comt/table3.yaml` finds it."""
    return path.resolve().parent.parent in [root.resolve() for root in recipe_roots()]


def place_of(path: Path) -> tuple[str, str]:
    """The folder and the name of a recipe's runs and results: `comt`, `table3`. They depend on the file's path, not on
    the keys in it. The folder is `own` for a file outside the recipe roots."""
    whole = path.resolve()
    return as_name(whole.parent.name) if is_named(path) else OWN, as_name(whole.stem)


def as_name(text: str) -> str:
    """`text` as a valid name in a recipe: other characters become dashes, and a hash keeps changed names distinct."""
    name = re.sub(r"[^A-Za-z0-9+._-]", "-", text).lstrip("+._-") or "recipe"
    if name == text and len(name) <= NAME_LENGTH:
        return name
    return f"{name[: NAME_LENGTH - 9]}-{sha256(os.fsencode(text))[:8]}"


# ---- tables of changed settings

MARK = "@"  # separates the name of a table from its settings; recipe names never contain it
_LONGEST = 48
_DIGITS = 8


def as_arguments(changed: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings by dotted key as `--set` arguments: `train.steps=12`, `method.sites=["q_proj"]`."""
    return tuple(f"{key}={_text(value)}" for key, value in changed.items())


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return text.replace("+", "") if isinstance(value, float) else text  # 1e18: a name would make 1e-18 of 1e+18


def table_name(table: str, changed: Mapping[str, Any], kind: type[RunSettings]) -> str:
    """The name of a table with changed settings: `table3@learning_rate-0.01+steps-12`; `table3` if nothing changed. A
    name that is long, or contains characters unsuitable for a file name, ends with a hash of the settings."""
    if not changed:
        return table
    parts, is_whole = [], True
    for key in sorted(changed):
        section, _, name = key.partition(".")
        having = [each for each, field in kind.model_fields.items() if name in field.annotation.model_fields]  # type: ignore[union-attr]
        said = f"{name if having == [section] else key}-{_text(changed[key])}"
        parts.append(re.sub(r"[^A-Za-z0-9._-]+", "-", said))
        is_whole = is_whole and parts[-1] == said
    whole = "+".join(parts)
    if not is_whole or len(whole) > _LONGEST:
        whole = f"{whole[: _LONGEST - _DIGITS - 1].rstrip('+._-')}-{sha256(canonical_json(dict(changed)))[:_DIGITS]}"
    return f"{table}{MARK}{whole}"


def split_variant(name: str) -> tuple[str, str]:
    """Split `table3@steps-12` into `table3` and `steps-12`; the second part is "" for a path or a plain name."""
    before, mark, variant = name.rpartition(MARK)
    return (before, variant) if mark and "/" not in variant and not Path(name).is_file() else (name, "")
