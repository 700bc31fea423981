"""The Triton kernels against autograd on the definition, in float64: each output and each gradient.

Tiles are made small, so that a handful of rows has several row blocks, groups of them and tiles, all with a rest.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_bits import Reason, assert_same_bits
from triton import cdiv
from triton_cases import (
    DTYPES,
    KINDS,
    TOLERANCE,
    Case,
    add_norm,
    assert_agree,
    heads,
    interpreted_only,
    make,
    modulate,
    swiglu,
)

from comt_cli.kernels.add_norm import triton as add_norm_kernels
from comt_cli.kernels.heads import triton as heads_kernels
from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.tiles import Tile


def small(kernel: str, kind: str, width: int) -> Tile:
    """Of 16 or 8 rows; every group has two blocks of them."""
    if kernel.startswith("add_norm") and kind != "channel":
        return Tile(0, 64, 1, 1)
    return Tile(16, 64, 1, 1) if kind == "channel" else Tile(8, 16, 1, 1)


@pytest.fixture(autouse=True, scope="module")
def small_tiles():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "tile", small)
        patch.setattr(launch, "groups", lambda rows, tile, columns=1: (cdiv(cdiv(len(rows), tile.rows), 2), 2))
        yield


def run(operation: str, case: Case):
    """The operation's results for a case of two sites, or three for heads, or one for add_norm."""
    functions = {"modulate": modulate, "heads": lambda case: heads(case, 6, 7), "swiglu": swiglu, "add_norm": add_norm}
    return functions[operation](case)


# More than a tile of 16 channels where gates are scalar, and a rest.
WIDTHS = {"modulate": [19, 5], "heads": [18, 6, 6], "swiglu": [19, 19], "add_norm": [19]}
OPERATIONS = list(WIDTHS)


@interpreted_only
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_types_of_16_bits(operation, dtype):
    """Several groups of rows. So does `test_any_shape` in fp32."""
    assert_agree(run(operation, make(40, WIDTHS[operation], 8, "both", dtype)), TOLERANCE[dtype])


