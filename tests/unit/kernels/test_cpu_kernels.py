"""The C++ kernels against their definitions, in float64 with autograd.

Errors are relative to the largest element of a tensor. fp32: 1e-5; everything is computed in fp32 (2^-24 a rounding),
the logistic function to 6e-7, and the longest sums here have some 200 terms. bf16: 2e-2; inputs are the same numbers
on both sides, a result is rounded once (at most 2^-8, 0.4 %), so are the factors of a gate's logits on some processors,
and gradients that are computed from rounded results (q, k, v and y) inherit two more such errors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_bits import Reason, assert_same_bits, same_integers
from torch import Tensor

from comt_cli.kernels import add_norm, heads, modulate, swiglu
from comt_cli.kernels.add_norm import cpu as add_norm_cpu
from comt_cli.kernels.cpu import build
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.heads import cpu as heads_cpu
from comt_cli.kernels.modulate import cpu as modulate_cpu
from comt_cli.kernels.swiglu import cpu as swiglu_cpu

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Of the largest. bf16: half a unit of at most 2^-7 and a neighbour, of a result and of what it is computed from."""
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "bf16"])
KINDS = {  # which gates there are, and their scale
    "comt": ("s", 1.0),
    "channel": ("c", 2.0),
    "scalar": ("s", 2.0),
    "both": ("cs", 2.0),
    "neither": ("", 2.0),  # u columns without gates that read them
}
EPSILON = 1e-5


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    if reason := build.available():
        pytest.skip(reason)


@pytest.fixture
def threads() -> Iterator[None]:
    """Two threads, whatever the environment says."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Problem:
    """Random inputs of one kind: matrices are parts of wider ones, so that rows lie apart, and between them NaN."""

    def __init__(
        self,
        dtype: torch.dtype,
        kind: str = "both",
        rank: int = 8,
        gated: Sequence[bool] = (True,) * 3,
        *,
        layout: Callable[[Tensor], Tensor] = lambda W: W,  # of the gates' matrices
        beyond: float = 0.0,  # added to some of Wc
    ):
        self.dtype, self.rank, self.gated, self.layout, self.beyond = dtype, rank, gated, layout, beyond
        self.gates, self.scale = KINDS[kind]
        self.generator = torch.Generator().manual_seed(rank)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        *rows, columns = shape
        wide = torch.full((*rows, columns + 5), torch.nan, dtype=dtype or self.dtype)
        part = wide[..., 2 : columns + 2]
        return part.copy_(torch.randn(*rows, columns, generator=self.generator))

    def site(self, T: int, widths: Sequence[int], rest: int = 3) -> tuple[Tensor, Modulation]:
        """A product and the gates of its sites."""
        gated = tuple(self.gated[: len(widths)])
        S, channels = sum(gated), sum(compress(widths, gated))
        Wc = self.normal(channels, self.rank) if "c" in self.gates and S else None
        ws = self.normal(S, self.rank, dtype=torch.float32) if "s" in self.gates and S else None
        if Wc is not None:
            Wc[Wc > 1.5] += self.beyond
        Wc, ws = (None if W is None else self.layout(W) for W in (Wc, ws))
        gates = Modulation(Wc, ws, self.scale, self.rank, gated)
        return self.normal(T, sum(widths) + gates.columns + rest), gates


def doubles(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


def in_double(gates: Modulation) -> Modulation:
    Wc, ws = doubles(gates.Wc, gates.ws)
    return gates._replace(Wc=Wc, ws=ws)


def gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor | None], by: Sequence[Tensor]) -> list[Tensor]:
    """Of a reference, for the inputs that are there; zeros where nothing depends on one."""
    present = [t for t in inputs if t is not None]
    with_history = [(o, g.double()) for o, g in zip(outputs, by, strict=True) if o.requires_grad]
    used, weights = map(list, zip(*with_history, strict=True))
    found = torch.autograd.grad(used, present, weights, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(present, found, strict=True)]


def present(*tensors: Tensor) -> list[Tensor]:
    """Gradients of gates that are there: the others' are of no elements, and of one dimension."""
    return [t for t in tensors if t.shape != (0,)]


