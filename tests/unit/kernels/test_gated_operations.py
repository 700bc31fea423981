"""The operations on gated sites, in C++ and in Triton, against autograd on the definition, in float64.

Triton's tiles are made small, so that a handful of rows has several row blocks, groups of them and tiles, all with a
rest. A special value must reach what depends on it, so that a diverging run is seen, and nothing else: a masked lane
that multiplies its zero with it would spread it over a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gated_cases import (
    DTYPES,
    IMPLEMENTATIONS,
    IN_CPP,
    KINDS,
    QUICK,
    RUNS,
    TOLERANCE,
    Case,
    add_norm,
    assert_agree,
    assert_same_specials,
    make,
    modulate,
    widths_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from same_bits import Reason, assert_same_bits
from triton import cdiv

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.tiles import TILES, Tile

EVERY = pytest.mark.parametrize("operation", RUNS)
# NumPy, which interprets, says that 0 * Inf is invalid and that exp overflows; both are a subject here.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")


def small(kernel: str, kind: str, width: int) -> Tile:
    """Of 16 or 8 rows; every group has two blocks of them."""
    if kernel.startswith("add_norm") and kind != "channel":
        return Tile(0, 64, 1, 1)
    return Tile(16, 64, 1, 1) if kind == "channel" else Tile(8, 16, 1, 1)


@pytest.fixture(autouse=True, scope="module")
def small_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "tile", small)
        patch.setattr(launch, "groups", lambda rows, tile, columns=1: (cdiv(cdiv(len(rows), tile.rows), 2), 2))
        yield


@IMPLEMENTATIONS
@EVERY
@settings(max_examples=8)
@given(data=st.data())
def test_any_shape(by, operation, data):
    """Every kind of gates at any of the sites, of any rank; C++ has tiles of 256 channels."""

    def draw(strategy: Any) -> Any:
        return data.draw(strategy)

    kind = draw(st.sampled_from([kind for kind in KINDS if kind != "neither" or by == "cpp"]))
    rank = draw(st.integers(1, 8 if by == "triton" and KINDS[kind][0] else 20))
    T, n = draw(st.integers(1, 40)), draw(st.integers(1, 300 if by == "cpp" else 40))
    dtype, gated = draw(st.sampled_from(DTYPES[by])), draw(st.tuples(*[st.booleans()] * 3))
    case = make(by, T, widths_of(operation, n), rank, kind, dtype, gated, draw(st.integers(0, 4)))
    assert_agree(RUNS[operation](case), TOLERANCE[dtype])


@QUICK
@EVERY
def test_several_groups_of_rows_and_wide_bottlenecks(by, operation):
    for kind, rank, dtype in (("both", 8, torch.bfloat16), ("scalar", 64, torch.bfloat16)):
        case = make(by, 40, widths_of(operation, 19), rank, kind, dtype)
        assert_agree(RUNS[operation](case), TOLERANCE[dtype])


@IMPLEMENTATIONS
@EVERY
def test_no_rows(by, operation):
    if operation == "heads":  # the definition cannot turn no rows
        case = make(by, 0, [32, 16, 16], 8, "both", torch.float32)
        how = (case.gates, torch.ones(3, 4), torch.zeros(3, 4), 4, 2)
        outputs = case.call("heads", case.product, *how)
        dproduct, dWc, dws = case.call("heads_backward", *outputs[:3], *outputs, *how, 100)
        assert [tuple(each.shape) for each in (*outputs, dproduct)] == [(0, 32), (0, 16), (0, 16), (0, 24), (0, 100)]
    else:
        mine, right = RUNS[operation](make(by, 0, widths_of(operation, 19), 4, "both", torch.float32))
        assert {name: tensor.shape for name, tensor in mine.items()} == {name: right[name].shape for name in right}
        dWc, dws = mine["dWc"], mine["dws"]
    assert not dWc.any()
    assert not dws.any()


def by_columns(W: torch.Tensor) -> torch.Tensor:
    return W.T.contiguous().T


def apart(W: torch.Tensor) -> torch.Tensor:
    return W.new_full((3 * len(W), 2 * W.shape[1]), torch.nan)[::3, ::2].copy_(W)


@QUICK
@EVERY
@pytest.mark.parametrize(("layout", "beyond"), [(by_columns, math.nan), (apart, math.inf)], ids=["columns", "apart"])
def test_matrices_of_any_layout_give_the_same(by, operation, layout, beyond):
    """To rounding: a layout decides in which order a product is summed."""
    found = []
    for lay in (lambda W: W, layout):
        rows, width = (40, 83) if by == "cpp" else (20, 19)
        case = make(by, rows, widths_of(operation, width), 8, "both", torch.bfloat16)
        Wc, ws = case.gates[:2]
        Wc[Wc > 1.5] += beyond
        case.gates = case.gates._replace(Wc=lay(Wc), ws=lay(ws))
        found.append(RUNS[operation](case)[0])
    for name, one in found[0].items():
        far = TOLERANCE[torch.bfloat16] * max(2.0, float(one.abs().nan_to_num(0, 0).max()))
        torch.testing.assert_close(found[1][name], one, rtol=0, atol=far, equal_nan=True)


@QUICK
@EVERY
def test_the_same_bits_each_time_and_the_same_numbers_on_one_thread(by, operation):
    rows, width = (200, 80) if by == "cpp" else (20, 24)  # the interpreter is slow

    def run() -> list[torch.Tensor]:
        found, _ = RUNS[operation](make(by, rows, widths_of(operation, width), 2, "both", dtype))
        return list(found.values())

    dtype, before = torch.float32, torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, second = run(), run()
        torch.set_num_threads(1)
        alone = run()
    finally:
        torch.set_num_threads(before)
    assert_same_bits(second, first, Reason.SAME_CALL)
    for one, other in zip(alone, first, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


@IMPLEMENTATIONS
@pytest.mark.parametrize("dtype", DTYPES["triton"], ids=str)
def test_one_gradient_for_the_stream_and_a_product_without_gates(by, dtype):
    if dtype not in DTYPES[by]:
        pytest.skip("C++ does not compute in it")
    case = make(by, 20, [37], 4, "both", dtype, gated=[False], rest=0)
    gain, rstd = case.random(37), case.random(20, dtype=torch.float32).abs()
    kept = *(case.random(20, 37) for _ in range(3)), rstd
    dx, dproduct, *_, dgain = case.call("add_norm_backward", *kept, case.product, case.gates, gain)
    shared, nothing, *_, dgain_then = case.call("add_norm_backward", *kept, None, case.gates, gain)
    assert nothing.shape == (0,)
    assert_same_bits(dproduct, dx, Reason.MOVED)
    # Without the product the kernel is compiled anew, and may fuse other products with sums.
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(shared, dx, rtol=2 * unit, atol=1e-6)
    torch.testing.assert_close(dgain_then, dgain, rtol=1e-5, atol=1e-5)


@IMPLEMENTATIONS
def test_the_norm_is_of_what_was_written(by):
    """Of y as rounded to bf16, though the sum before it was fp32; and so rstd is right to fp32's accuracy."""
    case = make(by, 20, [37], 4, "both", torch.float32)
    x, gain = case.random(20, 37, dtype=torch.bfloat16), case.random(37)
    y, n, rstd = case.call("add_norm", x, case.product, case.gates, gain, 1e-6)
    expected = torch.rsqrt(y.double().square().mean(-1) + 1e-6)
    assert (rstd - expected).abs().max() <= 1e-6 * expected.max()
    assert (n - y.double() * expected[:, None] * gain).abs().max() <= 1e-5 * n.abs().max()


