"""YAML 1.2 read as plain data, with the line every key stands on.

A recipe may come from anywhere, so it is data only: no tags, no aliases (a few lines of them can expand to gigabytes),
no directives (`%YAML 1.1` would change what values mean), bounded size and depth. YAML 1.2
reads `3e-4` as a number (1.1 reads a string) and `no` as a string.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner
from ruamel.yaml.tokens import (
    AliasToken,
    BlockEndToken,
    BlockMappingStartToken,
    BlockSequenceStartToken,
    DirectiveToken,
    FlowMappingEndToken,
    FlowMappingStartToken,
    FlowSequenceEndToken,
    FlowSequenceStartToken,
    TagToken,
)

from comt_cli.files import read_bytes
from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, dotted

MAX_BYTES = 200_000
MAX_DEPTH = 20
UNREADABLE = "is not a readable value"
_NOT_DATA = {AliasToken: "an alias", TagToken: "a tag", DirectiveToken: "a directive"}
_OPENING = (BlockMappingStartToken, BlockSequenceStartToken, FlowMappingStartToken, FlowSequenceStartToken)
_CLOSING = (BlockEndToken, FlowMappingEndToken, FlowSequenceEndToken)
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null"))


@dataclass
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and the 1-based line of every key path.

    `problems` are those that left the rest readable, such as a key that stands twice. `arguments` are those of the
    command line that gave a dotted key, and all below it, in place of the file.
    """

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)

    def argument(self, key: str) -> str | None:
        """The argument that gave a dotted key; None where the file did."""
        fitting = [each for each in self.arguments if f"{key}.".startswith((f"{each}.", f"{each}["))]
        return self.arguments[max(fitting, key=len)] if fitting else None

    def blamed(self, problem: Problem) -> Problem:
        """The problem as one of the argument that gave its key, where one did, and of no line."""
        argument = self.argument(problem.key) if problem.source is None else None
        return problem if argument is None else Problem(argument, problem.message)

    def problem(self, path: KeyPath, message: str) -> Problem:
        """A problem of the key at `path`, with its line."""
        return Problem(dotted(path), message, self.line(path))

    def line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the nearest enclosing key in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def read(path: Path) -> Document:
    """Read a YAML file. Raises `RecipeError` naming the line for anything that is not plain YAML 1.2 data."""
    try:
        content = read_bytes(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or error
        raise RecipeError(path, [Problem("", f"cannot be read: {said}")]) from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise RecipeError(path, [Problem("", "is not UTF-8 text", line)]) from None
    return parse(text, path)


def parse(text: str, source: Path | str) -> Document:
    """Parse YAML text; `source` names it in errors. Raises `RecipeError` where nothing can be made of it."""
    yaml = YAML(typ="safe", pure=True)
    not_data: list[Problem] = []
    yaml.Scanner = partial(_Scanner, not_data)
    try:
        node = yaml.compose(text)
    except YAMLError as error:
        raise RecipeError(source, not_data or [_unreadable(error, text)]) from None
    if not_data:
        raise RecipeError(source, not_data)
    walker = _Walker(yaml.constructor)
    data = walker.value(node, ()) if node is not None else {}
    return Document(data, walker.lines, walker.problems)


def _unreadable(error: YAMLError, text: str) -> Problem:
    if isinstance(error, ReaderError):
        sign, line = f"U+{error.character:04X}", text[: error.position].count("\n") + 1
        return Problem("", f"is not YAML: it holds the character {sign}", line)
    if not isinstance(error, MarkedYAMLError):
        return Problem("", f"is not YAML: {error}")
    at = error.problem_mark.line + 1 if error.problem_mark else None
    return Problem("", f"is not YAML: {error.problem or error.context}", at)


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


class _Walker:
    """Turns composed nodes into plain data, noting lines and repeated keys on the way."""

    def __init__(self, constructor: Any) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._constructor = constructor

    def value(self, node: Node, path: KeyPath) -> Any:
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            self.lines.update({(*path, i): item.start_mark.line + 1 for i, item in enumerate(node.value)})
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        if node.tag not in _PLAIN_TAGS:  # a date, a binary: read as the text that stands there
            return node.value
        try:
            value = self._constructor.construct_object(node)
            json.dumps(value, ensure_ascii=False).encode()
        except ValueError:  # an integer of thousands of digits, half of a surrogate pair
            self.problems.append(Problem(dotted(path), UNREADABLE, node.start_mark.line + 1))
            return None
        return value

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
