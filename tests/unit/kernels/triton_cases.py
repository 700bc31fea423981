"""Random calls of the kernels' functions, and what autograd makes of the definition in float64 for the same inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from comt_cli.kernels import reference
from comt_cli.kernels import triton as kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where there is no GPU, conftest.py has them interpreted
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = ("both", "channel", "scalar", "comt")

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Of the largest element. float32: sums of at most a few hundred products, 2^-24 each. 16 bits: a result is rounded
once, to 2^-9 (the interpreter cuts instead of rounding: 2^-8), and so is each factor of the sums for dWc and du, in
bf16 for both types; where p is near a constant, as it is, these roundings add up rather than cancel: 2^-8 + 2 * 2^-8,
doubled."""


@dataclass
class Case:
    """A product of gated sites: its tensors, and the arguments that say what they are."""

    product: Tensor
    Wc: Tensor | None
    ws: Tensor | None
    scale: float
    rank: int
    gated: list[bool]
    widths: list[int]
    generator: torch.Generator

    @property
    def gates(self) -> tuple[Any, ...]:
        return self.Wc, self.ws, self.scale, self.rank, self.gated

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(DEVICE, dtype or self.product.dtype)

    @property
    def used(self) -> int:
        return sum(self.widths) + sum(self.gated) * self.rank


def make(
    T: int, widths: list[int], rank: int, kind: str, dtype: torch.dtype, gated: Iterable[bool] | None = None,
    rest: int = 3, seed: int = 0, strided: bool = False,
) -> Case:  # fmt: skip
    """`strided`: the product is some columns of a wider tensor."""
    gated = [True] * len(widths) if gated is None else list(gated)
    generator = torch.Generator().manual_seed(seed)
    count, M = sum(gated), sum(n for n, has in zip(widths, gated, strict=True) if has)
    C = sum(widths) + count * rank + rest
    product = torch.randn(T, C + 5 * strided, generator=generator).to(DEVICE, dtype)[:, 2 * strided : C + 2 * strided]
    Wc, ws = (torch.randn(n, rank, generator=generator).to(DEVICE, dtype) if count else None for n in (M, count))
    return Case(
        product,
        Wc if kind in ("both", "channel") else None,
        ws if kind != "channel" else None,
        1.0 if kind == "comt" else 2.0,
        rank if count else 0,
        gated,
        widths,
        generator,
    )


Results = dict[str, Tensor]


def modulate(case: Case, z_is_output: bool = False) -> tuple[Results, Results]:
    """What the kernels compute, and what is right: outputs and gradients by name. So do the functions below."""
    zhat = kernels.modulate(case.product, *case.gates, case.widths)
    G, M = case.random(*zhat.shape), sum(case.widths)
    z = zhat if z_is_output else case.product[:, :M]
    u = case.product[:, M : case.used]
    gradients = kernels.modulate_backward(
        G, z, u, *case.gates, case.widths, case.product.shape[1], z_is_output=z_is_output
    )
    right = _defined(lambda product, Wc, ws: reference.modulate(product, Wc, ws, *case.gates[2:], case.widths), case, G)
    return _named(case, [zhat], gradients), right


def heads(case: Case, E: int, positions: int) -> tuple[Results, Results]:
    angles = case.random(positions, E // 2, dtype=torch.float32)
    cos, sin = angles.cos(), angles.sin()
    how = (*case.gates, case.widths[0] // E, case.widths[1] // E)
    *qkv, u = kernels.heads(case.product, *how[:2], cos, sin, *how[2:])
    torch.testing.assert_close(u, case.product[:, sum(case.widths) : case.used], rtol=0, atol=0, equal_nan=True)
    assert u.is_contiguous()
    G = [case.random(*tensor.shape) for tensor in qkv]
    gradients = kernels.heads_backward(*G, *qkv, u, *how[:2], cos, sin, *how[2:], case.product.shape[1])
    wide = cos.double(), sin.double()
    right = _defined(lambda product, Wc, ws: reference.heads(product, Wc, ws, *wide, *how[2:])[:3], case, *G)
    return _named(case, qkv, gradients), right


def swiglu(case: Case, padding: int = 3) -> tuple[Results, Results]:
    F = case.widths[0]
    h = kernels.swiglu(case.product, *case.gates, F, F + padding)
    assert not h[:, F:].any()
    G = case.random(*h.shape)
    gradients = kernels.swiglu_backward(G, case.product, *case.gates, F)
    right = _defined(
        lambda product, Wc, ws: reference.swiglu(product, Wc, ws, *case.gates[2:], F, F + padding), case, G
    )
    return _named(case, [h], gradients), right


def add_norm(case: Case, stream: torch.dtype = torch.float32) -> tuple[Results, Results]:
    (D,) = case.widths
    x, gain = case.random(len(case.product), D, dtype=stream), 1 + case.random(D, dtype=torch.float32) / 4
    y, n, rstd = kernels.add_norm(x, case.product, *case.gates[:2], gain, *case.gates[2:], 1e-6)
    assert y.dtype == stream
    dy, dn = case.random(*y.shape, dtype=stream), case.random(*n.shape)
    dx, *gradients, dgain = kernels.add_norm_backward(
        dy, dn, y, rstd, case.product, *case.gates[:2], gain, *case.gates[2:]
    )
    assert dx.dtype == stream
    assert rstd.dtype == dgain.dtype == torch.float32
    right = _defined(
        lambda product, Wc, ws, *more: reference.add_norm(
            more[0], product, Wc, ws, more[1], *case.gates[2:], epsilon=1e-6
        ),
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
    for name, found, of in (("dWc", dWc, case.Wc), ("dws", dws, case.ws)):
        if of is None:
            assert found.shape == (0,)
        else:
            results[name] = found
    return results | {"dproduct": dproduct}


def _defined(function: Any, case: Case, *G: Tensor, more: dict[str, Tensor] | None = None) -> Results:
    """The definition's outputs, and its gradients for the outputs' gradients G, in float64."""
    inputs = {"dproduct": case.product, "dWc": case.Wc, "dws": case.ws} | (more or {})
    leaves = {k: None if v is None else v.double().requires_grad_() for k, v in inputs.items()}
    outputs = function(*leaves.values())
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
    """NaN and the infinities stand in the same places."""
    mine, right = results
    for name, expected in right.items():
        for what in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(what(mine[name]), what(expected)), f"{name}: {what.__name__}"
