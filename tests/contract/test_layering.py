"""The rooms and their one-way flow, read from the imports; and what every source file owes its reader."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "comt_cli"

FLOW = (
    *("recipe", "data", "scoring", "tasks", "runs", "kernels", "layers", "methods", "models", "exchange"),
    *("generation", "training", "campaign", "analysis", "library", "harness"),
)
BASE = {name: {name} for name in ("errors", "installing", "sums", "commit", "streams", "words", "torchvision_hook")}
BASE |= {"files": {"errors", "files"}}
EVERYTHING = {*FLOW, *BASE, "report", "doctor", "verbs", "commands"}
MAY_IMPORT = {
    **BASE,
    **{room: {*FLOW[: i + 1], *BASE} for i, room in enumerate(FLOW)},
    "analysis": {*FLOW[: FLOW.index("analysis") + 1], "report", *BASE},
    "report": {"report", "recipe", "tasks", "runs", *BASE},
    "doctor": {"doctor", "commands", *FLOW, *BASE},
    "verbs": EVERYTHING,
    "commands": EVERYTHING - {"verbs"},
    "lab": {*EVERYTHING, "lab"},  # and nothing imports it: `app` registers its verbs by name
    "app": {"commands", "tasks", *BASE},
    "__main__": {"app"},
    "__init__": EVERYTHING,  # whose names it hands on, each imported when it is first used
}
TORCH_ROOMS = {*FLOW[FLOW.index("kernels") :], "doctor", "verbs", "lab"} - {"methods"}
TORCH_FREE = set(MAY_IMPORT) - TORCH_ROOMS
TORCH_PACKAGES = {"torch", "torchvision", "triton", "transformers"}
MOST_LINES = 500


@dataclass(frozen=True)
class Import:
    line: int
    module: str
    at_import: bool  # runs when the file is imported: not within a function, not only for type checkers


def imports(tree: ast.Module) -> list[Import]:
    """Every import of a file, relative ones aside (the house style forbids them; a test says so)."""
    return list(_imports(tree, True))


def _imports(node: ast.AST, at_import: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(child.lineno, alias.name, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            # `from comt_cli import kernels` imports a room, `from comt_cli.layers import gates` a file of one.
            names = [child.module or ""] if child.module != "comt_cli" else [f"comt_cli.{a.name}" for a in child.names]
            yield from (Import(child.lineno, "." * child.level + name, at_import) for name in names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for statement in child.body:
                yield from _imports(ast.Module([statement], []), False)
            for statement in child.orelse:
                yield from _imports(ast.Module([statement], []), at_import)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, at_import and not inside)


def violations(room: str, source: str) -> list[str]:
    """Imports of a file of `room` that it must not have."""
    found = []
    for entry in imports(ast.parse(source)):
        top, _, rest = entry.module.partition(".")
        if not top:
            found.append(f"line {entry.line}: a relative import")
        elif top in TORCH_PACKAGES and room in TORCH_FREE and entry.at_import:
            found.append(f"line {entry.line}: {room} imports {entry.module} when it is imported")
        elif top == "comt_cli":
            target = rest.partition(".")[0]
            if target.startswith("__"):  # the version
                continue
            if target not in MAY_IMPORT[room]:
                found.append(f"line {entry.line}: {room} imports {target}")
            elif target in TORCH_ROOMS and room in TORCH_FREE and entry.at_import:
                found.append(f"line {entry.line}: {room} imports {target}, and with it torch, when it is imported")
    return found


def undocumented(tree: ast.Module) -> list[str]:
    """The module, public classes and public functions that have no docstring."""
    missing = [] if ast.get_docstring(tree) else ["the module"]
    for node in tree.body:
        is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_definition and any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list):
            continue  # the definition that follows says what it is
        if is_definition and not node.name.startswith("_") and not ast.get_docstring(node):
            missing.append(f"line {node.lineno}: {node.name}")
    return missing


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "_recipes" not in path.parts)


def findings(look: Callable[[str, str], list[str]]) -> list[str]:
    """All that `look` finds in every source file, which it is given with its room: a line each, with the file."""
    return [
        f"{path.relative_to(ROOT)}: {found}"
        for path in SOURCES
        for found in look(room_of(path), path.read_text(encoding="utf-8"))
    ]


def test_imports_flow_one_way():
    rooms = {room_of(path) for path in SOURCES}
    assert rooms <= set(MAY_IMPORT), "a new room: say in MAY_IMPORT, and in CONTRIBUTING.md, what it may import"
    assert findings(violations) == []


def test_everything_public_says_what_it_is():
    assert findings(lambda _, source: undocumented(ast.parse(source))) == []


def needs(source: str, modules: set[str]) -> set[str]:
    """The modules of ours that a file imports, when it is imported or later; the packages that they lie in, whose files
    may gather what lies in them, do not count."""
    nodes = list(ast.walk(ast.parse(source)))
    checkers = [node for node in nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    for_checkers = {inner for node in checkers for statement in node.body for inner in ast.walk(statement)}
    found = set()
    for node in nodes:
        if node in for_checkers:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {node.module} & modules
    return found


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Names that are left when all that needs nothing is taken away, again and again."""
    left = {name: set(needed) for name, needed in graph.items()}
    while free := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in free}
    while unneeded := left.keys() - set().union(*left.values()):
        left = {name: needed for name, needed in left.items() if name not in unneeded}
    return sorted(left)


