"""Every Triton kernel on a GPU, at the sizes of real models: values, gradients, determinism, graphs, the compiler.

`pytest tests/gpu/test_kernels_gpu.py -k odd_shapes` is what compute-sanitizer watches (make sanitize).

Tolerances are of the norm of the difference to float64, relative to that of the result. fp32: sums over some thousand
rows or channels. 16 bits: a rounding is up to u of a number, 2^-8 in bf16 and 2^-11 in fp16, and 0.4 u in the root mean
square of many. A value has two, its own and that of what it is made of (y of `add_norm`, matrices of gates): up to 2 u
of a lone number, and 0.6 u of many, which may have u. A gradient has three or four: up to 4 u, or 0.8 u of many, which
may have 3 u of bf16, in fp16 too: there factors of dWc are rounded to bf16, since fp16 has not the range for them.
Of a few numbers there is no such mean, and sums of them may cancel: `test_odd_shapes` takes it of many results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from pairwise import pairwise
from same_bits import Reason, assert_same_bits
from torch import Tensor

from comt_cli.kernels import add_norm, heads, modulate, swiglu
from comt_cli.kernels.gates import Bottleneck, Modulation
from comt_cli.kernels.modulation import modulation_of, reference
from comt_cli.kernels.triton.tiles import TILES

DEVICE = "cuda"
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
    "wide": Gates(False, True, 48, 2.0),
    "narrow": Gates(True, False, 3, 2.0),
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


def problem(
    operation: str, T: int, width: int, gates: Gates, dtype: torch.dtype, seed: int = 0, *, beside_nan: bool = False
) -> Problem:
    """`width` is that of the model, or of the feed-forward layer for swiglu. Three columns of no concern follow.
    `beside_nan`: matrices are parts of wider ones, which have NaN before and behind them in every row."""
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def draw(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        values = torch.randn(shape, generator=generator, device=DEVICE).to(dtype)
        if beside_nan and len(shape) == 2:
            width = (
                -(-shape[1] // 8) * 8 + 16
            )  # rows and the first element begin at multiples of 16 bytes, as models' do
            wider = torch.full((shape[0] + 2, width), torch.nan, dtype=dtype, device=DEVICE)
            values = wider[1:-1, 8 : 8 + shape[1]].copy_(values)
        return values.requires_grad_()

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


def incoming_for(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Random derivatives of the outputs, in their types."""
    generator = torch.Generator(DEVICE).manual_seed(7)
    return [torch.randn(out.shape, generator=generator, device=DEVICE).to(out.dtype) for out in outputs]


