"""Plain data from YAML 1.2, checked against types. Every problem has a file, a line, a dotted key and the nearest name.

A recipe may come from anywhere, so it is data only: no tags, no aliases (a few lines of them can expand to gigabytes),
no directives (`%YAML 1.1` would change the meaning of values), bounded size and depth. YAML 1.2 reads `3e-4` as a
number (1.1 reads a string) and `no` as a string.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import operator
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML, tokens
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner

from comt_cli.errors import UserError
from comt_cli.files import read_bytes

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Problem:
    """One problem. `line` is 1-based, None for an argument of the command line; `source` is the file of a setup."""

    key: str
    message: str
    line: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}"
        place = ", ".join(part for part in (self.source, line) if part)
        place = f"{place}: " if place else ""
        return f"{place}{self.key}: {self.message}" if self.key else f"{place}{self.message}"

    def touches(self, other: Problem) -> bool:
        """Whether the two keys are equal, or one contains the other."""
        outer, inner = sorted((other.key, self.key), key=len)
        return _is_within(inner, outer) and self.source == other.source


class RecipeError(UserError):
    """A recipe that cannot be run, with all problems in the order of the file; those of setups come last."""

    def __init__(self, source: Path | str, problems: Sequence[Problem]) -> None:
        self.source = source
        each_once = dict.fromkeys(problems)  # one argument can cause the same problem in several columns
        self.problems = tuple(sorted(each_once, key=lambda problem: (problem.source or "", problem.line or 0)))
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        listing = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{source}: {count}, nothing was started\n{listing}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.source, self.problems)


def dotted(path: Iterable[str | int]) -> str:
    """`("rows", "pre-ln", "sites", 0)` as `rows.pre-ln.sites[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _is_within(key: str, outer: str) -> bool:
    return f"{key}.".startswith((f"{outer}.", f"{outer}["))


def closest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name nearest to a wrong one; None if none is near."""
    return next(iter(difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)), None)


_USUAL = {
    "lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size", "min_lr": "min_lr_ratio", "epochs": "steps",
    "gradient_accumulation_steps": "micro_batch_size", "lr_scheduler": "schedule", "dtype": "precision",
    "grad_clip": "gradient_clipping", "max_grad_norm": "gradient_clipping", "eval_interval": "evaluate_every",
    "dataset": "corpus images", "vocab_size": "vocabulary vocabulary_size", "block_size": "sequence_length",
    "hidden_size": "width", "d_model": "width", "n_embd": "width", "intermediate_size": "ffn_width", "depth": "layers",
}  # fmt: skip
"""Names of settings in other programs, with the keys of this one."""
_OPTIONS = {"seed": "seeds", "seeds": "seeds", "device": "device", "gpus": "gpus", "jobs": "jobs"}
"""Names that are options of the command, not settings."""


def known_as(name: str, keys: Sequence[str]) -> str | None:
    """The key that an unknown one means: one that ends with the same name, or its name in other programs."""
    word = name.lower().replace("-", "_")
    meant = [word, *_USUAL.get(word, "").split()]
    return next((key for each in meant for key in keys if key.rpartition(".")[2] == each), None)


def unknown_key(name: str, here: Sequence[str], elsewhere: Sequence[str]) -> str:
    """The message for an unknown key. `here` are the keys of its section, `elsewhere` those of other sections."""
    meant = known_as(name, [*here, *elsewhere])
    if meant is not None:
        return f"unknown key; did you mean {meant}?"
    is_option = elsewhere and name in _OPTIONS
    return f"unknown key; {f'use --{_OPTIONS[name]}' if is_option else nearest(name, here)}"


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint for a wrong name: the closest valid one, or all of them."""
    options = list(valid)
    close = closest(name, options)
    return f"did you mean {close}?" if close is not None else f"valid: {', '.join(options) or 'none'}"


# ---- YAML

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
    """Plain data, the 1-based line of every key path, and the problems so far. `arguments` maps a dotted key to the
    command-line argument that gave it and everything below; "" is the whole document. `source` is the file of a
    setup."""

    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    source: str | None = None

    def argument(self, path: KeyPath) -> str | None:
        """The argument that gave the key at `path`; None if the file gave it."""
        outer = self._given(path)
        return None if outer is None else self.arguments[outer]

    def _given(self, path: KeyPath) -> str | None:
        """The innermost key at or above `path` that an argument gave."""
        key = dotted(path)
        return max((each for each in self.arguments if not each or _is_within(key, each)), key=len, default=None)

    def problem(self, path: KeyPath, message: str) -> Problem:
        """A problem of the key at `path`, with its line, or with the argument that gave it."""
        outer = self._given(path)
        if outer is None:
            return Problem(dotted(path), message, self.line(path), self.source)
        below = dotted(path).removeprefix(outer).lstrip(".") if outer else ""
        return Problem(self.arguments[outer], f"{below}: {message}" if below else message)

    def note(self, path: KeyPath, message: str) -> None:
        """Add a problem of the key at `path`."""
        self.problems.append(self.problem(path, message))

    def line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the nearest enclosing key in the file."""
        above = (path[:length] for length in range(len(path), 0, -1))
        return next((self.lines[each] for each in above if each in self.lines), None)


def read(path: Path) -> Document:
    """Read a YAML file. Raises `RecipeError` with the line of anything that is not plain YAML 1.2 data."""
    try:
        content = read_bytes(path, MAX_BYTES)
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise RecipeError(path, [Problem("", "is not UTF-8 text", line)]) from None
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or error
        raise RecipeError(path, [Problem("", f"cannot be read: {said}")]) from None
    found = parse(text)
    if found.data is None and found.problems:
        raise RecipeError(path, found.problems)
    return found


def parse(text: str) -> Document:
    """Parse YAML text. If it cannot be parsed, the document has problems and no data."""
    yaml = YAML(typ="safe", pure=True)
    not_data: list[Problem] = []
    yaml.Scanner = functools.partial(_Scanner, not_data)
    found = Document()
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
    return Document(problems=not_data) if not_data else found


class _Scanner(Scanner):
    """A scanner that adds non-data to `problems` and stops at deep nesting before anything is built."""

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
            self.problems.append(Problem("", f"is nested more than {MAX_DEPTH} levels deep", line))
            raise YAMLError
        return token


def _value(node: Node, path: KeyPath, constructor: Any, found: Document) -> Any:
    """A composed node as plain data. Lines and duplicate keys are added to `found`."""
    if isinstance(node, SequenceNode):
        found.lines.update({(*path, i): item.start_mark.line + 1 for i, item in enumerate(node.value)})
        return [_value(item, (*path, i), constructor, found) for i, item in enumerate(node.value)]
    if isinstance(node, ScalarNode):
        value = node.value  # dates, binaries and integers of thousands of digits stay text
        if node.tag in _PLAIN_TAGS:
            with contextlib.suppress(ValueError):
                plain = constructor.construct_object(node)
                str(plain)  # an integer of thousands of hexadecimal digits cannot be printed
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
            found.problems.append(Problem(dotted(path), "has a key that is not a plain scalar", line))
        elif key in mapping:
            found.problems.append(Problem(dotted(at), f"is given twice, first on line {found.lines[at]}", line))
        else:
            found.lines[at] = line
            mapping[key] = _value(value_node, at, constructor, found)
    return mapping


# ---- types


def validate(model: type[Model], data: Any, document: Document, prefix: KeyPath = ()) -> Model | None:
    """Check `data`, which is at `prefix` in the document, strictly ("200" is not 200). Returns None if something is
    wrong, and adds the problems to the document."""
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        messages: dict[KeyPath, str] = {}
        for detail in error.errors(include_url=False):
            for at, message in _complaints(model, data, detail):
                messages.setdefault(at, message)  # a union reports one error for each of its types
        for at, message in messages.items():
            document.note((*prefix, *at), message)
        return None


def salvage(model: type[Model], data: Any, stand_ins: Mapping[str, Any]) -> Model | None:
    """`data` without its wrong parts, with `stand_ins` for missing keys, or None. Serves only to find more problems."""
    kept = json.loads(json.dumps(data))
    stood_in: set[KeyPath] = set()
    while True:
        try:
            return model.model_validate_json(json.dumps(kept), strict=True)
        except ValidationError as error:
            wrong = {_key_path(kept, detail): detail["type"] for detail in error.errors()}
        for path in sorted(wrong, reverse=True):  # the inner before the outer, the later item before the earlier
            is_missing = wrong[path] == "missing"
            # A stand-in that is wrong itself would be reported again.
            if not path or path in stood_in or (is_missing and path[-1] not in stand_ins):
                return None
            parent = functools.reduce(operator.getitem, path[:-1], kept)
            if is_missing:
                parent[path[-1]] = stand_ins[str(path[-1])]
                stood_in.add(path)
            else:
                del parent[path[-1]]


def _complaints(model: type[BaseModel], data: Any, detail: ErrorDetails) -> Iterator[tuple[KeyPath, str]]:
    """The messages of a pydantic error by key. An error of our validators has one message per argument."""
    kind, path, given = detail["type"], _key_path(data, detail), detail["input"]
    if kind == "too_short" and given:
        return  # only because its items were refused
    if kind == "value_error":
        for text in map(str, detail["ctx"]["error"].args):  # `key: what is wrong`
            key, _, rest = text.partition(": ")
            yield ((*path, key), rest) if rest and key.isidentifier() else (path, text)
    elif kind == "extra_forbidden":
        known = valid_keys(model, path[:-1])
        # Keys inside a value that a validator parsed itself are not known here.
        is_known = known or len(path) == 1
        yield path, unknown_key(str(path[-1]), known, every_key(model, but=str(path[0]))) if is_known else "unknown key"
    elif kind == "missing":
        yield path, "is missing"
    elif kind == "literal_error":
        options = [option.strip("' ") for option in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(",")]
        yield path, f"{given!r} is not one of {', '.join(options)}; {nearest(str(given), options)}"
    else:
        wanted = f"{detail['msg'][0].lower()}{detail['msg'][1:]}"
        shown = json.dumps(given, ensure_ascii=False)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        yield path, f"{shown} does not fit: {wanted.removeprefix('input ')}"


def _key_path(data: Any, detail: ErrorDetails) -> KeyPath:
    """The location of an error, without pydantic's additions for union branches and dictionary keys."""
    path: list[str | int] = []
    for part in detail["loc"]:
        is_item = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if is_item or (isinstance(data, Mapping) and part in data):
            path.append(part)
            data = data[part]
    return (*path, detail["loc"][-1]) if detail["type"] == "missing" else tuple(path)


def valid_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The valid keys at `path` below `model`; empty if any name is valid."""
    kinds: list[Any] = [model]
    for part in path:
        below = [typing.get_args(kind)[1] for kind in kinds if typing.get_origin(kind) is dict]
        below += [keys[str(part)].annotation for keys in _fields(kinds) if part in keys]
        kinds = _kinds(below[0] if below else None)
    return [key for keys in _fields(kinds) for key in keys]


def _fields(kinds: Iterable[Any]) -> list[Mapping[str, Any]]:
    return [kind.model_fields for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _kinds(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for option in typing.get_args(annotation) for kind in _kinds(option)]
    return [annotation]


def every_key(settings: type[BaseModel], but: str = "") -> list[str]:
    """All keys of settings as `train.steps`, without those of the section `but`; [] for other models."""
    sections = [section for section in settings.model_fields if section != but and "train" in settings.model_fields]
    return [f"{section}.{key}" for section in sections for key in valid_keys(settings, (section,))]


def wrong_setting(key: str, settings: type[BaseModel]) -> str | None:
    """Why settings have no key such as `train.steps`; None if they have it."""
    section, _, name = key.partition(".")
    if not name:
        return f"should be SECTION.KEY, such as {known_as(key, every_key(settings)) or 'train.learning_rate'}"
    if section not in settings.model_fields:
        return f"there is no section {section!r}; {nearest(section, settings.model_fields)}"
    known = valid_keys(settings, (section,))
    return None if name in known else unknown_key(name, known, every_key(settings, but=section))