def run_modulate(p: Problem, T: int, n: int) -> tuple[list[Tensor], list[Tensor]]:
    widths = [n, 2 * n + 1, 5][: len(p.gated)]
    product, gates = p.site(T, widths)
    zhat, G = modulate_cpu.modulate(product, gates, widths), p.normal(T, sum(widths))
    mine = modulate_cpu.modulate_backward(G, product, gates, widths)
    (leaf,), wide = doubles(product), in_double(gates)
    expected = modulate.reference(leaf, wide, widths)
    return [zhat, *present(*mine)], [expected, *gradients([expected], [leaf, *wide[:2]], [G])]


def run_heads(p: Problem, T: int, n: int) -> tuple[list[Tensor], list[Tensor]]:
    counts, half = (4, 2), n
    T = max(T, 1)  # the reference cannot turn no rows
    product, gates = p.site(T, [8 * n, 4 * n, 4 * n])
    angles = 6 * torch.rand(7, half, generator=p.generator, dtype=torch.float64)
    cos, sin = angles.cos().to(p.dtype), angles.sin().to(p.dtype)
    outputs = heads_cpu.heads(product, gates, cos, sin, *counts)
    G = [p.normal(*output.shape) for output in outputs[:3]]
    mine = heads_cpu.heads_backward(*G, *outputs, gates, cos, sin, *counts, product.shape[1])
    (leaf,), wide = doubles(product), in_double(gates)
    expected = heads.reference(leaf, wide, cos.double(), sin.double(), *counts)
    return [*outputs, *present(*mine)], [*expected, *gradients(expected[:3], [leaf, *wide[:2]], G)]


def run_swiglu(p: Problem, T: int, n: int) -> tuple[list[Tensor], list[Tensor]]:
    padded = n + 9
    product, gates = p.site(T, [n, n])
    h, G = swiglu_cpu.swiglu(product, gates, n, padded), p.normal(T, padded)
    mine = swiglu_cpu.swiglu_backward(G, product, gates, n)
    (leaf,), wide = doubles(product), in_double(gates)
    expected = swiglu.reference(leaf, wide, n, padded)
    return [h, *present(*mine)], [expected, *gradients([expected], [leaf, *wide[:2]], [G])]


def run_add_norm(p: Problem, T: int, n: int, stream: torch.dtype | None = None) -> tuple[list[Tensor], list[Tensor]]:
    product, gates = p.site(T, [n])
    x, gain = p.normal(T, n, dtype=stream), p.normal(n)
    y, normed, rstd = add_norm_cpu.add_norm(x, product, gates, gain, EPSILON)
    dy, dn = p.normal(T, n, dtype=stream), p.normal(T, n)
    mine = add_norm_cpu.add_norm_backward(dy, dn, y, rstd, product, gates, gain)
    (wide_x, leaf, wide_gain), wide = doubles(x, product, gain), in_double(gates)
    expected = add_norm.reference(wide_x, leaf, wide, wide_gain, EPSILON)
    leaves = [wide_x, leaf, *wide[:2], wide_gain]
    return [y, normed, rstd, *present(*mine)], [*expected, *gradients(expected[:2], leaves, [dy, dn])]


def run_add_norm_of_wide_stream(p: Problem, T: int, n: int) -> tuple[list[Tensor], list[Tensor]]:
    return run_add_norm(p, T, n, torch.float32)


RUNS = [run_modulate, run_heads, run_swiglu, run_add_norm, run_add_norm_of_wide_stream]
EVERY = pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__[4:])


