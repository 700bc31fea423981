"""The residual connections that options can name: found by being in `layers.residual`.

They are read from the sources, since recipes are checked where no torch is loaded.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Declared(NamedTuple):
    """Module and class of a named residual connection, and the features of models that it `needs`."""

    module: str
    kind: str
    needs: tuple[str, ...]


@functools.cache
def residual_connections() -> Mapping[str, Declared]:
    """Every named class in `layers.residual` by its name, sorted."""
    found = {}
    for file in (Path(__file__).parents[1] / "layers" / "residual").glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and "name" in (given := _literals(node)):
                found[given["name"]] = Declared(
                    f"comt_cli.layers.residual.{file.stem}", node.name, given.get("needs", ())
                )
    return dict(sorted(found.items()))


def _literals(node: ast.ClassDef) -> dict[str, Any]:
    """Literals that a class body assigns to `name` and `needs`."""
    return {
        target.id: ast.literal_eval(statement.value)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id in ("name", "needs")
    }
