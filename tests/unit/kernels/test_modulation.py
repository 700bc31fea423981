"""The matrices of a product's gates by Triton's kernel against the definition, and what a launch is kept under."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import native_specialize_impl

from comt_cli.kernels import operators
from comt_cli.kernels.gates import Bottleneck
from comt_cli.kernels.modulation import modulation_of, reference
from comt_cli.kernels.modulation import triton as modulation_kernels
from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.sums import MOST, add_groups

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where there is no GPU, conftest.py has them interpreted


@pytest.fixture(autouse=True, scope="module")
def by_triton() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(operators.IMPLEMENTATIONS, "cpu", "triton")
        yield


def gates(widths: list[int], rank: int, kinds: str) -> list[Bottleneck]:
    """`kinds`: c for a channel gate, s for a scalar one."""
    generator = torch.Generator().manual_seed(sum(widths) + rank)

    def random(kind: str, *shape: int) -> Tensor | None:
        return torch.randn(shape, generator=generator).to(DEVICE).requires_grad_() if kind in kinds else None

    return [Bottleneck(random("c", n, rank), random("s", 1, rank), 2.0, random("c"), random("s")) for n in widths]


def with_gradients(each: list[Bottleneck], joined: Sequence[Tensor | None]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Wc and ws, as far as there are, and the gradients of a sum of random multiples of them for every parameter."""
    there = [W for W in joined if W is not None and W.numel()]
    outgoing = [torch.randn(W.shape, generator=torch.Generator().manual_seed(1)).to(W) for W in there]
    parameters = [field for gate in each for field in gate if isinstance(field, Tensor)]
    return there, torch.autograd.grad(there, parameters, outgoing)


def expected_of(each: list[Bottleneck], filled: list[int]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """The same by the definition, in fp64, whatever computes `results` on this device."""

    def widened(field):
        return field.detach().double().requires_grad_() if isinstance(field, Tensor) else field

    wide = [Bottleneck(*map(widened, gate)) for gate in each]
    channel = [(g.Bc, g.log_alpha_c, width) for g, width in zip(wide, filled, strict=True) if g.Bc is not None]
    scalar = [(g.bs, g.log_alpha_s, 1) for g in wide if g.bs is not None]
    return with_gradients(wide, reference(*zip(*channel, *scalar, strict=True), len(channel)))


@given(
    st.lists(st.integers(1, 700), min_size=1, max_size=3), st.integers(1, 20), st.sampled_from(["cs", "c", "s"]),
    st.integers(0, 9),
)  # fmt: skip
def test_the_kernel_is_the_definition(widths, rank, kinds, filling):
    """In fp32, a block and several: one rounding an element, and a sum of at most 14,000 products."""
    filled = [width + filling for width in widths]
    each = gates(widths, rank, kinds)
    expected = expected_of(each, filled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modulation_kernels, "WHOLE_BLOCK", 4096)
        found = with_gradients(each, modulation_of(each, filled)[:2])
    for mine, right in zip((*found[0], *found[1]), (*expected[0], *expected[1]), strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-5, atol=1e-4 if right.dim() == 0 else 1e-6)


@pytest.mark.parametrize("kinds", ["cs", "c", "s"])
def test_pytorch_accepts_the_operators(kinds):
    each = gates([5, 3], 2, kinds)
    channel = [gate.Bc for gate in each if gate.Bc is not None]
    scalar = [gate.bs for gate in each if gate.bs is not None]
    alphas = [gate.log_alpha_c for gate in each if "c" in kinds] + [gate.log_alpha_s for gate in each if "s" in kinds]
    tensors = [[each.detach() for each in part] for part in (channel + scalar, alphas)]
    arguments = *tensors, [5, 3][: len(channel)] + [1] * len(scalar), len(channel)
    torch.library.opcheck(torch.ops.comt.modulation.default, arguments)
    gradients = torch.ops.comt.modulation.default(*arguments)
    torch.library.opcheck(torch.ops.comt.modulation_backward.default, (*gradients, *arguments))


@given(st.integers(0, 200), st.lists(st.integers(0, 70), min_size=0, max_size=MOST))
def test_sums_of_groups(groups, columns):
    parts = [torch.randn(groups, n, generator=torch.Generator().manual_seed(n)).to(DEVICE) for n in columns]
    for mine, part in zip(add_groups(parts), parts, strict=True):
        torch.testing.assert_close(mine, part.double().sum(0).float(), rtol=1e-5, atol=1e-5)


NUMBERS = (0, 1, 2, 15, 16, 17, 32, 2**31 - 1, 2**31, 2**31 + 16, 1.5, None)
TENSORS = [torch.zeros(8, dtype=dtype)[start:] for dtype in (torch.float32, torch.bfloat16) for start in (0, 1, 4)]


def test_what_triton_tells_apart_has_another_key():
    """Of every kind of argument that kernels have: Triton's own function says what it compiles for."""
    told = {}
    for argument in (*NUMBERS, *TENSORS):
        what = native_specialize_impl(CUDABackend, argument, False, True, True)
        key: list[object] = []
        launch._look([argument], key)
        assert told.setdefault(tuple(key), what) == what
