"""The operations on gated sites, in C++ and in Triton, against autograd on the definition, in float64.

Triton's tiles are made small, so that a handful of rows has several row blocks, groups of them and tiles, all with a
rest. A special value must reach what depends on it, so that a diverging run is seen, and nothing else: a masked lane
that multiplies its zero with it would spread it over a tile.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from same_bits import Reason, assert_same_bits, same_integers
from torch import Tensor

from comt_cli.kernels import add_norm as defined_add_norm
from comt_cli.kernels import heads as defined_heads
from comt_cli.kernels import modulate as defined_modulate
from comt_cli.kernels import swiglu as defined_swiglu
from comt_cli.kernels.cpu import calls
from comt_cli.kernels.gates import Modulation

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from triton import cdiv

from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.tiles import Tile

# NumPy, which interprets, says that 0 * Inf is invalid and that exp overflows; both are a subject here.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")

DEVICES = {"cpp": "cpu", "triton": "cuda" if torch.cuda.is_available() else "cpu"}
"""Where there is no GPU, conftest.py has Triton's kernels interpreted."""
IN_CPP = pytest.mark.skipif("build.available() is not None", reason="the C++ kernels cannot be built")
IMPLEMENTATIONS = pytest.mark.parametrize("by", [pytest.param("cpp", marks=IN_CPP), "triton"])
KINDS = {"both": (True, True, 2.0), "channel": (True, False, 2.0), "scalar": (False, True, 2.0),
         "comt": (False, True, 1.0), "neither": (False, False, 2.0)}  # fmt: skip