# ---- what is not finite


SPECIAL = pytest.mark.parametrize(
    ("value", "dtype"), [(math.nan, torch.float32), (math.inf, torch.bfloat16), (-math.inf, torch.float32)], ids=str
)


@QUICK
@EVERY
@SPECIAL
def test_special_activations_and_bottlenecks(by, operation, value, dtype):
    """Of heads in v: q and k are read as turned, where a value has spread to its partner."""
    widths = widths_of(operation, 19)
    for column in (sum(widths) - 1, sum(widths) + 1):
        case = make(by, 21, widths, 4, "both", dtype)
        case.product[3, column] = value
        mine, right = RUNS[operation](case)
        assert_same_specials((mine, right))
    case = make(by, 21, widths, 4, "both", dtype)
    case.product[3, 5] = value
    mine, _ = RUNS[operation](case)
    lost = ~mine["dproduct"].isfinite()
    assert lost.any(1).nonzero().tolist() == [[3]]


@IMPLEMENTATIONS
@SPECIAL
def test_special_second_layers(by, value, dtype):
    """An infinite weight opens or shuts a gate for good, which leaves the output finite; a NaN loses its channel."""
    case = make(by, 21, [37], 4, "both", dtype)
    case.gates.Wc[5, 1] = value
    mine, right = modulate(case)
    assert_same_specials((mine, right))
    assert (~mine["0"].isfinite()).any(0).nonzero().flatten().tolist() == ([5] if math.isnan(value) else [])