def with_gradients(
    outputs: Sequence[Tensor], tensors: Sequence[Tensor | None], incoming: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """The outputs, and the gradients of all tensors that have one, for these or else random derivatives of them."""
    leaves = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    gradients = torch.autograd.grad(outputs, leaves, incoming_for(outputs) if incoming is None else incoming)
    return [*(out.detach() for out in outputs), *gradients]


def in_float64(tensors: Sequence[Tensor | None]) -> list[Any]:
    """Leaves of the same values."""
    return [None if each is None else each.detach().double().requires_grad_(each.requires_grad) for each in tensors]


def check(dtype: torch.dtype, *problems: Problem) -> None:
    """The error of each result, over all problems together; what comes in is as rounded on both sides."""
    errors, scales = [], []
    for of in problems:
        outputs, tensors = of.run(), in_float64(of.tensors)
        incoming = incoming_for(outputs)
        found = with_gradients(outputs, of.tensors, incoming)
        expected = with_gradients(of.expect(tensors), tensors, [each.double() for each in incoming])
        assert [each.shape for each in found] == [each.shape for each in expected]
        errors.append(
            torch.stack([(mine.double() - theirs).norm() for mine, theirs in zip(found, expected, strict=True)])
        )
        scales.append(torch.stack([each.norm() for each in expected]))
    relative = (torch.stack(errors).norm(dim=0) / torch.stack(scales).norm(dim=0)).tolist()
    for i, error in enumerate(relative):
        assert error <= (VALUE if i < len(outputs) else GRADIENT)[dtype], f"{of.operation}: result {i} of {relative}"


@pairwise(operation=OPERATIONS, gates=list(GATES), dtype=BOTH)
def test_at_real_sizes(operation, gates, dtype):
    for width in (1376, 2736, 5461) if operation == "swiglu" else (512, 768, 1024, 2048):
        check(dtype, problem(operation, 4096, width, GATES[gates], dtype))


@pairwise(
    operation=OPERATIONS,
    gates=list(GATES),
    shape=[(1, 2), (37, 43), (77, 200), (130, 129)],
    dtype=list(VALUE),
    beside_nan=[False, True],
)
def test_odd_shapes(operation, gates, shape, dtype, beside_nan):
    """Forty results where one has two channels of a row. A masked lane that multiplies its zero with what lies beside a
    tensor would spread it."""
    count = 40 if shape == (1, 2) else 1
    problems = (problem(operation, *shape, GATES[gates], dtype, seed, beside_nan=beside_nan) for seed in range(count))
    check(dtype, *problems)


@pytest.mark.parametrize("kernel", dict.fromkeys(kernel for kernel, _ in TILES))
def test_every_tile(kernel, monkeypatch):
    """All that `comt bench kernels --tune` tries."""
    for kind, gates in (("channel", "transponder"), ("scalar", "comt"), ("none", "none")):
        for each in TILES[kernel, kind]:
            monkeypatch.setitem(TILES, (kernel, kind), (each,))
            check(torch.bfloat16, problem(kernel.removesuffix("_backward"), 1000, 768, GATES[gates], torch.bfloat16))


@pairwise(
    width_and_rank=[([3, 700, 129], 5), ([2048, 2048, 2048], 48), ([5461, 5461], 8)],
    kinds=["channel", "scalar", "both"],
    dtype=BOTH,
)
def test_the_matrices_of_gates(width_and_rank, kinds, dtype):
    """Wc, ws, and the gradients of the parameters they are made of, odd shapes and those of models; the matrices are
    fp32, also of parameters of 16 bits."""
    widths, rank = width_and_rank
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
    wide = in_float64(tensors)
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


def test_no_rows():
    for operation in OPERATIONS:
        of = problem(operation, 0, 64, GATES["transponder"], torch.bfloat16)
        assert all(not gradient.any() for gradient in with_gradients(of.run(), of.tensors)), operation


EACH = pytest.mark.parametrize(
    ("operation", "gates"),
    [("modulate", "transponder"), ("heads", "comt"), ("swiglu", "transponder"), ("add_norm", "comt")],
)


@EACH
def test_deterministic(operation, gates):
    """Sums over rows go in a fixed order: the same bits, every time."""
    of = problem(operation, 4096, 1376 if operation == "swiglu" else 512, GATES[gates], torch.bfloat16)
    first, *others = (with_gradients(of.run(), of.tensors) for _ in range(5))
    for other in others:
        assert_same_bits(other, first, Reason.SAME_CALL)


@pairwise(operation=OPERATIONS, gates=["transponder", "comt"])
def test_groups_of_several_row_blocks(operation, gates, monkeypatch):
    """What a program adds to its own sums of dWc and the gain, block after block, as it does with a training's rows."""
    monkeypatch.setattr("comt_cli.kernels.triton.launch.processors", lambda _: 5)
    of = problem(operation, 4000, 768, GATES[gates], torch.bfloat16)
    check(torch.bfloat16, of)
    one, two = (with_gradients(of.run(), of.tensors) for _ in range(2))
    assert_same_bits(two, one, Reason.SAME_CALL)


@EACH
def test_in_a_cuda_graph(operation, gates):
    """Captured once, replayed on other values: the same kernels on them, and the same bits as without."""
    of, other = (problem(operation, 512, 256, GATES[gates], torch.bfloat16, seed) for seed in (0, 1))
    expected = with_gradients(other.run(), other.tensors)
    incoming = incoming_for(of.run())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            with_gradients(of.run(), of.tensors, incoming)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = with_gradients(of.run(), of.tensors, incoming)
    with torch.no_grad():
        for mine, theirs in zip(of.tensors, other.tensors, strict=True):
            if mine is not None:
                mine.copy_(theirs)
    graph.replay()
    assert_same_bits(found, expected, Reason.SAME_CALL)


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled():
    """All operations in one graph, forward and backward; what stands around them is fused and rounds differently, by up
    to 2^-8."""
    torch._dynamo.reset()
    problems = [problem(operation, 512, 256, GATES["transponder"], torch.bfloat16) for operation in OPERATIONS]
    tensors = [of.tensors for of in problems]

    def around(*tensors: list[Tensor | None]) -> list[Tensor]:
        outputs = [out for of, mine in zip(problems, tensors, strict=True) for out in of.run(mine)]
        return [torch.tanh(out) for out in outputs]

    flat = [tensor for each in tensors for tensor in each]
    found = with_gradients(torch.compile(around, fullgraph=True)(*tensors), flat)
    for one, other in zip(found, with_gradients(around(*tensors), flat), strict=True):
        assert (one.double() - other.double()).norm() <= 1e-2 * other.double().norm()
    torch._dynamo.reset()


@pytest.mark.parametrize(("operation", "gates"), [("modulate", "comt"), ("swiglu", "transponder")])
def test_more_than_two_thousand_million_elements(operation, gates):
    """Offsets past 2^31: the last rows come out as they do alone."""
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free memory on the device")
    T, width = (400_000, 5461) if operation == "swiglu" else (800_000, 2731)
    generator = torch.Generator(DEVICE).manual_seed(0)
    few = problem(operation, 64, width, GATES[gates], torch.bfloat16)
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