"""Channel gates, scalar gates, scale. "neither": u columns without gates that read them, which C++ alone takes."""

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Of the largest element, or of 2: sums have terms of size one. float32: sums of at most a few hundred products, 2^-24
each, and a logistic function to 6e-7. bf16: a result is rounded once, to 2^-8 (the interpreter cuts instead: 2^-7),
and so are factors of its sums; gradients computed from rounded results (q, k, v, y) inherit two more such errors."""


@dataclass
class Case:
    """A product of gated sites, and what computes on it."""

    by: str
    product: Tensor
    gates: Modulation
    widths: list[int]
    generator: torch.Generator

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(DEVICES[self.by], dtype or self.product.dtype)

    def call(self, name: str, *arguments: Any) -> Any:
        if self.by == "cpp":
            return getattr(calls, name)(*arguments)
        module = importlib.import_module(f"comt_cli.kernels.{name.removesuffix('_backward')}.triton")
        return getattr(module, name)(*arguments)

    @property
    def used(self) -> int:
        return sum(self.widths) + self.gates.columns


def make(
    by: str, T: int, widths: list[int], rank: int, kind: str, dtype: torch.dtype, gated: Iterable[bool] | None = None,
    rest: int = 3, seed: int = 0,
) -> Case:  # fmt: skip
    """The product is some columns of a wider tensor, which has NaN beside them."""
    gated = (True,) * len(widths) if gated is None else tuple(gated)[: len(widths)]
    generator = torch.Generator().manual_seed(seed)
    has_channel, has_scalar, scale = KINDS[kind]
    count, M = sum(gated), sum(n for n, has in zip(widths, gated, strict=True) if has)
    C = sum(widths) + count * rank + rest
    wide = torch.full((T, C + 5), torch.nan, dtype=dtype, device=DEVICES[by])
    product = wide[:, 2 : C + 2].copy_(torch.randn(T, C, generator=generator))
    Wc, ws = (torch.randn(n, rank, generator=generator).to(DEVICES[by], dtype) if count else None for n in (M, count))
    gates = Modulation(Wc if has_channel else None, ws if has_scalar else None, scale, rank if count else 0, gated)
    return Case(by, product, gates, widths, generator)


Results = dict[str, Tensor]


def modulate(case: Case) -> tuple[Results, Results]:
    """What the kernels compute, and what is right: outputs and gradients by name. So do the functions below."""
    zhat = case.call("modulate", case.product, case.gates, case.widths)
    G = case.random(*zhat.shape)
    gradients = case.call("modulate_backward", G, case.product, case.gates, case.widths)
    return _named(case, [zhat], gradients), _defined(partial(defined_modulate.reference, widths=case.widths), case, G)


def heads(case: Case) -> tuple[Results, Results]:
    """Of four heads, and of one of keys and values; seven positions."""
    half = case.widths[1] // 2
    angles = case.random(7, half, dtype=torch.float32)
    tables, counts = (angles.cos(), angles.sin()), (case.widths[0] // (2 * half), 1)
    *qkv, u = case.call("heads", case.product, case.gates, *tables, *counts)
    moved = case.product[:, sum(case.widths) : case.used]
    torch.testing.assert_close(u, moved, rtol=2**-7, atol=0, equal_nan=True)  # tests/rounding changes a moved bit, too
    assert u.is_contiguous()
    G = [case.random(*tensor.shape) for tensor in qkv]
    columns = case.product.shape[1]
    gradients = case.call("heads_backward", *G, *qkv, u, case.gates, *tables, *counts, columns)
    wide = [table.double() for table in tables]
    right = _defined(lambda product, gates: defined_heads.reference(product, gates, *wide, *counts)[:3], case, *G)
    return _named(case, qkv, gradients), right


def swiglu(case: Case) -> tuple[Results, Results]:
    F = case.widths[0]
    h = case.call("swiglu", case.product, case.gates, F, F + 3)
    assert not h[:, F:].any()
    G = case.random(*h.shape)
    gradients = case.call("swiglu_backward", G, case.product, case.gates, F)
    return _named(case, [h], gradients), _defined(partial(defined_swiglu.reference, width=F, padded=F + 3), case, G)


def add_norm(case: Case) -> tuple[Results, Results]:
    """With a stream in fp32 where the rank is even."""
    (D,), fp32 = case.widths, torch.float32
    stream = case.product.dtype if case.gates.rank % 2 else fp32
    x, gain = case.random(len(case.product), D, dtype=stream), 1 + case.random(D, dtype=fp32) / 4
    y, n, rstd = case.call("add_norm", x, case.product, case.gates, gain, 1e-6)
    dy, dn = case.random(*y.shape, dtype=stream), case.random(*n.shape)
    found = case.call("add_norm_backward", dy, dn, y, rstd, case.product, case.gates, gain)
    dx, *gradients, dgain = found
    assert (y.dtype, dx.dtype, rstd.dtype, dgain.dtype) == (stream, stream, fp32, fp32)

    def definition(product: Tensor, gates: Modulation, x: Tensor, gain: Tensor) -> Any:
        return defined_add_norm.reference(x, product, gates, gain, 1e-6)

    right = _defined(definition, case, dy, dn, more={"dx": x, "dgain": gain})
    return _named(case, [y, n, rstd], gradients) | {"dx": dx, "dgain": dgain}, right


RUNS: dict[str, Any] = {"modulate": modulate, "heads": heads, "swiglu": swiglu, "add_norm": add_norm}


def widths_of(operation: str, n: int) -> list[int]:
    """Of an operation's sites, the first of them n wide or, of heads, as many heads as pairs make it so."""
    pair = 2 * max(1, n // 8)
    return {"modulate": [n, n // 2 + 1], "heads": [4 * pair, pair, pair], "swiglu": [n, n], "add_norm": [n]}[operation]


def _named(case: Case, outputs: Iterable[Tensor], gradients: Iterable[Tensor]) -> Results:
    results = {str(i): output for i, output in enumerate(outputs)}
    dproduct, dWc, dws = gradients
    assert dproduct.dtype == case.product.dtype
    assert dproduct.shape == case.product.shape
    assert dWc.dtype == dws.dtype == torch.float32
    assert not dproduct[:, case.used :].any()
    for name, found, of in (("dWc", dWc, case.gates.Wc), ("dws", dws, case.gates.ws)):
        if of is None:
            assert found.shape == (0,)
        else:
            results[name] = found
    return results | {"dproduct": dproduct}


def _defined(function: Any, case: Case, *G: Tensor, more: dict[str, Tensor] | None = None) -> Results:
    """The definition's outputs, and its gradients for the outputs' gradients G, in float64."""
    inputs = {"dproduct": case.product, "dWc": case.gates.Wc, "dws": case.gates.ws} | (more or {})
    leaves = {k: None if v is None else v.double().requires_grad_() for k, v in inputs.items()}
    product, Wc, ws, *others = leaves.values()
    outputs = function(product, case.gates._replace(Wc=Wc, ws=ws), *others)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    wanted = {name: leaf for name, leaf in leaves.items() if leaf is not None}
    incoming = [tensor.double() for tensor in G]
    found = torch.autograd.grad(outputs[: len(G)], list(wanted.values()), incoming, materialize_grads=True)
    return {str(i): output.detach() for i, output in enumerate(outputs)} | dict(zip(wanted, found, strict=True))


def assert_agree(results: tuple[Results, Results], tolerance: float) -> None:
    """Both have the same names, shapes, and up to `tolerance`, values."""
    mine, right = results
    assert mine.keys() == right.keys()
    for name, expected in right.items():
        assert mine[name].shape == expected.shape, name
        if expected.numel():
            error = (mine[name].double() - expected).abs().max()
            assert error <= tolerance * expected.abs().max().clamp_min(2), f"{name}: {error:.2e}"


def assert_same_specials(results: tuple[Results, Results]) -> None:
    """NaN and the infinities stand in the same places. Of gradients an infinity may have become NaN: h - h tanh is one
    instruction where h (1 - tanh), which keeps it, is two."""
    mine, right = results
    for name, expected in right.items():
        specials = (torch.isnan, torch.isposinf, torch.isneginf) if name.isdigit() else (torch.isfinite,)
        for what in specials:
            assert same_integers(what(mine[name]), what(expected)), f"{name}: {what.__name__}"


EVERY = pytest.mark.parametrize("operation", RUNS)


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
@settings(max_examples=6)
@given(data=st.data())
def test_any_shape(by, operation, data):
    """Every kind of gates at any of the sites, of any rank; C++ has tiles of 256 channels."""

    def draw(strategy: Any) -> Any:
        return data.draw(strategy)

    kind = draw(st.sampled_from([kind for kind in KINDS if kind != "neither" or by == "cpp"]))
    rank = draw(st.integers(1, 8) if by == "triton" and KINDS[kind][0] else st.sampled_from([1, 2, 5, 16, 20, 64]))
    T, n = draw(st.integers(1, 40)), draw(st.integers(1, 300 if by == "cpp" else 40))
    dtype, gated = draw(st.sampled_from([*TOLERANCE])), draw(st.tuples(*[st.booleans()] * 3))
    case = make(by, T, widths_of(operation, n), rank, kind, dtype, gated, draw(st.integers(0, 4)))
    assert_agree(RUNS[operation](case), TOLERANCE[dtype])


@IMPLEMENTATIONS
@EVERY
def test_matrices_of_any_layout_give_the_same(by, operation):
    """To rounding: a layout decides in which order a product is summed. Triton takes products of columns too."""
    found = []
    for in_columns in (False, True):
        rows, width = (40, 83) if by == "cpp" else (20, 19)  # the interpreter is slow
        case = make(by, rows, widths_of(operation, width), 8, "both", torch.bfloat16)
        Wc, ws = case.gates[:2]
        Wc[Wc > 1.5] += math.inf
        if in_columns:
            case.gates = case.gates._replace(Wc=Wc.T.contiguous().T, ws=ws.T.contiguous().T)
        if in_columns and by == "triton":
            case.product = case.product.T.contiguous().T
        found.append(RUNS[operation](case)[0])
    for name, one in found[0].items():
        far = TOLERANCE[torch.bfloat16] * max(2.0, float(one.abs().nan_to_num(0, 0).max()))
        torch.testing.assert_close(found[1][name], one, rtol=0, atol=far, equal_nan=True)


@IMPLEMENTATIONS
@EVERY
def test_the_same_bits_each_time_and_the_same_numbers_on_one_thread(by, operation):
    rows, width = (200, 80) if by == "cpp" else (20, 24)  # the interpreter is slow

    def run() -> list[torch.Tensor]:
        found, _ = RUNS[operation](make(by, rows, widths_of(operation, width), 2, "both", torch.float32))
        return list(found.values())

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, second = run(), run()
        torch.set_num_threads(1)
        alone = run() if by == "cpp" else second  # Triton's kernels do not run on PyTorch's threads
    finally:
        torch.set_num_threads(before)
    assert_same_bits(second, first, Reason.SAME_CALL)
    for one, other in zip(alone, first, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


@IMPLEMENTATIONS
@pytest.mark.skipif("COMT_ROUNDING" in os.environ, reason="tests/rounding changes what is written, not its norm")
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


@IMPLEMENTATIONS
@EVERY
@SPECIAL
def test_special_activations_and_bottlenecks(by, operation, value, dtype):
    """In rows of three blocks at once. Of heads in v: q and k are read as turned, where a value has spread to its
    partner; of those it is only asked that no other row is lost."""
    widths = widths_of(operation, 19)
    places = [(3, sum(widths) - 1), (12, sum(widths) + 1), *([] if operation == "heads" else [(17, 5)])]
    case = make(by, 21, widths, 4, "both", dtype)
    for place in places:
        case.product[place] = value
    assert_same_specials(RUNS[operation](case))
    if operation == "heads":
        case = make(by, 21, widths, 4, "both", dtype)
        case.product[3, 5] = value
        mine, _ = RUNS[operation](case)
        lost = ~mine["dproduct"].isfinite()
        assert lost.any(1).nonzero().tolist() == [[3]]


@pytest.mark.parametrize(
    ("by", "size"),
    [
        *(pytest.param("cpp", size, marks=IN_CPP) for size in (0.01, 0.3, 4.0, 300.0)),
        ("triton", 0.01),
        ("triton", 300.0),
    ],
)
def test_weights_small_and_large(by, size):
    """In C++ gates whose weights bound their logits to 3 are computed without an exponential. A logit of some thousand
    has an absolute error of 2^-24 of that, a gate the same relative error."""
    case = make(by, 33, [40, 16, 7], 8, "both", torch.float32)
    case.gates = case.gates._replace(Wc=case.gates.Wc * size)
    assert_agree(modulate(case), 1e-5 * max(1, size))


# ---- in C++ alone


NO_GATES = Modulation(None, None, 1.0, 0, (False,))


@IN_CPP
def test_bf16_rounds_to_nearest_even_and_keeps_nan():
    bits = torch.arange(0, 2**31 - 2**16, 2**16 // 4 + 1, dtype=torch.int64)
    values = torch.cat([bits, bits + 0x7F80_0001 - bits.max()]).clamp(max=0x7FFF_FFFF).to(torch.int32)
    values = values.view(torch.float32)
    values = torch.cat([values, -values, torch.tensor([math.nan, math.inf, -math.inf])]).view(-1, 1)
    values = values[~(values.abs() < torch.finfo(torch.float32).tiny)].view(-1, 1)  # subnormal ones may become zero
    product, ones = torch.zeros(len(values), 1, dtype=torch.bfloat16), torch.ones(len(values), 1)
    dx, dproduct, *_ = calls.add_norm_backward(values, product, ones, ones[:, 0], product, NO_GATES, ones[0])
    assert_same_bits(dx, values, Reason.IDENTITY)
    assert_same_bits(dproduct, values.bfloat16(), Reason.EXACT)


@IN_CPP
def test_types_and_shapes_that_do_not_fit_are_refused():
    """A wrong address would be read, and a wrong size written to."""
    one, two = Modulation(None, torch.zeros(1, 8), 1.0, 8, (True,)), (True, True)
    product, gain = torch.randn(4, 24), torch.ones(16)
    of_16, rstd = product[:, :16], product[:, 0]
    how = one._replace(gated=(True, False, False)), torch.ones(3, 4), torch.ones(3, 4), 4, 2
    outputs = calls.heads(torch.randn(4, 72), *how)
    for name, *arguments in (
        *(("modulate", other, one, (16,)) for other in (product.double(), product.to("meta"), product.long())),
        ("modulate_backward", of_16.bfloat16(), product, one, (16,)),
        ("add_norm_backward", of_16, of_16.bfloat16(), of_16, rstd, of_16, NO_GATES, gain),
    ):
        with pytest.raises(TypeError):
            getattr(calls, name)(*arguments)
    for name, *arguments in (
        *(("modulate", torch.randn(shape), one, (16,)) for shape in ((2, 4, 24), (24,))),
        ("add_norm", of_16, product[None], one, gain, 1e-5),
        ("modulate", product[:, :23], one, (16,)),
        ("modulate", product, one._replace(ws=torch.randn(2, 8)), (16,)),
        ("modulate", product, one._replace(ws=None, Wc=torch.randn(15, 8)), (16,)),
        ("modulate", product, one, (8, 8)),
        ("modulate", torch.randn(24, 24).T, one, (16,)),
        ("swiglu", torch.randn(4, 48), one._replace(ws=torch.randn(2, 8), gated=two), 16, 15),
        ("add_norm", of_16, product, one, gain[:15], 1e-5),
        ("add_norm", of_16[:3], product, one, gain, 1e-5),
        ("add_norm_backward", of_16, of_16, of_16, rstd, None, one, gain),
        ("add_norm_backward", of_16, of_16, of_16, rstd[:3], product, one, gain),
        ("heads_backward", *outputs[:3], *outputs, *how, 71),
        ("heads_backward", outputs[1], *outputs[1:3], *outputs, *how, 72),
    ):
        with pytest.raises(ValueError, match=f"{name}|not the shape"):
            getattr(calls, name)(*arguments)
