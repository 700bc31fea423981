"""The fused batch norm on a GPU, at the sizes of real ResNets: values, gradients, determinism, graphs.

`pytest tests/gpu/test_modulated_norm_gpu.py -k odd_shapes` is what compute-sanitizer can watch.

Tolerances are of the norm of the difference to float64, relative to that of the result. fp32: sums over some hundred
thousand pixels in parts. bf16: a rounding is 2^-9 = 0.002 at most and half that on average; a gradient has two or
three.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from norm_cases import EPSILON, KINDS, Case, Kind, assert_operator_agrees, expect, make, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"),
]
VALUE = {torch.float32: 1e-5, torch.bfloat16: 4e-3}
GRADIENT = {torch.float32: 5e-5, torch.bfloat16: 1.2e-2}
SIZES = {  # pixels of a batch, channels: CIFAR's ResNet-18 and 50 at 128 images, ImageNet's last stage, PreAct-110
    "first": (128 * 32 * 32, 64),
    "second": (128 * 16 * 16, 128),
    "third": (128 * 8 * 8, 256),
    "fourth": (128 * 4 * 4, 512),
    "wide": (128 * 8 * 8, 1024),
    "widest": (64 * 7 * 7, 2048),
    "narrow": (64 * 32 * 32, 16),
}
DTYPES = pytest.mark.parametrize("dtype", VALUE, ids=str)


def check(case: Case, dtype: torch.dtype) -> None:
    found = run(case)
    right = expect(case, found["y"] > 0 if case.kind.relu else None)
    assert found.keys() == right.keys()
    for name, expected in right.items():
        tolerance = (VALUE if name == "y" else GRADIENT)[torch.float32 if name in ("mean", "var") else dtype]
        assert (found[name].double() - expected).norm() <= tolerance * expected.norm(), name


@DTYPES
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [Kind(), Kind(4), Kind(0, 2), Kind(32, 8, True, True)], ids=str)
def test_at_real_sizes(kind, size, dtype):
    check(make(*SIZES[size], kind, dtype, "cuda", rest=-kind.window % 8), dtype)


@DTYPES
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_combination(kind, dtype):
    check(make(5000, 96, kind, dtype, "cuda", rest=8 - kind.window), dtype)


@DTYPES
@pytest.mark.parametrize(("P", "C"), [(7, 3), (37, 43), (130, 129), (259, 515)])
@pytest.mark.parametrize("kind", [Kind(3, 2, True, True), Kind(19, 5)], ids=str)
def test_odd_shapes(kind, P, C, dtype):
    check(make(P, C, kind, dtype, "cuda"), dtype)


@pytest.mark.parametrize("size", ["first", "fourth"])
def test_deterministic(size):
    """Sums over pixels go in a fixed order: the same bits, every time."""
    case = make(*SIZES[size], Kind(4, 2, True, True), torch.bfloat16, "cuda", rest=4)
    first, *others = (run(case) for _ in range(5))
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_as_plain_batch_norm():
    """Without gates it is PyTorch's, up to the rounding of the result."""
    case = make(*SIZES["second"], Kind(relu=True), torch.bfloat16, "cuda", rest=0)
    product, *_, weight, bias, _ = case.tensors
    expected = torch.relu(
        torch.nn.functional.batch_norm(product.float(), None, None, weight, bias, training=True, eps=EPSILON)
    )
    assert (run(case)["y"].float() - expected).norm() <= VALUE[torch.bfloat16] * expected.norm()


def test_a_relu_lets_nan_through():
    """In its channel alone; the maximum of CUDA, unlike that of the interpreter, would lose it."""
    case = make(4096, 64, Kind(skip=True, relu=True), torch.bfloat16, "cuda", rest=0)
    case.tensors[0][3, 5] = torch.nan
    found = run(case)
    for name in ("y", "product"):
        assert found[name].isnan().all(0).nonzero().flatten().tolist() == [5], name
        assert found[name].isnan().any(0).nonzero().flatten().tolist() == [5], name


def test_in_a_cuda_graph():
    """Captured once, replayed on other values: the same bits as without."""
    case, other = (make(4096, 64, Kind(4, 2, True, True), torch.bfloat16, "cuda", 4, seed=seed) for seed in (0, 1))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(case)  # compiles
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(case)
    for mine, theirs in zip([*case.tensors, case.dy], [*other.tensors, other.dy], strict=True):
        mine.copy_(theirs)
    graph.replay()
    right = run(dataclasses.replace(case))
    assert all(torch.equal(found[name], right[name]) for name in right)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_through_the_operator(kind):
    """The operator that layers call has the same gradients."""
    assert_operator_agrees(make(4096, 64, kind, torch.bfloat16, "cuda", rest=-kind.window % 8))