def test_no_file_needs_itself():
    """Neither directly nor by way of others, imports within functions included."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}
    graph = {name: needs(path.read_text(encoding="utf-8"), set(names)) for name, path in names.items()}
    assert circles(graph) == []


def test_definitions_of_kernels_are_read_without_triton_and_without_a_compiler():
    """A definition of an operation imports no implementation of it: that is imported when something is computed."""
    kernels = PACKAGE / "kernels"
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in kernels.rglob("*.py")}
    implementations = {module for module in modules if {"cpu", "triton"} & {*module.split(".")}} | {"triton", "ctypes"}
    operations = {path.with_name("__init__.py") for path in kernels.glob("*/*.cpp")} - {kernels / "cpu" / "__init__.py"}
    assert operations
    for path in (*operations, kernels / "operators.py", kernels / "gates.py"):
        assert needs(path.read_text(encoding="utf-8"), implementations) == set(), path


def test_what_a_file_needs_is_found():
    source = (
        "import comt_cli.a\nfrom comt_cli import b\ndef f():\n    from comt_cli.c import x\n"
        "if TYPE_CHECKING:\n    from comt_cli.d import y\nelse:\n    from comt_cli.e import z\nimport os\n"
    )
    ours = {f"comt_cli.{letter}" for letter in "abcdef"}
    assert needs(source, ours) == {f"comt_cli.{letter}" for letter in "abce"}


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"d"}}) == ["b", "c"]


@pytest.mark.parametrize("folder", ["comt_cli", "tests"])
def test_no_file_is_too_long_to_read(folder):
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert {path.name: length for path, length in lengths.items() if length > MOST_LINES} == {}


FOR_CHECKERS = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import "


@pytest.mark.parametrize(
    ("room", "source", "finds"),
    [
        ("layers", "from comt_cli.methods import methods", "layers imports methods"),
        ("layers", "def f():\n    from comt_cli.models.llama import Llama", "layers imports models"),
        ("commands", "def f():\n    from comt_cli.verbs import train", "commands imports verbs"),
        ("models", f"{FOR_CHECKERS}comt_cli.training.loop", "training"),
        ("files", "from comt_cli import recipe", "files imports recipe"),
        ("commands", "class A:\n    from torch import nn", "commands imports torch"),
        ("methods", "from comt_cli.layers.gates import Gate", "and with it torch"),
        ("data", "from . import shards", "a relative import"),
        ("methods", "def wiring():\n    from comt_cli.layers.gates import Gate", None),
        ("methods", f"{FOR_CHECKERS}torch", None),
        ("training", "import torch\nfrom comt_cli.methods import methods", None),
        ("commands", "from comt_cli import __version__", None),
    ],
)
def test_a_violation_is_found(room, source, finds):
    found = violations(room, source)
    assert len(found) == (finds is not None)
    assert all(finds in each for each in found)


def test_a_missing_docstring_is_found():
    tree = ast.parse('"""A module."""\ndef f(): ...\nclass C:\n    """Said."""\ndef _g(): ...')
    assert undocumented(tree) == ["line 2: f"]


def test_pictures_are_opened_by_a_list_of_formats():
    """Pillow tells formats by content, and gives some to other programs."""
    opened = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Image.open", "PIL.Image.open"):
                opened.append((path.relative_to(PACKAGE), "formats" in [keyword.arg for keyword in node.keywords]))
    assert len(opened) >= 3
    assert all(has for _, has in opened), opened
