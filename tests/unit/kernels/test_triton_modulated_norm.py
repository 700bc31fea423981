"""The fused batch norm's Triton kernels, interpreted, against autograd on the definition in float64.

Tiles are small, so that a few dozen pixels have several programs, row blocks and channel tiles, all with a rest. What
lies around the product is NaN, and so are its padding columns: who reads them is found out.

Tolerances are of the largest element. fp32: sums of at most a few hundred products, 2^-24 each, and rstd of about 1/2.
bf16: y and the gradients of product and skip are rounded once, to 2^-8 (the interpreter cuts: 2^-7), A's has factors
rounded so, and a ReLU passes where y was positive before it was rounded, which is where it is now.
"""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
from same_bits import Reason, assert_same_bits

pytest.importorskip("triton", reason="Triton exists for Linux alone")

import triton
from norm_cases import EPSILON, KINDS, Case, Kind, Results, assert_operator_agrees, expect, make, run

from comt_cli.kernels import operators
from comt_cli.kernels.modulated_norm.triton import common, modulated_norm, modulated_norm_backward

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton compiles here: tests/gpu has these tests"
)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
EVERYTHING = Kind(3, 2, True, True)


def tiles(monkeypatch: pytest.MonkeyPatch, widest: int, busy: int = 1) -> None:
    """16 rows a tile, and 32 a program or, with many `busy` programs, 16; rows of up to `widest` channels are whole,
    others are in tiles of 16."""

    def tile(kernel: str, C: int, pixel: bool, dtype: torch.dtype) -> common.Tile:
        width = max(16, triton.next_power_of_2(C))
        return common.Tile(16, width if pixel and kernel in common.WHOLE and width <= widest else 16, 1)

    monkeypatch.setattr(common, "tile", tile)
    monkeypatch.setattr(common, "LEAST_ROWS", 32)
    monkeypatch.setattr(common, "BUSY", busy)


@pytest.fixture(params=[(16, 64), (16, 1), (64, 1)], ids=["channels shared", "rows walked along", "whole rows"])
def small_tiles(request, monkeypatch):
    tiles(monkeypatch, *request.param)


def assert_agree(case: Case, tolerance: float) -> Results:
    found = run(case)
    right = expect(case, found["y"] > 0 if case.kind.relu else None)
    assert found.keys() == right.keys()
    for name, expected in right.items():
        error = (found[name].double() - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
        assert error <= (TOLERANCE[torch.float32] if name in ("mean", "var") else tolerance), f"{name}: {error:.2e}"
    return found


HALF = [kind for kind in KINDS if sum(map(bool, dataclasses.astuple(kind))) % 2]
"""Of which any four parts are there in every combination; the C++ kernels are tested with all of `KINDS`."""


@pytest.mark.parametrize("kind", HALF, ids=str)
def test_every_combination_of_four_parts(kind, monkeypatch):
    tiles(monkeypatch, 32)
    assert_agree(make(37, 17, kind), TOLERANCE[torch.float32])


@pytest.mark.parametrize("kind", [Kind(), Kind(window=3, relu=True), Kind(pixel=2, weight=False), EVERYTHING], ids=str)
def test_through_the_operator(kind, monkeypatch):
    """As layers call it, with the same bits. PyTorch refuses operators whose results share memory."""
    tiles(monkeypatch, 32)
    monkeypatch.setitem(operators.IMPLEMENTATIONS, "cpu", "triton")
    assert_operator_agrees(make(20, 17, kind))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_types_and_both_ways_along_a_row(dtype):
    assert_agree(make(40, 40, EVERYTHING, dtype), TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("P", "C", "window", "pixel"), [(7, 3, 1, 1), (130, 17, 1, 8), (33, 100, 19, 2), (40, 64, 0, 2)]
)
def test_shapes_with_the_tiles_that_gpus_get(P, C, window, pixel):
    assert_agree(make(P, C, Kind(window, pixel, True, True)), TOLERANCE[torch.float32])


@pytest.mark.parametrize("pixel", [0, 2])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of exp, in rows outside, with a rstd of 316
def test_one_pixel(pixel):
    """Its deviations are zero: y is the bias, and no gradient gets through but for rounding, which rstd magnifies."""
    case = make(1, 17, Kind(3, pixel))
    found = run(case)
    torch.testing.assert_close(found["y"][0], case.tensors[5])
    assert not found["var"].any()
    for name in ("product", "window"):
        assert found[name].abs().max() <= 1e-6 * EPSILON**-0.5 * case.dy.abs().max() * 10, name


def test_no_rest_of_columns_is_written_as_zeros_where_there_is_one(monkeypatch):
    tiles(monkeypatch, 16)
    for rest in (0, 21):
        found = run(make(20, 17, Kind(window=3), rest=rest))
        assert found["product"].shape[1] == 20 + rest
        assert not found["product"][:, 20:].any()
        assert found["product"][:, :20].all()


def test_a_mean_far_from_zero_costs_no_digits_of_the_variance(monkeypatch):
    """1000 standard deviations off: in fp32, sums of squares would be wrong in the first digit."""
    tiles(monkeypatch, 16)
    case = make(200, 5, Kind(), mean=2000.0)
    case.tensors[0][0, 0] = -2000.0  # and a first pixel far from the others
    found, right = run(case), expect(case)
    assert ((found["var"] - right["var"]).abs() / right["var"]).max() <= 1e-5
    assert ((found["mean"] - right["mean"]).abs() / right["mean"]).max() <= 1e-6


def test_the_same_bits_each_time(monkeypatch):
    tiles(monkeypatch, 64)
    case = make(40, 17, EVERYTHING)
    assert_same_bits(run(case), run(case), Reason.SAME_CALL)


def test_columns_and_rows_with_gaps(monkeypatch):
    tiles(monkeypatch, 64)
    case = make(20, 17, EVERYTHING)
    right = run(case)
    apart = [tensor if tensor is None or tensor.dim() == 1 else tensor.T.contiguous().T for tensor in case.tensors]
    found = run(dataclasses.replace(case, tensors=apart, dy=case.dy.T.contiguous().T))
    for name, expected in right.items():
        largest = float(expected.abs().max())
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-5 * largest, msg=name)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")  # the subject
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_special_value_reaches_its_channel_and_no_other(value, monkeypatch):
    tiles(monkeypatch, 16)
    case = make(20, 19, Kind(skip=True, relu=True))
    case.tensors[0][3, 5] = value
    found = run(case)
    for name in ("y", "product", "weight"):
        lost = ~found[name].isfinite()
        lost = lost.any(0) if lost.dim() == 2 else lost
        assert lost.nonzero().flatten().tolist() == [5], name
    assert found["bias"].isfinite().all()  # dy alone


