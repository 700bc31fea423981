"""The fused batch norm on a GPU, at the sizes of real ResNets: values, gradients, determinism, graphs.

`pytest tests/gpu/test_modulated_norm_gpu.py -k odd_shapes` is what compute-sanitizer can watch.

Tolerances are of the norm of the difference to float64, relative to that of the result. fp32: sums over some hundred
thousand pixels in parts. bf16: a rounding is up to 2^-8 = 0.004 of a number, and 0.4 of that in the root mean square of
many; a gradient has two or three.
"""

from __future__ import annotations

import pytest
import torch
from norm_cases import Case, Kind, assert_operator_agrees, expect, make, run
from pairwise import pairwise
from same_bits import Reason, assert_same_bits

VALUE = {torch.float32: 1e-5, torch.bfloat16: 4e-3}
GRADIENT = {torch.float32: 5e-5, torch.bfloat16: 1.2e-2}
SIZES = {  # pixels of a batch, channels: CIFAR's ResNet-18 at 128 images, ImageNet's last stage, PreAct-110
    "first": (128 * 32 * 32, 64),
    "fourth": (128 * 4 * 4, 512),
    "widest": (64 * 7 * 7, 2048),
    "narrow": (64 * 32 * 32, 16),
}


def check(case: Case, dtype: torch.dtype) -> None:
    found = run(case)
    right = expect(case, found["y"] > 0 if case.kind.relu else None)
    assert found.keys() == right.keys()
    for name, expected in right.items():
        tolerance = (VALUE if name == "y" else GRADIENT)[torch.float32 if name in ("mean", "var") else dtype]
        assert (found[name].double() - expected).norm() <= tolerance * expected.norm(), name


@pairwise(kind=[Kind(), Kind(4), Kind(0, 2), Kind(32, 8, True, True)], dtype=list(VALUE))
def test_at_real_sizes(kind, dtype):
    for size in SIZES.values():
        check(make(*size, kind, dtype, "cuda", rest=-kind.window % 8), dtype)


@pairwise(
    shape=[(7, 3), (37, 43), (259, 515), (5000, 96)],
    window=[0, 3, 19],
    pixel_and_weight=[(0, True), (2, True), (2, False), (5, True)],
    skip=[False, True],
    relu=[False, True],
    dtype=list(VALUE),
)
def test_odd_shapes(shape, window, pixel_and_weight, skip, relu, dtype):
    """And the operator that layers call, which has the same kernels."""
    pixel, weight = pixel_and_weight
    case = make(*shape, Kind(window, pixel, skip, relu, weight), dtype, "cuda")
    check(case, dtype)
    assert_operator_agrees(case)


@pytest.mark.parametrize("size", ["first", "fourth"])
def test_deterministic(size):
    """Sums over pixels go in a fixed order: the same bits, every time."""
    case = make(*SIZES[size], Kind(4, 2, True, True), torch.bfloat16, "cuda", rest=4)
    first, *others = (run(case) for _ in range(5))
    for other in others:
        assert_same_bits(other, first, Reason.SAME_CALL)


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
    assert_same_bits(found, run(case), Reason.SAME_CALL)
