"""Write the tables of docs/recipe-keys from the schema of recipes: python docs/site/recipe_keys.py --write

The script writes the parts of a page between `<!-- keys: ... -->` and `<!-- end -->`. Keys, types and defaults are from
the schema, meanings from docs/site/keys.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from comt_cli.methods import methods  # noqa: E402
from comt_cli.methods.base import SITE_SETS, has_connection, residual_connections  # noqa: E402
from comt_cli.recipe import schema  # noqa: E402
from comt_cli.recipe.settings import NetworkSettings, Training  # noqa: E402
from comt_cli.tasks import tasks  # noqa: E402
from comt_cli.tasks.base import CONVOLUTIONS, NORMS  # noqa: E402

PAGES = ROOT / "docs" / "recipe-keys"
MEANINGS = Path(__file__).parent / "keys"
MARKED = re.compile(r"(<!-- keys: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
LISTS = {**{sites: f"`{name}`" for name, sites in SITE_SETS.items()}, CONVOLUTIONS: "`all`", NORMS: "`all`", (): "`[]`"}
"""Defaults that are lists, as a recipe gives them."""
LARGE = 10**6  # limits from here on are left out of tables; the index has them
SPLITS = {"last_test_": "test, last weights", "test_": "test", "unseen_": "unseen", "": "validation"}
"""The data of metrics, by the beginning of their names."""
used: set[tuple[str, str]] = set()
"""The meanings that were looked up, by class and key."""


@functools.cache
def meanings() -> Mapping[str, Mapping[str, str | list[str]]]:
    """All meanings by class and key."""
    found: dict[str, Any] = {}
    for file in sorted(MEANINGS.glob("*.yaml")):
        found |= YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    return found


def meaning(kind: type, key: str) -> str | list[str] | None:
    """The meaning of a key in the nearest class that has one."""
    for base in kind.__mro__:
        if key in meanings().get(base.__name__, {}):
            used.add((base.__name__, key))
            return meanings()[base.__name__][key]
    return None


def type_of(given: Mapping[str, Any]) -> str:
    """The type of a value with this JSON schema, in words."""
    if several := given.get("anyOf") or given.get("oneOf"):
        return ", or ".join(dict.fromkeys(type_of(each) for each in several if each.get("type") != "null"))
    if "const" in given or "enum" in given:
        return ", ".join(f"`{value}`" for value in given.get("enum", [given.get("const")]))
    match given.get("type"):
        case "integer" | "number" as kind:
            return number(given, whole=kind == "integer")
        case "array":
            return f"list of {type_of(given['items']).replace('whole number', 'whole numbers', 1)}"
        case kind:
            return {"boolean": "`true`, `false`", "object": "group"}.get(str(kind), "text")


def number(given: Mapping[str, Any], *, whole: bool) -> str:
    """The type of a number with this JSON schema, with its limits."""
    low, high = given.get("minimum"), given.get("maximum")
    above, below = given.get("exclusiveMinimum"), given.get("exclusiveMaximum")
    if whole:
        low = low if above is None else above + 1
        high = high if below is None else below - 1
        until = f" to {high:,}" if high is not None and high < LARGE else ""
        return "whole number" + ("" if low is None else f" from {low:,}{until}")
    ends = [f"from {low:g}"] if low is not None else [f"above {above:g}"] if above is not None else []
    ends += [f"to {high:g}"] if high is not None else [f"and below {below:g}"] if below is not None else []
    return " ".join(["number", *ends])


def default_of(field: Any) -> str:
    """A field's default as a recipe would have it."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, tuple):
        return LISTS[value]
    if isinstance(value, bool) or value is None:
        return "`" + {True: "true", False: "false", None: "null"}[value] + "`"
    return f"`{value}`" if isinstance(value, str | int | float) else "`{}`"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = [*head]
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def keys_of(kind: type, never_in_id: Iterable[str] = ()) -> str:
    """The table of a class's keys.

    Raises:
        KeyError: a key has no meaning.
    """
    properties, rows = kind.model_json_schema()["properties"], []  # type: ignore[attr-defined]
    moments = kind.moments if issubclass(kind, Training) else {}
    refused: Mapping[str, str] = getattr(kind, "refused", {})
    for key, field in kind.model_fields.items():  # type: ignore[attr-defined]
        said = meaning(kind, key)
        if said is None:
            raise KeyError(f"docs/site/keys has no meaning of {key} of {kind.__name__}")
        form, default = type_of(properties[key]), default_of(field)
        if isinstance(said, list):
            form, *defaults, said = said
            (default,) = defaults or [default]
        elif key in moments:
            form += " or share"
        if key in refused:
            said = f"Only the default is allowed: {refused[key]}"
        if "{samples}" in said:
            samples = str(meaning(kind, "_samples"))
            said = said.replace("{samples}", samples.capitalize())
        said += ". Not part of the run id" if key in never_in_id else ""
        rows.append([f"`{key}`", form, default, said])
    return table(["key", "type", "default", "meaning"], rows)


