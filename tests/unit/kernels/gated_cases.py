"""Random calls of the operations on gated sites, in C++ and in Triton, and what autograd makes of the definition in
float64 for the same inputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from same_bits import Reason, assert_same_bits, same_integers
from torch import Tensor

from comt_cli.kernels import add_norm as defined_add_norm
from comt_cli.kernels import heads as defined_heads
from comt_cli.kernels import modulate as defined_modulate
from comt_cli.kernels import swiglu as defined_swiglu
from comt_cli.kernels.cpu import build, calls
from comt_cli.kernels.gates import Modulation

pytest.importorskip("triton", reason="Triton exists for Linux alone")

DEVICES = {"cpp": "cpu", "triton": "cuda" if torch.cuda.is_available() else "cpu"}
"""Where there is no GPU, conftest.py has Triton's kernels interpreted."""
IN_CPP = pytest.mark.skipif(build.available() is not None, reason=str(build.available()))
IMPLEMENTATIONS = pytest.mark.parametrize("by", [pytest.param("cpp", marks=IN_CPP), "triton"])
QUICK = pytest.mark.parametrize(
    "by", [pytest.param("cpp", marks=IN_CPP), pytest.param("triton", marks=pytest.mark.slow)]
)
"""Without Triton, whose kernels are interpreted for seconds, where other cases have it."""
DTYPES = {"cpp": (torch.float32, torch.bfloat16), "triton": (torch.float32, torch.bfloat16, torch.float16)}
KINDS = {"both": (True, True, 2.0), "channel": (True, False, 2.0), "scalar": (False, True, 2.0),
         "comt": (False, True, 1.0), "neither": (False, False, 2.0)}  # fmt: skip
"""Channel gates, scalar gates, scale. "neither": u columns without gates that read them, which C++ alone takes."""

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Of the largest element, or of 2: sums have terms of size one. float32: sums of at most a few hundred products, 2^-24
each, and a logistic function to 6e-7. 16 bits: a result is rounded once, to 2^-8 (the interpreter cuts instead: 2^-7),
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
    assert_same_bits(u, case.product[:, sum(case.widths) : case.used], Reason.MOVED)
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


RUNS: dict[str, Callable[[Case], tuple[Results, Results]]] = {
    "modulate": modulate, "heads": heads, "swiglu": swiglu, "add_norm": add_norm,
}  # fmt: skip


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
