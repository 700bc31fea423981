"""What is bundled runs with torch alone, holds what is needed, and nothing that is not."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
import torch
from same_bits import Reason, assert_same_bits
from torch import nn

from comt_cli.errors import UserError
from comt_cli.layers.gates import ComtGate, HeadGate, read_by
from comt_cli.layers.residual.hyper_connections import HyperConnection, write_streams
from comt_cli.layers.residual.norm_placement import DeepNormOfMixLNCode, PreNorm
from comt_cli.library import bundle
from comt_cli.library.bundle import Bundle


def run(made: Bundle, **known) -> dict:
    names = {"nn": nn, "torch": torch, "Tensor": torch.Tensor, **known}
    exec("from __future__ import annotations\n" + str(made), names)
    return names


@pytest.fixture
def module_of(tmp_path: Path):
    """Makes a module of a source."""
    made = []

    def make(source: str, name: str = "some_parts") -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        made.append(name)
        spec.loader.exec_module(module)
        return module

    yield make
    for name in made:
        del sys.modules[name]


def test_the_example_is_right() -> None:
    assert doctest.testmod(bundle) == (0, 2)


def test_a_gate_without_constructor_computes_the_same() -> None:
    gate, x = ComtGate(8, hidden=3), torch.randn(5, 8)
    names = run(Bundle([ComtGate, read_by]))
    rebuilt = names["ComtGate"].__new__(names["ComtGate"])
    nn.Module.__init__(rebuilt)
    rebuilt.A, rebuilt.B, rebuilt.scale = gate.A, gate.B, gate.scale
    assert "__init__" not in vars(names["ComtGate"])
    assert_same_bits(rebuilt(x), gate(x), Reason.SAME_CALL)


def test_what_only_kernels_compilers_analyses_and_starts_need_is_left_out() -> None:
    text = str(Bundle([HyperConnection, PreNorm, write_streams], ["step"], ["State"]))
    for absent in (
        "NotImplementedError",
        "is_compiling",
        "fused",
        "before_gate",
        "initialise",
        "def mixing",
        "comt_cli",
        "site.norm",
    ):
        assert absent not in text, absent
    assert "return super().step(state, branch)\n" in text
    assert "if mixing_nn is not None:" in text


def test_a_class_of_which_nothing_is_left_stays_only_as_a_root() -> None:
    tree = ast.parse(str(Bundle([DeepNormOfMixLNCode], ["step"], ["State"])))
    kinds = {
        node.name: [ast.unparse(base) for base in node.bases] for node in tree.body if isinstance(node, ast.ClassDef)
    }
    # NormedResidual has nothing but its constructor.
    assert kinds == {
        "ResidualConnection": ["nn.Module"],
        "DeepNorm": ["ResidualConnection"],
        "DeepNormOfMixLNCode": ["DeepNorm"],
    }


def test_attributes_of_classes_stay_where_they_are_read() -> None:
    kind = run(Bundle([HeadGate], ["scaled"]))["HeadGate"]
    assert kind.kind == "head"
    assert not hasattr(kind, "factor_range")


PARTS = """
    import dataclasses
    import math as m
    from functools import wraps as like
    import numpy as np
    from torch import nn

    SLOPE = {"a": (1.5, 2)}
    LOCK = object()

    @dataclasses.dataclass(frozen=True)
    class Pair:
        '''Two numbers.

        And more about them.
        '''
        first: float
        second: float = m.pi

        def sum(self):
            return self.first + self.second

    def twice(f):
        @like(f)
        def doubled(*given):
            return 2 * f(*given)
        return doubled

    @twice
    def slope(x):
        SLOPED = SLOPE["a"][0]
        return x * SLOPED

    class Fine(nn.Module):
        def forward(self, x):
            '''First. Second.'''
            return slope(x) + Pair(1.0).sum()

    class Numpy(nn.Module):
        def forward(self, x):
            return np.abs(x)

    class Locked(nn.Module):
        def forward(self, x):
            return LOCK

    class Lazy(nn.Module):
        def forward(self, x):
            from math import pi
            return pi * x

    def make():
        class Inner(nn.Module):
            def forward(self, x):
                return x
        return Inner

    Inner = make()
"""


def test_helpers_records_constants_and_decorators_come_along(module_of) -> None:
    module = module_of(PARTS)
    text = str(Bundle([module.Fine]))
    kind = run(Bundle([module.Fine]))["Fine"]
    rebuilt = kind.__new__(kind)
    nn.Module.__init__(rebuilt)
    assert rebuilt(2.0) == module.Fine()(2.0)
    assert "numpy" not in text
    assert '"""First."""' in text
    assert "Two numbers." in text
    assert "And more" not in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Numpy", "some_parts: np is of numpy"),
        ("Locked", "some_parts: LOCK is a object"),
        ("Lazy", "imports inside a function"),
        ("Inner", "Inner is not defined at the top of the file"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(name, words, module_of) -> None:
    with pytest.raises(UserError, match=words):
        Bundle([vars(module_of(PARTS))[name]])


def test_two_things_of_one_name_are_refused(module_of) -> None:
    source = (
        "from torch import nn\nSCALE = {}\nclass K{}(nn.Module):\n    def forward(self, x):\n        return x * SCALE\n"
    )
    one, two, same = (
        module_of(source.format(*given), f"parts_{i}") for i, given in enumerate([(1, 0), (2, 1), (1, 2)])
    )
    assert str(Bundle([one.K0, same.K2])).count("SCALE = 1") == 1
    with pytest.raises(UserError, match="two things called SCALE"):
        Bundle([one.K0, two.K1])
    with pytest.raises(UserError, match="already defines K0"):
        Bundle([one.K0], known=["K0"])