def recipe_keys(name: str) -> str:
    """The table of a group of the recipe file itself: `Row`."""
    return keys_of(getattr(schema, name))


def section_keys(command: str, section: str) -> str:
    """The table of a section of a command's settings."""
    task = tasks()[command]
    return keys_of(task.settings.model_fields[section].annotation, task.runtime_keys.get(section, ()))


def sizes(command: str) -> str:
    """The table of a command's named sizes."""
    kind: type[NetworkSettings] = tasks()[command].settings.model_fields["model"].annotation
    shapes = {name: kind.model_validate({"size": name}).shape()._asdict() for name in kind.sizes}
    columns = [key for key in next(iter(shapes.values())) if key != "kv_heads"]
    rows = [[f"`{name}`", *(" ".join(map(str, each)) if isinstance(each := shape[key], tuple) else str(each)
                            for key in columns)] for name, shape in shapes.items()]  # fmt: skip
    return table(["size", *(f"`{key}`" if key in kind.model_fields else key for key in columns)], rows)


def metrics(command: str) -> str:
    """The table of a command's metrics; the first is the default."""
    rows = []
    for name, metric in tasks()[command].metrics.items():
        prefix = next(prefix for prefix in SPLITS if name.startswith(prefix))
        key = name.removeprefix(prefix)
        used.add(("metrics", key))
        rows.append([f"`{name}`", SPLITS[prefix], metric.better, str(meanings()["metrics"][key])])
    return table(["metric", "data", "better", "meaning"], rows)


def drawings() -> str:
    """The table of figures."""
    said = meanings()["drawings"]
    found = [(name, command) for command, task in tasks().items() for name in task.drawings]
    used.update(("drawings", name) for name, _ in found)
    return table(["draw", "command", "meaning"], [[f"`{name}`", f"`{command}`", str(said[name])]
                                                  for name, command in found])  # fmt: skip


def connections() -> str:
    """The names of residual connections: of every network of tokens, and of language models alone."""
    anywhere = {name: has_connection(tasks()["train-mt"].sites, name) for name in residual_connections()}
    lists = [", ".join(f"`{name}`" for name, is_there in anywhere.items() if is_there == wanted)
             for wanted in (True, False)]  # fmt: skip
    return f"- in every network but ResNets: {lists[0]}\n- in language models only: {lists[1]}\n"


def without_options() -> str:
    """The methods that have no options."""
    return ", ".join(f"`{name}`" for name, kind in methods().items() if not kind.model_fields) + "\n"


def method_options() -> str:
    """A section of every method with options."""
    return "\n".join(f"### {name}\n\n{keys_of(kind)}" for name, kind in sorted(methods().items()) if kind.model_fields)


def site_sets() -> str:
    """The table of the names of sets of projections."""
    return table(["name", "projections"], [[f"`{name}`", ", ".join(f"`{site.rpartition('.')[2]}`" for site in sites)]
                                           for name, sites in SITE_SETS.items()])  # fmt: skip


WRITERS = {
    "recipe": recipe_keys, "section": section_keys, "sizes": sizes, "metrics": metrics, "drawings": drawings,
    "connections": connections, "methods": method_options, "without": without_options, "sites": site_sets,
}  # fmt: skip


def written(text: str) -> str:
    """A page's text with its tables as they should be."""

    def filled(match: re.Match[str]) -> str:
        what, *arguments = match[2].split()
        return f"{match[1]}\n{WRITERS[what](*arguments)}\n{match[3]}"

    return MARKED.sub(filled, text)


if __name__ == "__main__" and "--write" in sys.argv:
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
