"""Source of classes and functions as one text that needs only torch, reduced to what running them needs.

The syntax decides what is needed: the module's globals that code names, and of a class the methods and attributes whose
names occur in the kept code. Modules lose their `__init__`: attributes and parameters are set from outside, so the
objects that constructors take are not needed.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from comt_cli.errors import UserError

ALLOWED = {"torch", *sys.stdlib_module_names}
"""Packages that the code may import."""
NEVER = ("torch.compiler.is_compiling()", "self.fused")
"""Conditions for kernels and compiled steps. They are False in exported code."""


class Definition(NamedTuple):
    """A class or function of the text: its syntax, its module, and of a class the kept members."""

    node: ast.ClassDef | ast.FunctionDef
    module: ModuleType
    value: Any
    members: list[ast.stmt]


class Bundle:
    """Source of `roots` and of everything they need.

    `reads` are the attribute names that occur in it and in the surrounding code (`uses`). `known` are names that this
    code defines itself. `without` are methods that are left out. Raises `UserError` if something needs another package,
    an object that is neither code nor a plain value, or two things of one name.

    >>> from comt_cli.layers.learned import LowRank
    >>> "torch.eye" in str(Bundle([LowRank]))  # of its initial values
    False
    """

    def __init__(
        self, roots: Iterable[type | Callable[..., Any]], uses: Collection[str] = (), known: Collection[str] = (),
        without: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.known, self.roots, self.without = {*known, "__name__"}, [*roots], {*without}
        self.own = {"comt_cli", *(root.__module__.partition(".")[0] for root in self.roots)} - ALLOWED
        self.reads = {*uses, "forward", "backward"}
        self._lines: dict[str, str] = {}  # imports and constants
        self._definitions: dict[str, Definition] = {}
        self._taken: dict[str, Any] = {}
        for root in self.roots:
            if root.__name__ in known:
                said = f"{root.__module__}: the exported code already defines {root.__name__}"
                raise UserError(said, "Rename yours.")
            self._take(root.__name__, root, root.__module__)
        while more := [*self._mentioned()]:
            for definition, member in more:
                definition.members.append(member)
                self._follow(member, definition)

    def _mentioned(self) -> Iterator[tuple[Definition, ast.stmt]]:
        """Members that are not kept yet: of modules those that are mentioned, of other classes all."""
        for definition in self._definitions.values():
            is_whole = not issubclass(definition.value, _CUT) if isinstance(definition.value, type) else None
            for member in [] if is_whole is None else definition.node.body:
                match member:
                    case ast.FunctionDef(name=name):
                        does = [ast.unparse(each) for each in member.body if not _is_text(each)]
                        is_mentioned = name in self.reads - {"__init__"} and does != ["raise NotImplementedError"]
                    case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(ast.Name(id=name), value=ast.expr()):
                        is_mentioned = name in self.reads
                    case _:
                        is_mentioned = False
                left_out = f"{definition.node.name}.{getattr(member, 'name', '')}" in self.without or _is_text(member)
                if (is_whole or is_mentioned) and not left_out and member not in definition.members:
                    yield definition, member

    def _follow(self, node: ast.AST, of: Definition) -> None:
        """Take everything that code names, and record the attributes that it mentions."""
        every, known = [*ast.walk(_cut(node, set()))], vars(of.module)
        bound = {each.id for each in every if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
        bound |= {each.arg for each in every if isinstance(each, ast.arg)}
        self.reads |= {each.attr for each in every if isinstance(each, ast.Attribute)}
        for each in every:
            if isinstance(each, ast.Name) and each.id in known and each.id not in bound:
                self._take(each.id, known[each.id], of.module.__name__)
            elif isinstance(each, ast.Import | ast.ImportFrom):
                raise UserError(f"{of.module.__name__}, line {each.lineno}: exported code imports inside a function")

    def _take(self, name: str, value: Any, by: str) -> None:
        if name in self.known:
            return
        if self._taken.setdefault(name, value) is not value and self._taken[name] != value:
            raise UserError(f"{by}: exported code has two things called {name}", "Rename one of them.")
        module = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        package = module.partition(".")[0]
        if name in self._definitions or name in self._lines:
            return
        if package in self.own and isinstance(inspect.unwrap(value), type | FunctionType) and value.__name__ == name:
            self._define(value)
        elif package in ALLOWED and hasattr(value, "__name__"):
            line = f"import {module}" if isinstance(value, ModuleType) else f"from {module} import {value.__name__}"
            self._lines[name] = line if line.endswith(f" {name}") else f"{line} as {name}"
        elif _is_plain(value):
            self._lines[name] = f"{name} = {value!r}"
        else:
            said = f"is of {module}" if package not in ("", *self.own) else f"is a {type(value).__name__}"
            hint = "Allowed: torch, the standard library, plain values, and code at the top of a file, by its own name."
            raise UserError(f"{by}: {name} {said} and cannot be exported", hint)

    def _define(self, value: Any) -> None:
        module = sys.modules[value.__module__]
        found = [node for node in _parsed(module).body if getattr(node, "name", None) == value.__name__]
        if not found:
            raise UserError(f"{module.__name__}: {value.__name__} is not defined at the top of the file")
        node: Any = found[-1]
        self._definitions[node.name] = Definition(node, module, value, [])
        for each in [*node.bases, *node.decorator_list] if isinstance(value, type) else [node]:
            self._follow(each, self._definitions[node.name])

    # ---- the text

    def __str__(self) -> str:
        imports = sorted(line for line in self._lines.values() if " = " not in line)
        constants = [line for line in self._lines.values() if " = " in line]
        functions = [each for each in reversed(self._definitions.values()) if not isinstance(each.value, type)]
        kinds = [each for each in self._definitions.values() if isinstance(each.value, type) and self._stays(each)]
        kinds.sort(key=lambda each: len(each.value.__mro__))
        shown = {*self.known, *self._taken, *vars(builtins)}
        parts = [self._written(each, shown) for each in (*functions, *kinds)]
        return "\n\n\n".join(filter(None, ["\n".join(imports), "\n".join(constants), *parts])) + "\n"

    def _stays(self, definition: Definition) -> bool:
        """Whether a class is a root or has members left; otherwise its bases replace it."""
        return definition.value in self.roots or bool(definition.members)

    def _bases(self, node: ast.ClassDef) -> Iterator[str]:
        for written in map(ast.unparse, node.bases):
            base = self._definitions.get(written)
            yield from [written] if base is None or self._stays(base) else self._bases(base.node)  # type: ignore[arg-type]

    def _written(self, definition: Definition, shown: set[str]) -> str:
        node, _, _, members = definition
        if isinstance(node, ast.ClassDef):
            bases: list[ast.expr] = [ast.Name(base, ast.Load()) for base in dict.fromkeys(self._bases(node))]
            body = [each for each in node.body if each in members or (_is_text(each) and each is node.body[0])]
            node = ast.ClassDef(node.name, bases, [], body or [ast.Pass()], node.decorator_list)
        return ast.unparse(ast.fix_missing_locations(_cut(node, shown)))


# ---- syntax

_CUT = (nn.Module, torch.autograd.Function)


@functools.cache
def _parsed(module: ModuleType) -> ast.Module:
    try:
        return ast.parse(inspect.getsource(module))
    except (OSError, TypeError):
        raise UserError(f"{module.__name__} has no source to export", "Put it into a file.") from None


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_plain(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False


def _cut(node: Any, shown: set[str]) -> Any:
    """Copy without code that never runs, with the first paragraph of docstrings (for functions the first sentence), and
    without annotations of names that are not `shown`."""
    return _Cut(shown).visit(copy.deepcopy(node))


class _Cut(ast.NodeTransformer):
    def __init__(self, shown: set[str]) -> None:
        self.shown = shown

    def visit(self, node: Any) -> Any:
        if isinstance(node, ast.Attribute | ast.Call) and ast.unparse(node) in NEVER:
            return ast.Constant(False)
        self.generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.If | ast.With):
            ends = next((i for i, each in enumerate(node.body) if isinstance(each, ast.Return)), len(node.body))
            del node.body[ends + 1 :]
        self._shorten(node)
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=ast.Constant(value=bool(value))):
                return ast.Constant(not value)
            case ast.BoolOp(op=ast.And(), values=[first, ast.Constant(value=True)]):
                return first
            case ast.BoolOp(op=ast.And(), values=[ast.Constant(value=False), *_]):
                return ast.Constant(False)
            case ast.IfExp(test=ast.Constant(value=bool(value))) | ast.If(test=ast.Constant(value=bool(value))):
                return node.body if value else node.orelse
        return node

    def _shorten(self, node: Any) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and _is_text(node.body[0]):
            said = str(node.body[0].value.value).partition("\n\n")[0].rstrip()  # type: ignore[attr-defined]
            if isinstance(node, ast.FunctionDef):
                said = re.split(r"(?<!Eq)\.\s", said)[0].rstrip(".") + "."
            node.body[0] = ast.Expr(ast.Constant(said))
        key = {ast.arg: "annotation", ast.AnnAssign: "annotation", ast.FunctionDef: "returns"}.get(type(node), "")
        said_of = getattr(node, key, None) or ast.Pass()
        if not {each.id for each in ast.walk(said_of) if isinstance(each, ast.Name)} <= self.shown:
            setattr(node, key, ast.Name("Any", ast.Load()) if isinstance(node, ast.AnnAssign) else None)
