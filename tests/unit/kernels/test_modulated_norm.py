"""The fused batch norm, in C++ and in Triton, against its definition in float64.

Triton's tiles are small, so that a few dozen pixels have several programs, row blocks and channel tiles, all with a
rest. What lies around the product is NaN, and so are its padding columns: who reads them is found out.

Errors are relative to the largest element of a tensor; of the parameters' gradients, sums over the same pixels, to the
largest of all (a norm undoes what all gates have in common, so that a gate's sum may nearly cancel). fp32: 2e-5, sums
of a few hundred terms in fp32 (2^-24 a rounding) and a logistic function good to 6e-7. bf16: 2e-2; inputs are the same
numbers on both sides, a result is rounded once (2^-8; the interpreter cuts, 2^-7), and factors of A's gradient are too.
Where ReLU follows, both sides let the gradient of the same pixels through.
"""

from __future__ import annotations

import importlib
import os

import pytest
import torch
from pairwise import pairwise
from same_bits import Reason, assert_same_bits

pytest.importorskip("triton", reason="Triton exists for Linux alone")

import triton
from norm_cases import EPSILON, Case, Kind, Results, assert_operator_agrees, expect, make, run

from comt_cli.kernels import operators
from comt_cli.kernels.cpu import build
from comt_cli.kernels.modulated_norm.triton import common

CPP, TRITON = "cpu.calls", "modulated_norm.triton"
IN_CPP = pytest.mark.skipif(build.available() is not None, reason=str(build.available()))
INTERPRETED = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton compiles here: tests/gpu has these tests"
)
BOTH = [pytest.param(CPP, marks=IN_CPP, id="cpp"), pytest.param(TRITON, marks=INTERPRETED, id="triton")]
IMPLEMENTATIONS = pytest.mark.parametrize("by", BOTH)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
EVERYTHING = Kind(3, 2, True, True)
PARAMETERS = ("window", "A", "b", "weight", "bias")


def tiles(monkeypatch: pytest.MonkeyPatch, widest: int, busy: int = 1) -> None:
    """16 rows a tile, and 32 a program or, with many `busy` programs, 16; rows of up to `widest` channels are whole,
    others are in tiles of 16."""

    def tile(kernel: str, C: int, pixel: bool, dtype: torch.dtype) -> common.Tile:
        width = max(16, triton.next_power_of_2(C))
        return common.Tile(16, width if pixel and kernel in common.WHOLE and width <= widest else 16, 1)

    monkeypatch.setattr(common, "tile", tile)
    monkeypatch.setattr(common, "LEAST_ROWS", 32)
    monkeypatch.setattr(common, "BUSY", busy)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    tiles(monkeypatch, 32)


def assert_agree(case: Case, by: str, tolerance: float) -> Results:
    found = run(case, by)
    right = expect(case, found["y"] > 0 if case.kind.relu else None)
    assert found.keys() == right.keys()
    right = {name: expected.detach() for name, expected in right.items()}
    largest = max(float(right[name].abs().max()) for name in PARAMETERS if name in right)
    for name, expected in right.items():
        scale = largest if name in PARAMETERS else float(expected.abs().max().clamp_min(1e-12))
        error = (found[name].double() - expected).abs().max() / scale
        assert error <= (TOLERANCE[torch.float32] if name in ("mean", "var") else tolerance), f"{name}: {error:.2e}"
    return found


@IMPLEMENTATIONS
@pairwise(
    dtype=list(TOLERANCE),
    window=[0, 1, 19],
    pixel_and_weight=[(0, True), (2, True), (2, False), (8, True)],
    shape=[(7, 3), (37, 17), (70, 35), (40, 40)],
    skip=[False, True],
    relu=[False, True],
)
def test_it_is_what_the_definition_says(by, dtype, window, pixel_and_weight, shape, skip, relu):
    pixel, weight = pixel_and_weight
    assert_agree(make(*shape, Kind(window, pixel, skip, relu, weight), dtype), by, TOLERANCE[dtype])


@INTERPRETED
@pytest.mark.parametrize(("widest", "busy"), [(16, 64), (16, 1), (64, 1), (None, 1)], ids=str)
def test_channels_shared_rows_walked_along_and_whole(widest, busy, monkeypatch):
    """And with the tiles that GPUs get."""
    if widest is None:
        monkeypatch.undo()
    else:
        tiles(monkeypatch, widest, busy)
    assert_agree(make(40, 40, EVERYTHING), TRITON, TOLERANCE[torch.float32])


@IMPLEMENTATIONS
@pytest.mark.parametrize("kind", [Kind(), Kind(pixel=2, weight=False), EVERYTHING], ids=str)
def test_through_the_operator(by, kind, monkeypatch):
    """As layers call it, with the same bits. PyTorch refuses operators whose results share memory."""
    monkeypatch.setitem(operators.IMPLEMENTATIONS, "cpu", "cpu" if by == CPP else "triton")
    monkeypatch.setattr("norm_cases.run", lambda case: run(case, by))
    assert_operator_agrees(make(20, 17, kind))


@IMPLEMENTATIONS
def test_what_does_not_fit_is_refused(by):
    product, window, A, b, weight, bias, skip = make(4, 5, EVERYTHING, rest=0).tensors
    module = importlib.import_module(f"comt_cli.kernels.{by}")
    for of, *gates, added in (
        (product[:0], window, A, b, skip[:0]),
        (product[:, :7], window, A, b, skip),  # no columns for u
        (product, window, A, None, skip),  # half a pixel gate
        (product, window, A[:, 1:], b, skip),
    ):
        with pytest.raises(ValueError, match=r"pixel|product|A "):
            module.modulated_norm(of, *gates, weight, bias, added, True, EPSILON)
    with pytest.raises(ValueError, match="output"):
        module.modulated_norm_backward(skip, None, product, window, A, b, weight, bias, bias, True, EPSILON, True)


@IMPLEMENTATIONS
def test_a_mean_far_from_zero_and_an_outlier_cost_no_digits_of_the_variance(by):
    """1000 standard deviations off: in fp32, sums of squares would be wrong in the first digit."""
    case = make(200, 5, Kind(), mean=2000.0)
    case.tensors[0][0, 0] = -2000.0  # a first pixel far from the others
    found, right = run(case, by), expect(case)
    assert ((found["var"] - right["var"]).abs() / right["var"]).max() <= 1e-5
    assert ((found["mean"] - right["mean"]).abs() / right["mean"]).max() <= 1e-6


@IMPLEMENTATIONS
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_each_time(by, threads):
    case, before = make(3000 if by == CPP else 40, 17, EVERYTHING), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first, second = run(case, by), run(case, by)
    finally:
        torch.set_num_threads(before)
    assert_same_bits(second, first, Reason.SAME_CALL)


@IMPLEMENTATIONS
@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")  # the subject
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_special_value_reaches_its_channel_and_no_other(by, value):
    case = make(20, 19, Kind(skip=True, relu=True))
    case.tensors[0][3, 5], case.tensors[0][:, 7] = value, 2.0
    found = run(case, by)
    assert found["var"][7] == 0  # of a channel that is constant
    for name in ("y", "product", "weight"):
        lost = ~found[name].isfinite()
        lost = lost.any(0) if lost.dim() == 2 else lost
        assert lost.nonzero().flatten().tolist() == [5], name
    assert found["bias"].isfinite().all()  # dy alone
