"""The residual connections that options can name: found by being in `layers.residual`.

They are read from the sources, since recipes are checked where no torch is loaded.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from comt_cli.errors import UserError


class Declared(NamedTuple):
    """Module and class of a named residual connection, and the features of models that it `needs`."""

    module: str
    kind: str
    needs: tuple[str, ...]


@functools.cache
def residual_connections() -> Mapping[str, Declared]:
    """Every named class in `layers.residual` by its name, sorted. Raises `UserError`, see `declared_in`."""
    return declared_in(Path(__file__).parents[1] / "layers" / "residual")


def declared_in(folder: Path) -> Mapping[str, Declared]:
    """Every named class in the files of a folder by its name, sorted.

    Raises:
        UserError: a name or needs that cannot be read, or two classes of one name; says the file and the line.
    """
    found: dict[str, Declared] = {}
    for file in sorted(folder.glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8"), str(file)).body:
            if isinstance(node, ast.ClassDef) and "name" in (given := _literals(node, file)):
                name = given["name"]
                if name in found:
                    said = f"{found[name].kind} in {found[name].module} has the name {name!r} already"
                    raise _mistake(file, node, said, "Give one of them another name.")
                module = f"comt_cli.layers.residual.{file.stem}"
                found[name] = Declared(module, node.name, given.get("needs", ()))
    return dict(sorted(found.items()))


def _literals(node: ast.ClassDef, file: Path) -> dict[str, Any]:
    """Literals that a class body assigns to `name` and `needs`, with an annotation or without."""
    found = {}
    for statement in node.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            if isinstance(target, ast.Name) and target.id in ("name", "needs"):
                try:
                    found[target.id] = ast.literal_eval(statement.value)
                except ValueError as error:
                    said = f"{target.id} of {node.name} is no literal, and is read without importing the file"
                    raise _mistake(file, statement, said, 'Write it out: name = "...", needs = ("...",).') from error
    return found


def _mistake(file: Path, node: ast.stmt, said: str, hint: str) -> UserError:
    return UserError(f"residual connections (layers/residual/{file.name}, line {node.lineno}): {said}", hint)