def assert_close(mine: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    for number, (a, b) in enumerate(zip(mine, expected, strict=True)):
        assert a.shape == b.shape, number
        if b.numel():
            error, largest = (a.double() - b.detach()).abs().max(), b.detach().abs().max()
            # Sums have terms of size one, each with its error, and may cancel to much less than that.
            assert error <= tolerance * max(largest, 2), f"tensor {number}: {error} of {largest}"


@EVERY
@DTYPES
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(run, dtype, kind):
    assert_close(*run(Problem(dtype, kind), 37, 24), TOLERANCE[dtype])


@EVERY
@DTYPES
@pytest.mark.parametrize(("n", "rank"), [(150, 64), (160, 2)])
def test_more_than_a_tile(run, dtype, n, rank):
    """With and without a rest, and the widest bottleneck: larger than what `test_any_shape` draws."""
    assert_close(*run(Problem(dtype, rank=rank), 18, n), TOLERANCE[dtype])


@EVERY
@given(
    T=st.integers(0, 40),
    n=st.integers(1, 40),
    rank=st.integers(1, 20),
    kind=st.sampled_from(list(KINDS)),
    gated=st.tuples(*[st.booleans()] * 3),
    dtype=st.sampled_from(list(TOLERANCE)),
)
def test_any_shape(run, T, n, rank, kind, gated, dtype):
    assert_close(*run(Problem(dtype, kind, rank, gated), T, n), TOLERANCE[dtype])


def calls(dtype: torch.dtype) -> dict[str, tuple]:
    """Arguments of each operator, forward and backward, as its schema has them."""
    p, counts = Problem(dtype, rank=3), (4, 2)
    product, gates = p.site(6, [16, 8, 8])
    of_two, of_one = (p.site(6, [16] * sites) for sites in (2, 1))
    tables = torch.ones(6, 2), torch.zeros(6, 2)
    qkvu = heads_cpu.heads(product, gates, *tables, *counts)
    x, gain = p.normal(6, 16), p.normal(16)
    y, _, rstd = add_norm_cpu.add_norm(x, *of_one, gain, EPSILON)
    return {
        "modulate": (product, *gates, [16, 8, 8]),
        "modulate_backward": (p.normal(6, 32), product, *gates, [16, 8, 8]),
        "heads": (product, *gates, *tables, *counts),
        "heads_backward": (*qkvu[:3], *qkvu, *gates, *tables, *counts, product.shape[1]),
        "swiglu": (of_two[0], *of_two[1], 16, 20),
        "swiglu_backward": (p.normal(6, 20), of_two[0], *of_two[1], 16),
        "add_norm": (x, of_one[0], *of_one[1], gain, EPSILON),
        "add_norm_backward": (p.normal(6, 16), p.normal(6, 16), y, rstd, of_one[0], *of_one[1], gain),
    }


@DTYPES
@pytest.mark.parametrize(
    "name", [f"{op}{end}" for op in ("modulate", "heads", "swiglu", "add_norm") for end in ("", "_backward")]
)
def test_pytorch_accepts_what_the_kernels_give(name, dtype):
    """Shapes, types and strides are those that the compiler is told, and nothing given is written to."""
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.comt, name).default, calls(dtype)[name], test_utils=checks)


LAYOUTS = {
    "columns": lambda W: W.T.contiguous().T,
    "neither": lambda W: torch.full((3 * len(W), 2 * W.shape[1]), torch.nan, dtype=W.dtype)[::3, ::2].copy_(W),
}


def assert_layouts_give_the_same(run, T: int, n: int, dtype: torch.dtype, **more) -> None:
    """To rounding: a layout decides in which order a product is summed."""
    by_rows, *others = (
        run(Problem(dtype, layout=layout, **more), T, n)[0] for layout in (lambda W: W, *LAYOUTS.values())
    )
    for found in others:
        for a, b in zip(by_rows, found, strict=True):
            far = TOLERANCE[dtype] * max(largest(a), 2)
            torch.testing.assert_close(b, a, rtol=0, atol=far, equal_nan=True)


def largest(tensor: Tensor) -> float:
    """Of the finite magnitudes."""
    return float(tensor.detach().abs().nan_to_num(0, 0).max()) if tensor.numel() else 0.0


@EVERY
@given(
    T=st.integers(1, 20),
    n=st.integers(1, 40),
    rank=st.integers(1, 20),
    dtype=st.sampled_from(list(TOLERANCE)),
    beyond=st.sampled_from([0.0, 100.0, float("inf"), float("nan")]),
)
def test_matrices_of_any_layout_give_the_same(run, T, n, rank, dtype, beyond):
    assert_layouts_give_the_same(run, T, n, dtype, rank=rank, beyond=beyond)


