"""The names that `comt_cli` offers: which they are, what importing the package imports, and methods by name."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import comt_cli
from comt_cli import list_methods, method
from comt_cli.errors import UserError
from comt_cli.methods import methods

ROOT = Path(comt_cli.__file__).parents[1]
NAMES = {
    *("wrap", "unwrap", "method", "list_methods", "load", "gate_values", "residual_stream", "find_runs", "train"),
    "__version__",
}


def test_importing_the_package_imports_next_to_nothing():
    """Nor does a name that is used import more than it needs."""
    code = (
        "import json, sys; before = {*sys.modules}; import comt_cli; there = sorted({*sys.modules} - before);"
        "comt_cli.list_methods; later = {*sys.modules}; comt_cli.find_runs, comt_cli.load, comt_cli.train;"
        "print(json.dumps([there, 'torch' in later, 'torch' in sys.modules, dir(comt_cli)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    there, *torch, names = json.loads(done.stdout)
    assert {*there} <= {"__future__", "comt_cli", "comt_cli.torchvision_hook"}
    assert torch == [False, False]
    assert {*names} >= NAMES


def test_every_name_is_there_documented_and_known_to_type_checkers():
    assert {*comt_cli.__all__} == NAMES
    tree = ast.parse(Path(comt_cli.__file__).read_text(encoding="utf-8"))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "." in (node.module or "")]
    homes = {alias.name: node.module for node in imported for alias in node.names}
    assert {*homes} == NAMES - {"__version__"}
    for name, home in homes.items():
        offered = getattr(comt_cli, name)
        assert offered is getattr(importlib.import_module(home), name)
        shown = comt_cli.wrap if name == "unwrap" else offered  # one example has both
        assert ">>>" in (inspect.getdoc(shown) or ""), name
        assert "return" in offered.__annotations__, name
    with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
        comt_cli.nonesuch  # noqa: B018


def test_methods_are_listed_with_their_commands_and_what_they_are():
    frame = list_methods()
    assert [*frame["name"]] == [*methods()]
    assert frame["summary"].str.len().min() > 10
    assert [*list_methods("train-resnet")["name"]] == [*methods("train-resnet")]
    assert frame.set_index("name").loc["comt", "commands"].split()[0] == "train-lm"


def test_a_method_has_its_options():
    assert method("comt") == methods()["comt"]()
    assert method("transponder", rank=4, sites=["q_proj"]).sites == ("q_proj",)
    assert method("comt", sites="mlp").sites == ("gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("transpnder", {}, "did you mean transponder?"),
        ("comt", {"hiden": 2}, "hiden: unknown key; did you mean hidden?"),
        ("comt", {"hidden": 0}, "hidden: 0 does not fit"),
        ("comt", {"hidden": "2"}, 'hidden: "2" does not fit'),
        ("comt", {"sites": ["q"]}, "sites"),
        ("comt", {"hidden": object()}, "Options are numbers, text, or lists of these."),
    ],
)
def test_a_wrong_method_is_refused(name, options, said):
    with pytest.raises(UserError) as raised:
        method(name, **options)
    assert said in str(raised.value)