def test_what_does_not_fit_is_refused():
    case = make(4, 5, EVERYTHING, rest=0)
    product, window, A, b, weight, bias, skip = case.tensors
    how = (skip, True, EPSILON)
    with pytest.raises(ValueError, match="no pixels"):
        modulated_norm(product[:0], None, window, A, b, weight, bias, skip[:0], True, EPSILON)
    with pytest.raises(ValueError, match="no 5 channels and 3 columns"):
        modulated_norm(product[:, :7], None, window, A, b, weight, bias, *how)
    with pytest.raises(ValueError, match="from the product's columns"):
        modulated_norm(product, product[:, 5:8], window, A, b, weight, bias, *how)
    with pytest.raises(ValueError, match="one of them is None"):
        modulated_norm(product, None, window, A, None, weight, bias, *how)
    with pytest.raises(ValueError, match=r"A is \[2, 4\]"):
        modulated_norm(product, None, window, A[:, 1:], b, weight, bias, *how)
    with pytest.raises(ValueError, match="needs the output"):
        modulated_norm_backward(case.dy, None, product, None, window, A, b, weight, bias, bias, True, EPSILON, True)


def test_tiles_are_what_the_compiler_takes():
    for kernel in ("statistics", "apply", "rows", "sums", "gradient"):
        for C in (1, 3, 16, 64, 100, 256, 512, 1024, 2048):
            for dtype in TOLERANCE:
                tile = common.tile(kernel, C, True, dtype)
                assert min(tile.rows, tile.channels) >= 16  # the least side of a product on tensor cores
                assert tile.rows & (tile.rows - 1) == tile.channels & (tile.channels - 1) == 0
                assert tile.warps in (4, 8, 16)


@pytest.mark.parametrize(
    ("P", "rows", "programs"), [(1, 16, 8), (64, 16, 8), (65, 16, 8), (5000, 32, 8), (4097, 64, 528)]
)
def test_groups_cover_all_rows_and_none_is_empty(P, rows, programs):
    count, blocks = common.groups(P, common.Tile(rows, 16, 4), programs)
    assert (count - 1) * blocks * rows < P <= count * blocks * rows
    assert count <= programs
    assert count == 1 or count >= common.BUSY or blocks * rows >= common.LEAST_ROWS or blocks == 1


def test_a_small_batch_has_more_groups_than_of_the_least_rows():
    """ResNet-18's last stage at batch 64: 1024 pixels of 512 channels, in four tiles of channels."""
    tile = common.tile("gradient", 512, False, torch.bfloat16)
    assert common.groups(1024, tile, shares=4) == (64, 1)
    assert common.groups(1024, tile, 8)[0] <= 8
