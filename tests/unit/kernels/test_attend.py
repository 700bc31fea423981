"""Batched products attend as PyTorch's fused attention does, and take its place by shape, type and processor alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from same_bits import Reason, assert_same_bits, same_bits
from torch import Tensor

from comt_cli.kernels import attend as module
from comt_cli.kernels.attend import FEW_QUERIES, MOST_TOKENS, attend, attention_form
from comt_cli.runs.directory import BATCHED, PYTORCH

CAUSAL, PADDED, CROSS, GROUPED, ROWS, BLIND = "causal", "padded", "cross", "grouped", "a row a query", "nothing seen"
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2}
"""Relative to the largest number. bf16: scores and weights are rounded to 8 bits, 4e-3 each time."""


def operands(case: str, dtype: torch.dtype) -> tuple[list[Tensor], Tensor | None]:
    """q, k, v as views of one product, as the layers have them, and the mask."""
    B, H, T, E = 3, 4, 24, 8
    S, K = {CROSS: 17}.get(case, T), {GROUPED: 2}.get(case, H)
    generator = torch.Generator().manual_seed(1)
    shapes = ((T, H), (S, K), (S, K))
    qkv = [torch.randn(B, *each, E, generator=generator).to(dtype).transpose(1, 2) for each in shapes]
    column_S = torch.arange(S)
    lengths_B = torch.tensor([S, 5, 0 if case == BLIND else 1])
    mask = None if case in (CAUSAL, GROUPED) else (column_S < lengths_B[:, None])[:, None, None]
    if case == ROWS:
        mask = mask & torch.ones(T, S, dtype=torch.bool).tril()
    return qkv, mask


def with_gradients(function, qkv: list[Tensor], **how) -> list[Tensor]:
    leaves = [each.detach().requires_grad_() for each in qkv]
    found = function(*leaves, **how)
    weights = torch.linspace(-1, 1, found.numel()).view_as(found)
    return [found, *torch.autograd.grad((found.float() * weights).sum(), leaves)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", [CAUSAL, PADDED, CROSS, GROUPED, ROWS, BLIND])
def test_it_is_fused_attention_to_rounding(case, dtype):
    """Against fp64, with the gradients; a query that sees nothing finds zeros there too."""
    qkv, mask = operands(case, dtype)
    causal = mask is None
    right = with_gradients(
        F.scaled_dot_product_attention,
        [each.double() for each in qkv],
        **{"attn_mask": mask, "is_causal": causal, "enable_gqa": case == GROUPED},
    )
    found = with_gradients(module._by_batched_products, qkv, mask=mask, causal=causal)
    for mine, other in zip(found, right, strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - other).abs().max() <= TOLERANCE[dtype] * other.abs().max()


def test_it_does_not_see_later_keys():
    qkv, _ = operands(CAUSAL, torch.bfloat16)
    changed = [each.clone() for each in qkv]
    for each in changed:
        each[:, :, 11:] += 1
    before, after = (module._by_batched_products(*each, None, causal=True) for each in (qkv, changed))
    assert_same_bits(after[:, :, :11], before[:, :, :11], Reason.CAUSAL)
    assert not same_bits(after[:, :, 11:], before[:, :, 11:], Reason.CAUSAL)


@pytest.mark.parametrize(
    ("processor", "T", "S", "dtype", "expected"),
    [
        ("Intel AMX", MOST_TOKENS, MOST_TOKENS, torch.bfloat16, BATCHED),
        ("AMD AVX-512", FEW_QUERIES + 1, 1, torch.bfloat16, BATCHED),
        ("Intel AMX", MOST_TOKENS + 1, 16, torch.bfloat16, PYTORCH),
        ("Intel AMX", 16, MOST_TOKENS + 1, torch.bfloat16, PYTORCH),
        ("Intel AMX", FEW_QUERIES, 16, torch.bfloat16, PYTORCH),
        ("Intel AMX", 16, 16, torch.float32, PYTORCH),
        ("Intel AVX-512", 16, 16, torch.bfloat16, PYTORCH),
    ],
)
def test_shape_type_and_processor_choose(monkeypatch, processor, T, S, dtype, expected):
    monkeypatch.setattr(module, "_class", lambda: processor)
    taken = []
    monkeypatch.setattr(module, "_by_batched_products", lambda q, *_, **__: taken.append(BATCHED) or q)
    attend(torch.zeros(1, 1, T, 4, dtype=dtype), *torch.zeros(2, 1, 1, S, 4, dtype=dtype))
    assert (taken or [PYTORCH]) == [expected]
    assert attention_form("cuda", dtype) == PYTORCH
