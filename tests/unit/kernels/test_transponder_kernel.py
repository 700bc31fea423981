"""Transponder's fused gates, forward and closed-form backward, against autograd on the definition.

float64: sums of at most a few hundred products, 1e-11 relative to the largest element.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from same_bits import differ
from torch import Tensor

from comt_cli.kernels.gates import transponder_gate, transponder_gated

NAMES = ("z", "u", "Bc", "ac", "bs", "as")


def inputs(leading: tuple[int, ...], N: int, r: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(*leading, N), (*leading, r), (N, r), (), (1, r), ()]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    tensors[3], tensors[5] = tensors[3].exp(), tensors[5].exp()  # alpha is positive
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def with_gradients(function, arguments: list[Tensor]) -> dict[str, Tensor]:
    """Value and six gradients, for an uneven weighting of the outputs."""
    value = function(*arguments)
    weights = torch.linspace(-1, 2, value.numel(), dtype=torch.float64).view(value.shape).to(value.dtype)
    gradients = torch.autograd.grad((value * weights).sum(), arguments)
    return {"value": value.detach(), **dict(zip(NAMES, gradients, strict=True))}


@given(st.integers(1, 17), st.integers(1, 3), st.integers(1, 19), st.integers(1, 9), st.integers(0, 5))
def test_odd_shapes(T, B, N, r, seed):
    def defined(z: Tensor, u: Tensor, Bc: Tensor, ac: Tensor, bs: Tensor, as_: Tensor) -> Tensor:
        return z * transponder_gate(u, Bc, ac) * transponder_gate(u, bs, as_)

    mine, expected = (with_gradients(of, inputs((B, T), N, r, seed=seed)) for of in (transponder_gated, defined))
    for name, truth in expected.items():
        assert mine[name].shape == truth.shape, name
        assert (mine[name] - truth).abs().max() <= 1e-11 * max(truth.abs().max().item(), 1e-30), name


def test_a_small_change_of_alpha_is_felt_in_bf16_mixed():
    """1.003 is 1 in bf16; times B in fp32 it moves what is rounded afterwards."""
    z, u, Bc, _, bs, _ = inputs((64,), 48, 8, torch.float32)
    one = torch.ones((), dtype=torch.float32)
    z, u = z.detach().to(torch.bfloat16), u.detach().to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        start = transponder_gated(z, u, Bc, one, bs, one)
        assert differ(transponder_gated(z, u, Bc, 1.003 * one, bs, one), start)
        assert differ(transponder_gated(z, u, Bc, one, bs, 1.003 * one), start)
