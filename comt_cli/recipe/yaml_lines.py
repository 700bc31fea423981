"""YAML 1.2 read as plain data, with the line every key stands on.

A recipe may come from anywhere, so it is data only: no tags, no aliases (a few lines of them can expand to gigabytes),
no directives (`%YAML 1.1` would change what values mean), bounded size and depth. YAML 1.2
reads `3e-4` as a number (1.1 reads a string) and `no` as a string.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, tokens
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner

from comt_cli.files import read_bytes
from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, dotted

MAX_BYTES = 200_000
MAX_DEPTH = 20
_NOT_DATA = {tokens.AliasToken: "an alias", tokens.TagToken: "a tag", tokens.DirectiveToken: "a directive"}
_OPENING = (
    *(tokens.BlockMappingStartToken, tokens.BlockSequenceStartToken),
    *(tokens.FlowMappingStartToken, tokens.FlowSequenceStartToken),
)
_CLOSING = (tokens.BlockEndToken, tokens.FlowMappingEndToken, tokens.FlowSequenceEndToken)
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null"))


@dataclass
class Document:
    """Plain data and the 1-based line of every key path. `problems` are those that left the rest readable, such as a
    key that stands twice; `arguments` those of the command line that gave a dotted key, and all below it, in place of
    the file."""

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)

    def argument(self, key: str) -> str | None:
        """The argument that gave a dotted key; None where the file did."""
        fitting = [each for each in self.arguments if f"{key}.".startswith((f"{each}.", f"{each}["))]
        return self.arguments[max(fitting, key=len)] if fitting else None

    def problem(self, path: KeyPath, message: str) -> Problem:
        """A problem of the key at `path`, with its line."""
        return Problem(dotted(path), message, self.line(path))

    def line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the nearest enclosing key in the file."""
        above = (path[:length] for length in range(len(path), 0, -1))
        return next((self.lines[each] for each in above if each in self.lines), None)


def read(path: Path) -> Document:
    """Read a YAML file. Raises `RecipeError` naming the line for anything that is not plain YAML 1.2 data."""
    try:
        content = read_bytes(path, MAX_BYTES)
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise RecipeError(path, [Problem("", "is not UTF-8 text", line)]) from None
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or error
        raise RecipeError(path, [Problem("", f"cannot be read: {said}")]) from None
    return parse(text, path)


def parse(text: str, source: Path | str) -> Document:
    """Parse YAML text; `source` names it in errors. Raises `RecipeError` where nothing can be made of it."""
    yaml = YAML(typ="safe", pure=True)
    not_data: list[Problem] = []
    yaml.Scanner = partial(_Scanner, not_data)
    found = Document({})
    try:
        node = yaml.compose(text)
        if node is not None and not not_data:
            found.data = _value(node, (), yaml.constructor, found)
    except YAMLError as error:
        line, said = None, str(error)
        if isinstance(error, ReaderError):
            line, said = text[: error.position].count("\n") + 1, f"it holds the character U+{error.character:04X}"
        elif isinstance(error, MarkedYAMLError):
            line, said = error.problem_mark.line + 1 if error.problem_mark else None, error.problem or error.context
        not_data = not_data or [Problem("", f"is not YAML: {said}", line)]
    if not_data:
        raise RecipeError(source, not_data)
    return found


class _Scanner(Scanner):
    """Notes in `problems` what is not data, and refuses what is nested too deeply before anything is built from it."""

    def __init__(self, problems: list[Problem], loader: Any = None) -> None:
        super().__init__(loader)
        self.problems = problems
        self._depth = 0

    def get_token(self) -> Any:
        token = super().get_token()
        line = token.start_mark.line + 1
        if type(token) in _NOT_DATA:
            message = f"{_NOT_DATA[type(token)]} is not allowed: a recipe is plain data"
            self.problems.append(Problem("", message, line))
        self._depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if self._depth > MAX_DEPTH:
            self.problems.append(Problem("", "is nested too deeply", line))
            raise YAMLError
        return token


def _value(node: Node, path: KeyPath, constructor: Any, found: Document) -> Any:
    """A composed node as plain data; its lines, and keys that stand twice, are noted in `found`."""
    if isinstance(node, SequenceNode):
        found.lines.update({(*path, i): item.start_mark.line + 1 for i, item in enumerate(node.value)})
        return [_value(item, (*path, i), constructor, found) for i, item in enumerate(node.value)]
    if isinstance(node, ScalarNode):
        value = node.value  # of a date, a binary, an integer of thousands of digits: the text that stands there
        if node.tag in _PLAIN_TAGS:
            with contextlib.suppress(ValueError):
                plain = constructor.construct_object(node)
                str(plain)  # of thousands of hexadecimal digits there is an integer, which cannot be printed
                value = plain
        if not str(value).isascii() and value != value.encode(errors="replace").decode():
            raise MarkedYAMLError(problem="it holds half of a surrogate pair", problem_mark=node.start_mark)
        return value
    assert isinstance(node, MappingNode)
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key, at = str(key_node.value), (*path, str(key_node.value))
        if not isinstance(key_node, ScalarNode):
            found.problems.append(Problem(dotted(path), "has a key that is not a word", line))
        elif key in mapping:
            found.problems.append(Problem(dotted(at), f"stands twice, first on line {found.lines[at]}", line))
        else:
            found.lines[at] = line
            mapping[key] = _value(value_node, at, constructor, found)
    return mapping
