"""YAML 1.2 read as plain data, with the line every key stands on.

A recipe may come from anywhere, so it is data only: no tags, no aliases (a few lines of them can expand to gigabytes),
bounded size and depth. YAML 1.2 reads `3e-4` as a number (1.1 reads a string) and `no` as a string.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.tokens import AliasToken, TagToken

from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, dotted

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null"))


@dataclass
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and the 1-based line of every key path."""

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the nearest enclosing key that stands in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def read(path: Path) -> Document:
    """Read a YAML file. Raises `RecipeError` naming the line for anything that is not plain YAML 1.2 data."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecipeError(path, [Problem("", f"cannot be read: {error.strerror or error}")]) from None
    if len(content) > MAX_BYTES:
        raise RecipeError(path, [Problem("", f"has {len(content):,} bytes; a recipe has at most {MAX_BYTES:,}")])
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise RecipeError(path, [Problem("", "is not UTF-8 text", line)]) from None
    return parse(text, path)


def parse(text: str, source: Path | str) -> Document:
    """Parse YAML text; `source` names it in errors."""
    try:
        for token in YAML(pure=True).scan(text):
            if isinstance(token, AliasToken | TagToken):
                what = "an alias" if isinstance(token, AliasToken) else "a tag"
                raise RecipeError(
                    source, [Problem("", f"{what} is not allowed: a recipe is plain data", token.start_mark.line + 1)]
                )
        node = YAML(pure=True).compose(text)
        walker = _Walker(source)
        data = walker.value(node, ()) if node is not None else {}
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise RecipeError(source, [Problem("", f"is not YAML: {error.problem or error.context}", line)]) from None
    except (YAMLError, RecursionError) as error:
        raise RecipeError(source, [Problem("", f"is not YAML: {error}")]) from None
    if walker.problems:
        raise RecipeError(source, walker.problems)
    return Document(data, walker.lines)


class _Walker:
    """Turns composed nodes into plain data, noting lines and repeated keys on the way."""

    def __init__(self, source: Path | str) -> None:
        self.source = source
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._constructor = YAML(typ="safe", pure=True).constructor

    def value(self, node: Node, path: KeyPath) -> Any:
        if len(path) > MAX_DEPTH:
            raise RecipeError(self.source, [Problem(dotted(path[:3]), "is nested too deeply", node.start_mark.line + 1)])
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            self.lines.update({(*path, i): item.start_mark.line + 1 for i, item in enumerate(node.value)})
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        if node.tag not in _PLAIN_TAGS:  # a date, a binary: read as the text that stands there
            return node.value
        try:
            return self._constructor.construct_object(node)
        except ValueError:  # for instance an integer of thousands of digits
            self.problems.append(Problem(dotted(path), "is not a readable value", node.start_mark.line + 1))
            return None

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                self.problems.append(Problem(dotted(path), "has a key that is not a word", line))
                continue
            key = str(key_node.value)
            if key in mapping:
                first = self.lines[(*path, key)]
                self.problems.append(Problem(dotted((*path, key)), f"stands twice, first on line {first}", line))
                continue
            self.lines[(*path, key)] = line
            mapping[key] = self.value(value_node, (*path, key))
        return mapping
