"""Every Triton kernel on a GPU, at the sizes of real models: values, gradients, determinism, graphs, the compiler.

`pytest tests/gpu/test_kernels_gpu.py -k odd_shapes` is what compute-sanitizer watches (make sanitize).

Tolerances are of the norm of the difference to float64, relative to that of the result. fp32: sums over some thousand
rows or channels. bf16: a rounding is up to u = 2^-8 of a number, and 0.4 u in the root mean square of many. A value has
two, its own and that of what it is made of (y of `add_norm`, matrices of gates): up to 2 u of a lone number, and 0.6 u
of many, which may have u. A gradient has three or four: up to 4 u, or 0.8 u of many, which may have 3 u.
Of a few numbers there is no such mean, and sums of them may cancel: `test_odd_shapes` takes it of many results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from pairwise import pairwise
from same_bits import Reason, assert_same_bits
from torch import Tensor

from comt_cli.kernels import add_norm, heads, modulate, swiglu
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton.tiles import TILES

DEVICE = "cuda"
VALUE = {torch.float32: 1e-5, torch.bfloat16: 4e-3}
GRADIENT = {torch.float32: 3e-5, torch.bfloat16: 1.2e-2}
MODULES = {"modulate": modulate, "heads": heads, "swiglu": swiglu, "add_norm": add_norm}
OPERATIONS = list(MODULES)


class Gates(NamedTuple):
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
        """Results of our operator for these tensors, or of others like them."""
        operator = getattr(MODULES[self.operation], self.operation)
        return _tuple(operator(*self.arguments(self.tensors if tensors is None else tensors)))

    def expect(self, tensors: list[Any]) -> tuple[Tensor, ...]:
        """Results of the reference for them."""
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
            # Rows and the first element begin at multiples of 16 bytes, as models' do.
            width = -(-shape[1] // 8) * 8 + 16
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
        pairs = zip(found, expected, strict=True)
        errors.append(torch.stack([(mine.double() - theirs).norm() for mine, theirs in pairs]))
        scales.append(torch.stack([each.norm() for each in expected]))
    relative = (torch.stack(errors).norm(dim=0) / torch.stack(scales).norm(dim=0)).tolist()
    for i, error in enumerate(relative):
        assert error <= (VALUE if i < len(outputs) else GRADIENT)[dtype], f"{of.operation}: result {i} of {relative}"


@pairwise(operation=OPERATIONS, gates=list(GATES), dtype=list(VALUE))
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


@pairwise(operation=OPERATIONS, gates=["transponder", "comt"])
def test_groups_of_several_row_blocks(operation, gates, monkeypatch):
    """What a program adds to its own sums of dWc and the gain, block after block, as it does with a training's rows: in
    a fixed order, so the same bits every time."""
    monkeypatch.setattr("comt_cli.kernels.triton.launch.processors", lambda _: 5)
    of = problem(operation, 4000, 768, GATES[gates], torch.bfloat16)
    check(torch.bfloat16, of)
    one, two = (with_gradients(of.run(), of.tensors) for _ in range(2))
    assert_same_bits(two, one, Reason.SAME_CALL)


@pairwise(operation=OPERATIONS, gates=["transponder", "comt"])
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