@interpreted_only
@pytest.mark.parametrize("operation", OPERATIONS)
def test_wide_bottlenecks(operation):
    """Of scalar gates: those of channel gates are up to 8 wide."""
    case = make(20, WIDTHS[operation], 64, "scalar", torch.bfloat16)
    assert_agree(run(operation, case), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rows_with_gaps_between_them(operation):
    case = make(20, WIDTHS[operation], 4, "both", torch.float32, strided=True)
    assert not case.product.is_contiguous()
    assert_agree(run(operation, case), 1e-5)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_columns_with_gaps_between_them(operation):
    case = make(20, WIDTHS[operation], 4, "both", torch.float32)
    case.product = case.product.T.contiguous().T
    Wc, ws = (weight.T.contiguous().T for weight in case.gates[:2])
    case.gates = case.gates._replace(Wc=Wc, ws=ws)
    assert_agree(run(operation, case), 1e-5)


@pytest.mark.parametrize(("E", "count", "kv"), [(2, 5, 1), (6, 3, 3), (48, 1, 1)])
def test_head_widths(E, count, kv):
    assert_agree(heads(make(20, [count * E, kv * E, kv * E], 4, "both", torch.float32), E, 11), 1e-5)


@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16], ids=str)
def test_add_norm_with_a_stream_of_another_type(stream):
    assert_agree(add_norm(make(20, [37], 4, "both", torch.bfloat16), stream), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_gradient_for_the_stream_and_a_product_without_gates(dtype):
    case = make(20, [37], 4, "both", dtype, gated=[False], rest=0)
    gain, rstd = case.random(37), case.random(20, dtype=torch.float32).abs()
    kept = *(case.random(20, 37) for _ in range(3)), rstd
    dx, dproduct, *_, dgain = add_norm_kernels.add_norm_backward(*kept, case.product, case.gates, gain)
    shared, nothing, *_, dgain_then = add_norm_kernels.add_norm_backward(*kept, None, case.gates, gain)
    assert nothing.shape == (0,)
    assert_same_bits(dproduct, dx, Reason.MOVED)
    # Without the product the kernel is compiled anew, and may fuse other products with sums.
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(shared, dx, rtol=2 * unit, atol=1e-6)
    torch.testing.assert_close(dgain_then, dgain, rtol=1e-5, atol=1e-5)


def test_the_norm_is_of_what_was_written():
    """Of y as rounded to bf16, though the sum before it was fp32; and so rstd is right to fp32's accuracy."""
    case = make(20, [37], 4, "both", torch.float32)
    x, gain = case.random(20, 37, dtype=torch.bfloat16), case.random(37)
    y, n, rstd = add_norm_kernels.add_norm(x, case.product, case.gates, gain, 1e-6)
    expected = torch.rsqrt(y.double().square().mean(-1) + 1e-6)
    assert (rstd - expected).abs().max() <= 1e-6 * expected.max()
    assert (n - y.double() * expected[:, None] * gain).abs().max() <= 1e-5 * n.abs().max()


@pytest.mark.parametrize("operation", ["modulate", "swiglu", "add_norm"])
def test_no_rows(operation):
    mine, right = run(operation, make(0, WIDTHS[operation], 4, "both", torch.float32))
    assert {name: tensor.shape for name, tensor in mine.items()} == {name: right[name].shape for name in right}
    assert not mine["dWc"].any()
    assert not mine["dws"].any()


def test_no_rows_of_heads():
    case = make(0, WIDTHS["heads"], 4, "both", torch.float32)
    how = (case.gates, *[case.random(7, 6)] * 2, 3, 2)
    outputs = heads_kernels.heads(case.product, *how)
    assert [tuple(tensor.shape) for tensor in outputs] == [(0, 36), (0, 24), (0, 24), (0, 12)]
    dproduct, dWc, dws = heads_kernels.heads_backward(*outputs[:3], *outputs, *how, case.product.shape[1])
    assert dproduct.shape == case.product.shape
    assert_same_bits([dWc, dws], [torch.zeros_like(each) for each in case.gates[:2]], Reason.EXACT)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_same_bits_each_time(operation):
    first, second = (run(operation, make(40, WIDTHS[operation], 2, "both", torch.float32))[0] for _ in range(2))
    assert_same_bits(second, first, Reason.SAME_CALL)


def test_weights_of_a_wider_type_than_the_product():
    case = make(20, [37], 8, "both", torch.bfloat16)
    case.gates = case.gates._replace(Wc=case.gates.Wc.float(), ws=case.gates.ws.float())
    assert_agree(modulate(case), TOLERANCE[torch.bfloat16])


# Each subset of the sites with gates that a kernel has a branch for; and every kind of gates with every operation.
@pytest.mark.parametrize(
    ("operation", "gated", "kind"),
    [
        ("modulate", (True, True), "comt"),
        ("modulate", (False, True), "channel"),
        ("modulate", (False, False), "both"),
        ("heads", (True, False, True), "channel"),
        ("heads", (False, True, False), "scalar"),
        ("heads", (True, True, True), "comt"),
        ("heads", (False, False, False), "both"),
        ("swiglu", (True, False), "channel"),
        ("swiglu", (False, True), "scalar"),
        ("swiglu", (True, True), "comt"),
        ("swiglu", (False, False), "both"),
        ("add_norm", (True,), "channel"),
        ("add_norm", (True,), "scalar"),
        ("add_norm", (False,), "both"),
    ],
)
def test_kinds_of_gates_at_some_sites(operation, gated, kind):
    assert_agree(run(operation, make(20, WIDTHS[operation], 2, kind, torch.float32, gated)), 1e-5)


@interpreted_only
@given(
    st.sampled_from(OPERATIONS), st.integers(1, 35), st.integers(1, 40), st.integers(1, 20), st.sampled_from(KINDS),
    st.integers(0, 4), st.integers(0, 99),
)  # fmt: skip
def test_any_shape(operation, T, N, rank, kind, rest, seed):
    rank = rank if kind in ("scalar", "comt") else min(rank, 8)
    case = make(T, [N] * len(WIDTHS[operation]), rank, kind, torch.float32, rest=rest, seed=seed)
    if operation == "heads":
        half = seed % 5 + 1
        case = make(T, [4 * half, 2 * half, 2 * half], rank, kind, torch.float32, rest=rest, seed=seed)
        assert_agree(heads(case, 2 * half, N), 1e-5)
    else:
        assert_agree(run(operation, case), 1e-5)