@IMPLEMENTATIONS
def test_special_gradients(by):
    case = make(by, 21, [37], 4, "both", torch.float32)
    G = case.random(21, 37)
    G[2, 3] = math.inf
    dproduct, dWc, dws = case.call("modulate_backward", G, case.product, case.gates, case.widths)
    assert (~dproduct.isfinite()).any(1).nonzero().flatten().tolist() == [2]
    assert (~dWc.isfinite()).any(1).nonzero().flatten().tolist() == [3]
    assert not dws.isfinite().any()


@IMPLEMENTATIONS
@pytest.mark.parametrize("size", [0.01, 0.3, 4.0, 300.0])
def test_weights_small_and_large(by, size):
    """In C++ gates whose weights bound their logits to 3 are computed without an exponential. A logit of some thousand
    has an absolute error of 2^-24 of that, a gate the same relative error."""
    case = make(by, 33, [40, 16, 7], 8, "both", torch.float32)
    case.gates = case.gates._replace(Wc=case.gates.Wc * size)
    assert_agree(modulate(case), 1e-5 * max(1, size))


# ---- in Triton alone


@pytest.mark.parametrize(("kernel", "kind"), TILES)
def test_the_default_tiles(kernel, kind, monkeypatch):
    """Most of them wider than everything here. A GPU runs all that are tried."""
    operation = kernel.removesuffix("_backward")
    monkeypatch.setattr(launch, "tile", lambda kernel, kind, width: TILES[kernel, kind][0])
    gates = {"channel": "both", "scalar": "comt", "none": "both"}[kind]
    case = make("triton", 70, widths_of(operation, 19), 8, gates, torch.bfloat16, gated=[kind != "none"] * 3)
    assert_agree(RUNS[operation](case), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("kind", ["both", "comt"])
def test_few_rows(kind, monkeypatch):
    """Those of decoding have a program each; others blocks, whose y comes back from memory with a channel gate."""
    monkeypatch.setattr(launch, "tile", lambda kernel, kind, width: TILES[kernel, kind][0])
    assert_agree(add_norm(make("triton", 19, [37], 8, kind, torch.bfloat16)), TOLERANCE[torch.bfloat16])


@EVERY
def test_columns_with_gaps_between_them(operation):
    case = make("triton", 20, widths_of(operation, 19), 4, "both", torch.float32)
    case.product = by_columns(case.product)
    assert_agree(RUNS[operation](case), 1e-5)


def test_wider_channel_gates_are_refused():
    with pytest.raises(ValueError, match="channel gate of rank 9"):
        modulate(make("triton", 3, [19], 9, "channel", torch.float32))


# ---- in C++ alone


NO_GATES = Modulation(None, None, 1.0, 0, (False,))


def cpp(name: str, *arguments: Any) -> Any:
    return Case("cpp", *[None] * 4).call(name, *arguments)


@IN_CPP
def test_bf16_rounds_to_nearest_even_and_keeps_nan():
    bits = torch.arange(0, 2**31 - 2**16, 2**16 // 4 + 1, dtype=torch.int64)
    values = torch.cat([bits, bits + 0x7F80_0001 - bits.max()]).clamp(max=0x7FFF_FFFF).to(torch.int32)
    values = values.view(torch.float32)
    values = torch.cat([values, -values, torch.tensor([math.nan, math.inf, -math.inf])]).view(-1, 1)
    values = values[~(values.abs() < torch.finfo(torch.float32).tiny)].view(-1, 1)  # subnormal ones may become zero
    product, ones = torch.zeros(len(values), 1, dtype=torch.bfloat16), torch.ones(len(values), 1)
    dx, dproduct, *_ = cpp("add_norm_backward", values, product, ones, ones[:, 0], product, NO_GATES, ones[0])
    assert_same_bits(dx, values, Reason.IDENTITY)
    assert_same_bits(dproduct, values.bfloat16(), Reason.EXACT)


def refused(error: type[Exception], name: str, *arguments: object) -> None:
    with pytest.raises(error):
        cpp(name, *arguments)


@IN_CPP
def test_types_and_shapes_that_do_not_fit_are_refused():
    """A wrong address would be read, and a wrong size written to."""
    one, two = Modulation(None, torch.zeros(1, 8), 1.0, 8, (True,)), (True, True)
    product, gain = torch.randn(4, 24), torch.ones(16)
    of_16, rstd = product[:, :16], product[:, 0]
    for other in (product.double(), product.half(), product.to("meta"), product.long()):
        refused(TypeError, "modulate", other, one, (16,))
    refused(TypeError, "modulate_backward", of_16.bfloat16(), product, one, (16,))
    refused(TypeError, "add_norm_backward", of_16, of_16.bfloat16(), of_16, rstd, of_16, NO_GATES, gain)
    for shape in ((2, 4, 24), (2, 2, 2, 24), (24,)):
        refused(ValueError, "modulate", torch.randn(shape), one, (16,))
    refused(ValueError, "add_norm", of_16, product[None], one, gain, 1e-5)
    refused(ValueError, "modulate", product[:, :23], one, (16,))
    refused(ValueError, "modulate", product, one._replace(ws=torch.randn(2, 8)), (16,))
    refused(ValueError, "modulate", product, one._replace(ws=None, Wc=torch.randn(15, 8)), (16,))
    refused(ValueError, "modulate", product, one, (8, 8))
    refused(ValueError, "modulate", torch.randn(24, 24).T, one, (16,))
    refused(ValueError, "swiglu", torch.randn(4, 48), one._replace(ws=torch.randn(2, 8), gated=two), 16, 15)
    refused(ValueError, "add_norm", of_16, product, one, gain[:15], 1e-5)
    refused(ValueError, "add_norm", of_16[:3], product, one, gain, 1e-5)
    refused(ValueError, "add_norm_backward", of_16, of_16, of_16, rstd, None, one, gain)
    refused(ValueError, "add_norm_backward", of_16, of_16, of_16, rstd[:3], product, one, gain)
    how = one._replace(gated=(True, False, False)), torch.ones(3, 4), torch.ones(3, 4), 4, 2
    outputs = cpp("heads", torch.randn(4, 72), *how)
    refused(ValueError, "heads_backward", *outputs[:3], *outputs, *how, 71)
    refused(ValueError, "heads_backward", outputs[1], *outputs[1:3], *outputs, *how, 72)


@IMPLEMENTATIONS
def test_swiglu_far_out_is_that_of_the_reference(by):
    """silu is 0 far below zero, and NaN at minus infinity."""
    case = make(by, 1, [10, 10], 1, "both", torch.float32, gated=[False, False], rest=0)
    case.product[:] = 1
    case.product[0, :10] = torch.tensor([-1e38, -1e30, -200, -95, -85, 0, 3, -math.inf, math.inf, math.nan])
    mine, right = case.call("swiglu", case.product, case.gates, 10, 10), torch.nn.functional.silu(case.product[:, :10])
    torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-30, equal_nan=True)
