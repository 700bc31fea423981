"""Every Triton kernel on a GPU, at the sizes of real models: values, gradients, determinism, graphs, the compiler.

`pytest tests/gpu/test_kernels_gpu.py -k odd_shapes` is what compute-sanitizer watches (make sanitize).

Tolerances are of the norm of the difference to float64, relative to that of the result. fp32: sums over some thousand
rows or channels. bf16: a rounding is 2^-9 = 0.002 at most and half that on average; a gradient has three or four. So it
has in fp16, where factors of dWc are rounded to bf16, since fp16 has not the range for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from comt_cli.kernels import add_norm, heads, modulate, swiglu
from comt_cli.kernels.gates import Bottleneck, Modulation
from comt_cli.kernels.modulation import modulation_of, reference

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"),
]
VALUE = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 6e-4}
GRADIENT = {torch.float32: 3e-5, torch.bfloat16: 1.2e-2, torch.float16: 1.2e-2}
BOTH = [torch.float32, torch.bfloat16]
MODULES = {"modulate": modulate, "heads": heads, "swiglu": swiglu, "add_norm": add_norm}
OPERATIONS = list(MODULES)


class Gates(NamedTuple):
    """What the gates of a product are."""

    channel: bool
    scalar: bool
    rank: int
    scale: float


GATES = {
    "none": Gates(False, False, 0, 1.0),
    "comt": Gates(False, True, 2, 1.0),
    "transponder": Gates(True, True, 8, 2.0),
    "wide": Gates(True, False, 48, 2.0),
}


class Problem(NamedTuple):
    """An operation with its arguments: product, Wc, ws and other tensors (with derivatives, but for the rotary tables);
    scale, rank and gated of the gates; and the rest."""

    operation: str
    tensors: list[Tensor | None]
    how: tuple[float, int, tuple[bool, ...]]
    rest: tuple[Any, ...]

    def arguments(self, tensors: list[Any]) -> tuple[Any, ...]:
        product, Wc, ws, *others = tensors
        gates = Modulation(Wc, ws, *self.how)
        if self.operation == "add_norm":
            x, gain = others
            return x, product, gates, gain, *self.rest
        return product, gates, *others, *self.rest

    def run(self, tensors: list[Any] | None = None) -> tuple[Tensor, ...]:
        """What our operator makes of these tensors, or of others like them."""
        operator = getattr(MODULES[self.operation], self.operation)
        return _tuple(operator(*self.arguments(self.tensors if tensors is None else tensors)))

    def expect(self, tensors: list[Any]) -> tuple[Tensor, ...]:
        """What the reference makes of them."""
        found = _tuple(MODULES[self.operation].reference(*self.arguments(tensors)))
        return found[: {"heads": 3, "add_norm": 2}.get(self.operation, 1)]


def _tuple(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def problem(operation: str, T: int, width: int, gates: Gates, dtype: torch.dtype, seed: int = 0) -> Problem:
    """`width` is that of the model, or of the feed-forward layer for swiglu. Three columns of no concern follow."""
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def draw(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        values = torch.randn(shape, generator=generator, device=DEVICE)
        return values.to(dtype).requires_grad_()

    count, head_width, position = (width // 64 or 1), min(width // 2 * 2, 64), max(T // 2, 1)
    widths = {
        "heads": [count * head_width, head_width, head_width],
        "swiglu": [width, width],
        "modulate": [width, width // 2 + 1],
    }.get(operation, [width])
    gated = (gates.rank > 0,) * len(widths)
    columns = sum(widths) + sum(gated) * gates.rank
    fp32 = torch.float32  # what parameters are under autocast
    Wc = draw(sum(widths), gates.rank, dtype=fp32) if gates.channel else None
    ws = draw(sum(gated), gates.rank, dtype=fp32) if gates.scalar else None
    how = (gates.scale, gates.rank, gated)
    tensors = [draw(T, columns + 3), Wc, ws]
    if operation == "modulate":
        return Problem(operation, tensors, how, (widths,))
    if operation == "swiglu":
        return Problem(operation, tensors, how, (width, -(-width // 64) * 64))
    if operation == "add_norm":
        return Problem(operation, [*tensors, draw(T, width), draw(width, dtype=fp32)], how, (1e-6,))
    angle = draw(position, head_width // 2, dtype=fp32).detach()
    return Problem(operation, [*tensors, angle.cos(), angle.sin()], how, (count, 1))


def with_gradients(outputs: tuple[Tensor, ...], tensors: list[Tensor | None]) -> list[Tensor]:
    """The outputs, and the gradients of all tensors that have one, for random derivatives of the outputs."""
    generator = torch.Generator(DEVICE).manual_seed(7)
    incoming = [torch.randn(out.shape, generator=generator, device=DEVICE).to(out.dtype) for out in outputs]
    leaves = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    return [*outputs, *torch.autograd.grad(outputs, leaves, incoming)]


def check(of: Problem, dtype: torch.dtype) -> None:
    tensors = [
        None if tensor is None else tensor.detach().double().requires_grad_(tensor.requires_grad)
        for tensor in of.tensors
    ]
    outputs = of.run()
    expected = with_gradients(of.expect(tensors), tensors)
    for i, (mine, theirs) in enumerate(zip(with_gradients(outputs, of.tensors), expected, strict=True)):
        tolerance = (VALUE if i < len(outputs) else GRADIENT)[dtype]
        assert mine.shape == theirs.shape
        assert (mine.double() - theirs).norm() <= tolerance * theirs.norm(), f"{of.operation}: result {i}"


every_gate = pytest.mark.parametrize(("operation", "gates"), list(itertools.product(OPERATIONS, GATES)))


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@every_gate
def test_at_real_sizes(operation, gates, dtype):
    for width in (1376, 2736, 5461) if operation == "swiglu" else (512, 768, 1024, 2048):
        check(problem(operation, 4096, width, GATES[gates], dtype), dtype)


@pytest.mark.parametrize("dtype", VALUE, ids=str)
@every_gate
@pytest.mark.parametrize(("T", "width"), [(1, 2), (37, 43), (130, 129)])
def test_odd_shapes(operation, T, width, gates, dtype):
    check(problem(operation, T, width, GATES[gates], dtype), dtype)


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("kinds", ["channel", "scalar", "both"])
@pytest.mark.parametrize(("widths", "rank"), [([3, 700, 129], 5), ([2048, 2048, 2048], 48), ([5461, 5461], 8)], ids=str)
def test_the_matrices_of_gates(widths, rank, kinds, dtype):
    """Wc, ws, and the gradients of the parameters they are made of, odd shapes and those of models; the matrices are
    fp32, also of parameters of 16 bits."""
    generator = torch.Generator(DEVICE).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE).to(dtype).requires_grad_()

    def modulation(tensors: list[Tensor], of: Callable[..., tuple[Tensor | None, ...]]) -> tuple[Tensor, ...]:
        found = of(tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :])
        return tuple(W for W in found if W is not None and W.numel())

    def by_the_kernel(B: list[Tensor], log_alpha: list[Tensor]) -> tuple[Tensor | None, ...]:
        pairs = list(zip(B, log_alpha, strict=True))
        channels = pairs[:channel] or [(None, None)] * len(widths)
        scalars = pairs[channel:] or [(None, None)] * len(widths)
        gates = [Bottleneck(Bc, bs, 2.0, a, b) for (Bc, a), (bs, b) in zip(channels, scalars, strict=True)]
        return modulation_of(gates, filled)[:2]

    filled = [width + 3 for width in widths]
    channel = 0 if kinds == "scalar" else len(widths)
    heights = [*widths[:channel], *([] if kinds == "channel" else [1] * len(widths))]
    rows = [*filled[:channel], *heights[channel:]]
    tensors = [*(draw(height, rank) for height in heights), *(draw() for _ in heights)]
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    outputs = modulation(tensors, by_the_kernel)
    right = modulation(wide, lambda B, log_alpha: reference(B, log_alpha, rows, channel))
    assert all(out.dtype == torch.float32 for out in outputs)
    pairs = zip(with_gradients(outputs, tensors), with_gradients(right, wide), strict=True)
    for i, (mine, expected) in enumerate(pairs):
        assert mine.shape == expected.shape
        scale = expected.norm()
        if expected.dim() == 0:  # dlog_alpha: up to 100,000 terms, which cancel, of the size of the matrix's elements
            scale = scale + wide[i - len(outputs) - len(heights)].norm()
        tolerance = VALUE[torch.float32] if i < len(outputs) else GRADIENT[dtype]
        assert (mine.double() - expected).norm() <= tolerance * scale, f"result {i}"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_rows(operation):
    of = problem(operation, 0, 64, GATES["transponder"], torch.bfloat16)
    assert all(not gradient.any() for gradient in with_gradients(of.run(), of.tensors))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_deterministic(operation):
    """Sums over rows go in a fixed order: the same bits, every time."""
    of = problem(operation, 4096, 1376 if operation == "swiglu" else 512, GATES["transponder"], torch.bfloat16)
    first, *others = (with_gradients(of.run(), of.tensors) for _ in range(5))
    for other in others:
        assert all(torch.equal(one, same) for one, same in zip(first, other, strict=True))


@pytest.mark.parametrize("operation", ["modulate", "heads", "swiglu", "add_norm"])
def test_groups_of_several_row_blocks(operation, monkeypatch):
    """What a program adds to its own sums of dWc and the gain, block after block, as it does with a training's rows."""
    monkeypatch.setattr("comt_cli.kernels.triton.launch.backward_programs", lambda *_: 5)
    of = problem(operation, 4000, 768, GATES["transponder"], torch.bfloat16)
    check(of, torch.bfloat16)
    one, two = (with_gradients(of.run(), of.tensors) for _ in range(2))
    assert all(torch.equal(first, second) for first, second in zip(one, two, strict=True))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_in_a_cuda_graph(operation):
    """Captured once, replayed on other values: the same bits as without."""
    gates = GATES["transponder"]
    of, other = (problem(operation, 512, 256, gates, torch.bfloat16, seed) for seed in (0, 1))
    expected = with_gradients(other.run(), other.tensors)
    incoming = [torch.empty_like(out) for out in of.run()]
    generator = torch.Generator(DEVICE).manual_seed(7)
    for tensor in incoming:
        tensor.copy_(torch.randn(tensor.shape, generator=generator, device=DEVICE))
    leaves = [tensor for tensor in of.tensors if tensor is not None and tensor.requires_grad]

    def step() -> list[Tensor]:
        outputs = of.run()
        return [*outputs, *torch.autograd.grad(outputs, leaves, incoming)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        for mine, theirs in zip(of.tensors, other.tensors, strict=True):
            if mine is not None:
                mine.copy_(theirs)
    graph.replay()
    for one, same in zip(found, expected, strict=True):
        torch.testing.assert_close(one, same, rtol=0, atol=0)


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize("operation", OPERATIONS)
def test_compiled(operation):
    """One graph, forward and backward; what stands around the operator is fused and rounds differently, by 2^-9."""
    torch._dynamo.reset()
    of = problem(operation, 512, 256, GATES["transponder"], torch.bfloat16)

    def around(run: Callable[..., tuple[Tensor, ...]], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        return tuple(torch.tanh(out) for out in run(list(tensors)))

    compiled = torch.compile(lambda *tensors: around(of.run, *tensors), fullgraph=True)
    found = with_gradients(compiled(*of.tensors), of.tensors)
    for one, other in zip(found, with_gradients(around(of.run, *of.tensors), of.tensors), strict=True):
        assert (one.double() - other.double()).norm() <= 1e-2 * other.double().norm()


@pytest.mark.parametrize("operation", ["modulate", "swiglu"])
def test_more_than_two_thousand_million_elements(operation):
    """Offsets past 2^31: the last rows come out as they do alone."""
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free memory on the device")
    T, width = (400_000, 5461) if operation == "swiglu" else (800_000, 2731)
    generator = torch.Generator(DEVICE).manual_seed(0)
    few = problem(operation, 64, width, GATES["transponder"], torch.bfloat16)
    row = few.tensors[0].shape[1]
    many = torch.empty(T, row, device=DEVICE, dtype=torch.bfloat16).normal_(generator=generator)
    with torch.no_grad():
        many[-64:] = few.tensors[0]
    many.requires_grad_()
    (found,), (alone,) = few.run([many, *few.tensors[1:]]), few.run()
    assert T * found.shape[1] > 2**31
    # What a program covers depends on the number of rows: a rounding of bf16 may differ.
    torch.testing.assert_close(found[-64:], alone, rtol=2**-7, atol=1e-3)
    G = torch.zeros_like(found)
    G[-64:] = 1
    (mine,), (theirs,) = (
        torch.autograd.grad(out, at, grad)
        for out, at, grad in ((found, many, G), (alone, few.tensors[0], torch.ones_like(alone)))
    )
    assert (mine[-64:].double() - theirs.double()).norm() <= 1e-2 * theirs.double().norm()
    assert not mine[:-64].any()