@EVERY
def test_they_do_on_two_threads(run, threads):
    """Of which the second begins to pack where no vector does."""
    assert_layouts_give_the_same(run, 300, 86, torch.bfloat16, beyond=float("inf"))


@EVERY
def test_rest_columns_of_the_gradient_are_zero(run):
    mine, expected = run(Problem(torch.bfloat16), 20, 24)
    checked = [
        (a[:, -3:] == 0).all() for a, b in zip(mine, expected, strict=True) if b.ndim == 2 and not b[:, -3:].any()
    ]
    assert checked
    assert all(checked)


@EVERY
@DTYPES
def test_the_same_bits_every_time_and_the_same_numbers_on_one_thread(run, dtype, threads):
    first, again = (run(Problem(dtype), 300, 80)[0] for _ in range(2))
    assert_same_bits(again, first, Reason.SAME_CALL)
    torch.set_num_threads(1)
    alone = run(Problem(dtype), 300, 80)[0]
    for a, b in zip(first, alone, strict=True):
        if len(a) == 300:  # rows are independent of each other: at most another rounding to their type
            assert_close([a], [b.double()], TOLERANCE[dtype])
        else:
            assert_close([a], [b.double()], 1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", [3, 60], ids=["in z", "in u"])
@DTYPES
def test_what_is_not_finite_travels_as_in_the_reference(value, column, dtype):
    p = Problem(dtype, gated=(True,))
    product, gates = p.site(20, [40], rest=0)
    product = torch.cat([product[:, :40], torch.zeros(20, 14, dtype=dtype), product[:, 40:]], 1)  # u: 54 to 62
    gates, widths = gates._replace(gated=(True, False)), [40, 14]
    product[7, 57 if column == 60 else column] = value
    G = p.normal(20, 54)
    mine = modulate_cpu.modulate(product, gates, widths)
    back = modulate_cpu.modulate_backward(G, product, gates, widths)
    (leaf,), wide = doubles(product), in_double(gates)
    expected = modulate.reference(leaf, wide, widths)
    assert same_integers(mine.isnan(), expected.isnan())
    assert same_integers(mine.isinf(), expected.isinf())
    for a, b in zip(back, gradients([expected], [leaf, *wide[:2]], [G]), strict=True):
        assert same_integers(a.isfinite(), b.isfinite())


@pytest.mark.parametrize("factor", [0.01, 0.1, 0.3, 1.0, 4.0])
@DTYPES
def test_weights_small_and_large(factor, dtype):
    """Gates whose weights bound their logits to 3 are computed without an exponential."""
    p, widths = Problem(dtype), [40, 16, 7]
    product, gates = p.site(33, widths)
    gates, G = gates._replace(Wc=(gates.Wc * factor).to(dtype)), p.normal(33, 63)
    mine = [modulate_cpu.modulate(product, gates, widths)]
    mine += modulate_cpu.modulate_backward(G, product, gates, widths)
    (leaf,), wide = doubles(product), in_double(gates)
    expected = modulate.reference(leaf, wide, widths)
    assert_close(mine, [expected, *gradients([expected], [leaf, *wide[:2]], [G])], TOLERANCE[dtype])


def test_a_weight_that_is_not_a_number_reaches_its_channel_and_no_other():
    p = Problem(torch.float32, "channel", gated=(True,))
    product, gates = p.site(20, [40])
    for factor in (0.01, 1.0):
        spoilt = gates.Wc * factor
        spoilt[11, 2] = float("nan")
        mine = modulate_cpu.modulate(product, gates._replace(Wc=spoilt), [40])
        assert mine[:, 11].isnan().all()
        assert mine.isnan().sum() == 20


@pytest.mark.parametrize("size", [30.0, 300.0, 3e4])
def test_saturated_gates(size):
    widths = [16, 17, 18]
    product, gates = Problem(torch.float32).site(30, widths)
    product, gates = product * size, gates._replace(Wc=gates.Wc * size)
    mine = modulate_cpu.modulate(product, gates, widths)
    expected = modulate.reference(product.double(), in_double(gates), widths)
    # A logit of size 8 * 30 or more has an absolute error of 2^-24 of that, a gate the same relative error.
    assert_close([mine], [expected], 1e-5 * max(1, size / 300))


NO_GATES = Modulation(None, None, 1.0, 0, (False,))


@given(T=st.integers(0, 40), n=st.integers(1, 40), dtype=st.sampled_from(list(TOLERANCE)))
def test_one_gradient_for_the_stream_and_a_product_without_gates(T, n, dtype):
    p = Problem(dtype)
    dy, dn, y, product, gain = (p.normal(rows, n) for rows in (T, T, T, T, 1))
    kept = dy, dn, y, torch.rand(T, generator=p.generator)
    dx, dproduct, *_, dgain = add_norm_cpu.add_norm_backward(*kept, product, NO_GATES, gain[0])
    shared, nothing, *_, dgain_then = add_norm_cpu.add_norm_backward(*kept, None, NO_GATES, gain[0])
    assert nothing.shape == (0,)
    assert_same_bits(dproduct, dx, Reason.MOVED)
    # Without the product the compiler may fuse other products with sums.
    torch.testing.assert_close(shared, dx, rtol=2**-6 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)
    torch.testing.assert_close(dgain_then, dgain, rtol=1e-5, atol=1e-5)


def test_bf16_rounds_to_nearest_even_and_keeps_nan():
    bits = torch.arange(0, 2**31 - 2**16, 2**16 // 4 + 1, dtype=torch.int64)
    values = (
        torch.cat([bits, bits + 0x7F80_0001 - bits.max()]).clamp(max=0x7FFF_FFFF).to(torch.int32).view(torch.float32)
    )
    values = torch.cat([values, -values, torch.tensor([float("nan"), float("inf"), -float("inf")])])
    values = values[~(values.abs() < torch.finfo(torch.float32).tiny)]  # what is subnormal may become zero
    product = torch.zeros(len(values), 1, dtype=torch.bfloat16)
    _, normed, _ = add_norm_cpu.add_norm(values.view(-1, 1), product, NO_GATES, torch.ones(1), 1e-30)
    assert normed.dtype == torch.bfloat16
    ones = torch.ones(len(values), 1)
    dx, dproduct, *_ = add_norm_cpu.add_norm_backward(
        values.view(-1, 1), product, ones, ones[:, 0], product, NO_GATES, ones[0]
    )
    assert_same_bits(dx.view(-1), values, Reason.IDENTITY)
    assert_same_bits(dproduct.view(-1), values.bfloat16(), Reason.EXACT)


def test_the_kernels_run_on_pytorchs_own_threads():
    def entry(library: Path | str) -> int | None:
        return ctypes.cast(ctypes.CDLL(str(library)).GOMP_parallel, ctypes.c_void_p).value

    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    assert entry(build.library()._name) == entry(torch_cpu)


def test_more_rows_of_tables_than_tokens_and_fewer():
    p = Problem(torch.float32)
    product, gates = p.site(5, [32, 16, 16])
    angles = torch.rand(9, 4, generator=p.generator)
    for rows in (9, 5, 2):
        cos, sin = angles[:rows].cos(), angles[:rows].sin()
        mine = heads_cpu.heads(product, gates, cos, sin, 4, 2)
        expected = heads.reference(product.double(), in_double(gates), cos.double(), sin.double(), 4, 2)
        assert_close(mine, expected, 1e-5)


def test_heads_of_no_rows():
    product, gates = Problem(torch.float32).site(0, [32, 16, 16])
    how = (gates, torch.ones(3, 4), torch.zeros(3, 4), 4, 2)
    outputs = heads_cpu.heads(product, *how)
    assert [t.shape for t in outputs] == [(0, 32), (0, 16), (0, 16), (0, 24)]
    dproduct, dWc, dws = heads_cpu.heads_backward(*outputs[:3], *outputs, *how, 100)
    assert dproduct.shape == (0, 100)
    assert_same_bits([dWc, dws], [torch.zeros(64, 8), torch.zeros(3, 8)], Reason.EXACT)


ONE = Modulation(None, torch.zeros(1, 8), 1.0, 8, (True,))


def test_other_types_are_refused():
    product = torch.randn(4, 24)
    for dtype in (torch.float64, torch.float16):
        with pytest.raises(TypeError, match="take float32 and bfloat16"):
            modulate_cpu.modulate(product.to(dtype), ONE, (16,))
    with pytest.raises(TypeError, match="not torch\\.float32 on meta"):
        modulate_cpu.modulate(product.to("meta"), ONE, (16,))
    with pytest.raises(TypeError, match="dn is torch\\.bfloat16"):
        add_norm_cpu.add_norm_backward(
            product, product.bfloat16(), product, product[:, 0], None, NO_GATES, torch.ones(24)
        )
    with pytest.raises(TypeError, match="G is torch\\.bfloat16"):
        modulate_cpu.modulate_backward(product[:, :16].bfloat16(), product, ONE, (16,))


def test_shapes_that_do_not_fit_are_refused():
    product = torch.randn(4, 24)
    with pytest.raises(ValueError, match="23 columns, fewer than the 24"):
        modulate_cpu.modulate(product[:, :23], ONE, (16,))
    with pytest.raises(ValueError, match="ws has the shape"):
        modulate_cpu.modulate(product, ONE._replace(ws=torch.randn(2, 8)), (16,))
    with pytest.raises(ValueError, match="last dimension of the product has the stride 24"):
        modulate_cpu.modulate(torch.randn(24, 24).T, ONE, (16,))
    two = ONE._replace(ws=torch.randn(2, 8), gated=(True, True))
    with pytest.raises(ValueError, match="16 channels do not fit in 15"):
        swiglu_cpu.swiglu(torch.randn(4, 48), two, 16, 15)
    with pytest.raises(ValueError, match="the gain has the shape"):
        add_norm_cpu.add_norm(torch.randn(4, 16), product, ONE, torch.ones(15), EPSILON)
    with pytest.raises(ValueError, match="16 columns, fewer than the 24"):
        add_norm_cpu.add_norm_backward(*[product[:, :16]] * 3, product[:, 0], None, ONE, torch.ones(16))
    how = ONE._replace(gated=(True, False, False)), torch.ones(3, 4), torch.ones(3, 4), 4, 2
    outputs = heads_cpu.heads(torch.randn(4, 72), *how)
    with pytest.raises(ValueError, match="71 columns, fewer than the 72"):
        heads_cpu.heads_backward(*outputs[:3], *outputs, *how, 71)


def test_a_nan_in_one_channel_stays_there():
    """Large logits beside it are still taken for large."""
    product = torch.zeros(3, 40 + 2)
    product[:, :40] = 1
    gates = Modulation(torch.full((40, 2), 0.01), None, 1.0, 2, (True,))
    gates.Wc[0] = 5.0
    expected = modulate_cpu.modulate(product, gates, [40])
    gates.Wc[1] = float("nan")
    found = modulate_cpu.modulate(product, gates, [40])
    assert found[:, 1].isnan().all()
    kept = [0, *range(2, 40)]
    torch.testing.assert_close(found[:, kept], expected[:, kept], rtol=1e-6, atol=0)


def test_swiglu_far_out_is_that_of_the_reference():
    """silu is 0 far below zero, and NaN at minus infinity."""
    gate = torch.tensor([[-1e38, -1e30, -200.0, -95.0, -85.0, 0.0, 3.0, float("-inf"), float("inf"), float("nan")]])
    product = torch.cat([gate, torch.ones_like(gate)], 1)
    arguments = (product, NO_GATES._replace(gated=(False, False)), 10, 10)
    expected, found = swiglu.reference(*arguments), swiglu_cpu.swiglu(*arguments)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-30, equal_nan=True)
