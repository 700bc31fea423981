"""Changes of `make test-rounding`, and what it leaves: without these tests it could be green because it is off."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from same_bits import Reason, assert_same_bits, differ
from torch import Tensor

if not os.environ.get("COMT_ROUNDING"):
    pytest.skip("for make test-rounding", allow_module_level=True)

IMAGE, FILTERS = (2, 3, 8, 8), (4, 3, 3, 3)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def gradients(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Tensor:
    """Gradients of all operands, in one row."""
    operands = [random(*shape).requires_grad_() for shape in shapes]
    y = function(*operands)
    (y * random(*y.shape).flip(0)).sum().backward()
    return torch.cat([each.grad.flatten() for each in operands if each.grad is not None])


CHANGED: dict[str, Callable[[], Tensor]] = {
    "mm": lambda: random(5, 9) @ random(9, 7),
    "mm.out": lambda: torch.mm(random(5, 9), random(9, 7), out=torch.empty(5, 7)),
    "addmm_": lambda: random(5, 7).addmm_(random(5, 9), random(9, 7)),
    "bmm": lambda: torch.bmm(random(2, 5, 9), random(2, 9, 7)),
    "linear": lambda: F.linear(random(5, 9), random(7, 9), random(7)),
    "convolution backward": lambda: gradients(F.conv2d, IMAGE, FILTERS),
    "attention backward": lambda: gradients(causal, *[(2, 3, 8, 4)] * 3),
    "products in bf16": lambda: random(32, 9, dtype=torch.bfloat16) @ random(9, 32, dtype=torch.bfloat16),
    "products in fp64": lambda: random(5, 9, dtype=torch.float64) @ random(9, 7, dtype=torch.float64),
    "sum": lambda: random(40, 6).sum(0),
    "norms of a list": lambda: torch.stack(torch._foreach_norm([random(3), random(40, 6)] * 8)),
    "softmax backward": lambda: gradients(lambda x: x.softmax(1), (40, 6)),
    "layer norm backward": lambda: gradients(lambda x: F.layer_norm(x, (6,)), (40, 6)),
    "batch norm": lambda: F.batch_norm(random(*IMAGE), None, None, training=True),
    "embedding backward": lambda: gradients(lambda W: F.embedding(torch.arange(12) % 5, W), (40, 6)),
}
"""Of each kind of operator: results, results in place, gradients, lists, and every type."""


@pytest.fixture
def another_seed(monkeypatch):
    """A function that gives the errors another seed."""
    import other_processor

    def change() -> None:
        monkeypatch.setattr(other_processor, "SEED", "another")
        other_processor._errors.clear()

    yield change
    other_processor._errors.clear()


def test_every_operator_of_the_list_is_replaced():
    import other_processor

    names = {*other_processor.PRODUCTS, *other_processor.SUMS}
    if not torch.backends.mkldnn.is_available():
        names -= {"mkldnn::_linear_pointwise"}
    assert {*other_processor.REPLACED} == names


@pytest.mark.parametrize("name", CHANGED)
def test_a_seed_decides_the_last_bits(name, another_seed):
    first, again = CHANGED[name](), CHANGED[name]()
    assert_same_bits(first, again, Reason.SAME_CALL, name)
    another_seed()
    other = CHANGED[name]()
    assert differ(first, other)
    near = {torch.bfloat16: 2**-6, torch.float32: 2**-18, torch.float64: 2**-47}[first.dtype]
    torch.testing.assert_close(first, other, rtol=near, atol=near * float(first.abs().max()))


def test_a_row_alone_has_other_bits_than_among_others():
    a, b = random(64, 9), random(9, 7)
    assert differ((a @ b)[:1], a[:1] @ b)


def test_what_every_processor_computes_exactly_stays():
    a, b = torch.arange(45.0).view(5, 9), torch.arange(63.0).view(9, 7)
    expected = (a.long() @ b.long()).float()
    zeros = torch.zeros(5, 7)
    for found in (a @ b, torch.addmm(zeros, a, b), zeros.clone().addmm_(a, b), (a / 16) @ (b / 16) * 256):
        assert_same_bits(found, expected, Reason.EXACT, "a product of integers")
    pairs = random(2, 40)
    assert_same_bits(pairs.sum(0), pairs[0] + pairs[1], Reason.EXACT, "a sum of two")


def gated(x: Tensor) -> Tensor:
    """An operation of comt's in C++."""
    from comt_cli.kernels.gates import Modulation
    from comt_cli.kernels.swiglu import swiglu

    return swiglu(x, Modulation(None, None, 1.0, 1, (False, False)), x.shape[1] // 2, x.shape[1] // 2)


def test_operations_in_cpp_are_changed(another_seed):
    first = gated(random(6, 32))
    assert_same_bits(first, gated(random(6, 32)), Reason.SAME_CALL, "swiglu")
    another_seed()
    assert differ(first, gated(random(6, 32)))


def product() -> list[float]:
    return CHANGED["mm"]().flatten().tolist()


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_other_processes_compute_alike(how):
    with multiprocessing.get_context(how).Pool(1) as pool:
        assert pool.apply(product) == product()
