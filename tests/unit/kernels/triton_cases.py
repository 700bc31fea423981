"""Random calls of the kernels' functions, and what autograd makes of the definition in float64 for the same inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from same_bits import Reason, assert_same_bits, same_integers
from torch import Tensor

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from comt_cli.kernels.add_norm import reference as defined_add_norm
from comt_cli.kernels.add_norm import triton as add_norm_kernels
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.heads import reference as defined_heads
from comt_cli.kernels.heads import triton as heads_kernels
from comt_cli.kernels.modulate import reference as defined_modulate
from comt_cli.kernels.modulate import triton as modulate_kernels
from comt_cli.kernels.swiglu import reference as defined_swiglu
from comt_cli.kernels.swiglu import triton as swiglu_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where there is no GPU, conftest.py has them interpreted
interpreted_only = pytest.mark.skipif(DEVICE == "cuda", reason="compiled for many shapes: tests/gpu has fewer of them")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = ("both", "channel", "scalar", "comt")

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Of the largest element. float32: sums of at most a few hundred products, 2^-24 each. 16 bits: a result is rounded
once, to 2^-8 (the interpreter cuts instead of rounding: 2^-7), and so is each factor of the sums for dWc and du, in
bf16 for both types; where p is near a constant, as it is, these roundings add up rather than cancel, to half of their
greatest size in the middle: 2^-8 + 2 * 2^-8, and some room."""


@dataclass
class Case:
    """A product of gated sites."""

    product: Tensor
    gates: Modulation
    widths: list[int]
    generator: torch.Generator

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(DEVICE, dtype or self.product.dtype)

    @property
    def used(self) -> int:
        return sum(self.widths) + self.gates.columns


def make(
    T: int, widths: list[int], rank: int, kind: str, dtype: torch.dtype, gated: Iterable[bool] | None = None,
    rest: int = 3, seed: int = 0, strided: bool = False,
) -> Case:  # fmt: skip
    """`strided`: the product is some columns of a wider tensor, which has NaN beside them."""
    gated = (True,) * len(widths) if gated is None else tuple(gated)
    generator = torch.Generator().manual_seed(seed)
    count, M = sum(gated), sum(n for n, has in zip(widths, gated, strict=True) if has)
    C = sum(widths) + count * rank + rest
    wide = torch.full((T, C + 5 * strided), torch.nan, dtype=dtype, device=DEVICE)
    product = wide[:, 2 * strided : C + 2 * strided].copy_(torch.randn(T, C, generator=generator))
    Wc, ws = (torch.randn(n, rank, generator=generator).to(DEVICE, dtype) if count else None for n in (M, count))
    gates = Modulation(
        Wc if kind in ("both", "channel") else None,
        ws if kind != "channel" else None,
        1.0 if kind == "comt" else 2.0,
        rank if count else 0,
        gated,
    )
    return Case(product, gates, widths, generator)


Results = dict[str, Tensor]


def modulate(case: Case) -> tuple[Results, Results]:
    """What the kernels compute, and what is right: outputs and gradients by name. So do the functions below."""
    zhat = modulate_kernels.modulate(case.product, case.gates, case.widths)
    G = case.random(*zhat.shape)
    gradients = modulate_kernels.modulate_backward(G, case.product, case.gates, case.widths)
    right = _defined(partial(defined_modulate, widths=case.widths), case, G)
    return _named(case, [zhat], gradients), right


def heads(case: Case, E: int, positions: int) -> tuple[Results, Results]:
    angles = case.random(positions, E // 2, dtype=torch.float32)
    tables, counts = (angles.cos(), angles.sin()), (case.widths[0] // E, case.widths[1] // E)
    *qkv, u = heads_kernels.heads(case.product, case.gates, *tables, *counts)
    assert_same_bits(u, case.product[:, sum(case.widths) : case.used], Reason.MOVED)
    assert u.is_contiguous()
    G = [case.random(*tensor.shape) for tensor in qkv]
    columns = case.product.shape[1]
    gradients = heads_kernels.heads_backward(*G, *qkv, u, case.gates, *tables, *counts, columns)
    wide = [table.double() for table in tables]
    right = _defined(lambda product, gates: defined_heads(product, gates, *wide, *counts)[:3], case, *G)
    return _named(case, qkv, gradients), right


def swiglu(case: Case, padding: int = 3) -> tuple[Results, Results]:
    F = case.widths[0]
    h = swiglu_kernels.swiglu(case.product, case.gates, F, F + padding)
    assert not h[:, F:].any()
    G = case.random(*h.shape)
    gradients = swiglu_kernels.swiglu_backward(G, case.product, case.gates, F)
    right = _defined(partial(defined_swiglu, width=F, padded=F + padding), case, G)
    return _named(case, [h], gradients), right


def add_norm(case: Case, stream: torch.dtype = torch.float32) -> tuple[Results, Results]:
    (D,) = case.widths
    x, gain = case.random(len(case.product), D, dtype=stream), 1 + case.random(D, dtype=torch.float32) / 4
    y, n, rstd = add_norm_kernels.add_norm(x, case.product, case.gates, gain, 1e-6)
    assert y.dtype == stream
    dy, dn = case.random(*y.shape, dtype=stream), case.random(*n.shape)
    dx, *gradients, dgain = add_norm_kernels.add_norm_backward(dy, dn, y, rstd, case.product, case.gates, gain)
    assert dx.dtype == stream
    assert rstd.dtype == dgain.dtype == torch.float32
    right = _defined(
        lambda product, gates, x, gain: defined_add_norm(x, product, gates, gain, 1e-6),
        case,
        dy,
        dn,
        more={"dx": x, "dgain": gain},
    )
    return _named(case, [y, n, rstd], gradients) | {"dx": dx, "dgain": dgain}, right


def _named(case: Case, outputs: Iterable[Tensor], gradients: Iterable[Tensor]) -> Results:
    results = {str(i): output for i, output in enumerate(outputs)}
    dproduct, dWc, dws = gradients
    assert dproduct.dtype == results["0"].dtype or "2" in results  # add_norm: the first output is the stream
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
    found = torch.autograd.grad(outputs[: len(G)], list(wanted.values()), [tensor.double() for tensor in G])
    return {str(i): output.detach() for i, output in enumerate(outputs)} | dict(zip(wanted, found, strict=True))


def assert_agree(results: tuple[Results, Results], tolerance: float) -> None:
    """Both have the same names, shapes, and up to `tolerance` of the largest element, values."""
    mine, right = results
    assert mine.keys() == right.keys()
    for name, expected in right.items():
        assert mine[name].shape == expected.shape, name
        if expected.numel():
            error = (mine[name].double() - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
            assert error <= tolerance, f"{name}: {error:.2e}"


def assert_same_specials(results: tuple[Results, Results]) -> None:
    """NaN and the infinities stand in the same places. Of gradients an infinity may have become NaN: h - h tanh is one
    instruction where h (1 - tanh), which keeps it, is two."""
    mine, right = results
    for name, expected in right.items():
        specials = (torch.isnan, torch.isposinf, torch.isneginf) if name.isdigit() else (torch.isfinite,)
        for what in specials:
            assert same_integers(what(mine[name]), what(expected)), f"{name}: {what.__name__}"
