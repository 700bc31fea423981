"""Floats are compared to rounding; their bits only by `same_bits`, which asks for the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from same_bits import Reason, assert_same_bits, differ, same_bits, same_integers

TESTS = Path(__file__).parents[1]
ELSEWHERE = {"equal", "equals", "array_equal", "assert_array_equal", "assert_equal"}
"""Functions and methods that compare bits."""
TOLERANCES = ({"rtol", "atol"}, {"rel", "abs"})


def comparisons(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every comparison of bits that goes around `same_bits`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in ELSEWHERE:
            yield node.lineno, node.attr
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, each.name) for each in node.names if each.name in ELSEWHERE)
        if isinstance(node, ast.Call):
            zero = {
                each.arg for each in node.keywords if isinstance(each.value, ast.Constant) and each.value.value == 0
            }
            said = {each.arg for each in node.keywords}
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if (
                any(both <= zero for both in TOLERANCES)
                or "check_exact" in said - zero
                or (name == "assert_allclose" and "rtol" in zero and "atol" not in said)
            ):
                yield node.lineno, "tolerances of zero"


def test_bits_are_compared_in_one_place():
    found = [
        f"{path.relative_to(TESTS)}:{line}: {what}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.name != "same_bits.py"
        for line, what in comparisons(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "use same_bits, with its reason, or a tolerance that follows from the arithmetic"


def test_ways_around_are_seen_and_other_comparisons_left_alone():
    for source in (
        "all(map(torch.equal, a, b))",
        "from torch import equal",
        "np.testing.assert_allclose(a, b, rtol=0)",
        "assert_frame_equal(frame, other, check_exact=True)",
        "torch.testing.assert_close(a, b, rtol=0, atol=0.0)",
    ):
        assert len(list(comparisons(source))) == 1, source
    assert list(comparisons("torch.testing.assert_close(a, b, rtol=0, atol=1e-6); a == b")) == []


def test_every_difference_is_seen():
    ones = torch.ones(2, 3)
    for other in (ones * (1 + 2**-23), ones.double(), ones[:1], torch.tensor([[1, 1, 1], [1, 1, float("nan")]])):
        assert differ(ones, other)
        with pytest.raises(AssertionError, match=r"the gate should have the same bits"):
            assert_same_bits({"w": [ones]}, {"w": [other]}, Reason.SAVED, "the gate")
    nan = torch.full((2,), float("nan"))
    assert same_bits({"a": nan}, {"a": nan.clone()}, Reason.SAME_CALL)
    for compare in (differ, lambda *both: same_bits(*both, Reason.SAME_CALL)):
        with pytest.raises(TypeError, match="None in both"):
            compare({"a": nan, "b": None}, {"a": nan, "b": None})
    assert differ(torch.zeros(1), -torch.zeros(1))
    assert differ({"a": ones}, {"b": ones})
    assert differ([ones], [ones, ones])
    assert differ(np.float32(0.1), np.float64(0.1))


def test_a_reason_is_asked_for_and_floats_are_no_integers():
    with pytest.raises(TypeError, match="a reason is one of SAME_CALL"):
        assert_same_bits(1.0, 1.0, "they look alike")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="compare them to rounding"):
        same_integers(torch.ones(2), torch.ones(2))
    assert same_integers(torch.arange(3), [0, 1, 2])
    assert not same_integers(torch.arange(3), [0, 1, 3])
