"""A copy of a recipe that is a recipe of its own: the same text, under the name of its new file."""

from __future__ import annotations

import re
from pathlib import Path

from comt_cli.errors import UserError
from comt_cli.recipe.find import OWN_ROOT, recipe_roots
from comt_cli.recipe.schema import NAME_PATTERN
from comt_cli.recipe.yaml_lines import read


def copy_text(source: Path, target: Path) -> str:
    """The text of the recipe at `source` as it can lie at `target`: its table has the name of that file, and its paper
    that of the folder, where recipes are looked up by both. Comments stay.

    Raises:
        UserError: the source cannot be read, or the file's name cannot be a table's.
    """
    names = {"table": target.stem}
    folder = target.resolve().parent
    if folder.parent in [root.resolve() for root in (OWN_ROOT, *recipe_roots())]:
        names["paper"] = folder.name
    for key, name in names.items():
        if not re.fullmatch(NAME_PATTERN, name):
            raise UserError(
                f"{target}: its {key} cannot be called {name!r}",
                "Use letters, digits and + . _ -, and begin with a letter or digit.",
            )
    document = read(source)
    lines = source.read_text(encoding="utf-8").splitlines()
    for key, name in names.items():
        number = document.lines.get((key,))
        if number is not None:
            comment = re.search(r"\s+#.*$", lines[number - 1])
            lines[number - 1] = f"{key}: {_quoted(name)}{comment[0] if comment else ''}"
    return "\n".join([f"# Copied from {source.parent.name}/{source.name}.", *lines]) + "\n"


def _quoted(name: str) -> str:
    """A name as YAML reads it back as text, also where it looks like a number."""
    return name if re.fullmatch(r"[A-Za-z][\w+./-]*", name) and name not in ("true", "false", "null") else f'"{name}"'
