"""The gated projection: the Triton kernel, interpreted, and the operator over both implementations, against float64.

Tolerances. The kernel accumulates in fp32: a sum of at most 100 products, some tens of roundings of 6e-8. In a 16-bit
type one rounding of the result is added, where the reference is given the kernel's own u: 2^-12 of it in fp16, and in
bf16, which Triton's interpreter cuts off where hardware rounds, 2^-7. Gradients go through a second product whose
factors were rounded, and zhat itself stands for z: a few roundings, relative to the largest gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import triton
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from comt_cli.kernels import choice, ops, reference
from comt_cli.kernels import triton as triton_kernels
from comt_cli.kernels.projection import gated_projection
from comt_cli.kernels.triton.projection import UNALIGNED, projection, tiles_for
from comt_cli.kernels.tuning import Tiles, configuration

SUM = {torch.float32: 2e-6, torch.bfloat16: 1e-4, torch.float16: 2e-6}
"""Of the largest element: sums, and in bf16 what two parts of a factor leave of it, 2^-14 if both are cut off."""
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-11}
GRADIENT = {torch.float32: 5e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}
DTYPES = pytest.mark.parametrize("dtype", SUM, ids=str)
KINDS = [(True, True), (True, False), (False, True)]
GATES = pytest.mark.parametrize(("channel", "scalar"), KINDS)
SAME_PASS = pytest.mark.parametrize("same_pass", [True, False], ids=["same pass", "two phases"])

interpreted = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="Triton compiles for the GPU here: tests/gpu has these checks"
)


class Case(NamedTuple):
    """What goes into a projection. Gates' second layers are fp32, as parameters are."""

    x: Tensor
    weight: Tensor
    A: Tensor
    Wc: Tensor | None
    ws: Tensor | None
    bias: Tensor | None


def case(T=37, D=50, N=45, R=8, dtype=torch.float32, channel=True, scalar=True, bias=True, seed=0) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, std: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * std

    x, weight, A = draw(T, D), draw(N, D, std=D**-0.5), draw(R, D, std=D**-0.5)
    Wc, ws, b = draw(N, R), draw(1, R), draw(N)
    return Case(
        x.to(dtype), weight.to(dtype), A.to(dtype), Wc if channel else None, ws if scalar else None, b if bias else None
    )


def wide(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().double()


def expected(inputs: Case, u: Tensor | None = None, scale: float = 2.0) -> Tensor:
    """The reference in the type of the inputs, with their u or with the one given."""
    z = inputs.x @ inputs.weight.T
    if inputs.bias is not None:
        z = z + inputs.bias
    product = torch.cat([z, inputs.x @ inputs.A.T if u is None else u], -1)
    return reference.modulate(product, inputs.Wc, inputs.ws, scale, len(inputs.A), [True], [len(inputs.weight)])


def tiles(same_pass: bool = True, rows: int = 32, columns: int = 64, inner: int = 32) -> Tiles:
    return Tiles(rows, columns, inner, group=2, warps=4, stages=3, registers=0, same_pass=same_pass)


def check_forward(inputs: Case, chosen: Tiles, scale: float = 2.0) -> None:
    dtype = inputs.x.dtype
    zhat, u = projection(*inputs, scale, chosen)
    assert zhat.dtype == u.dtype == dtype
    inputs64 = Case(*map(wide, inputs))
    u64 = inputs64.x @ inputs64.A.T
    torch.testing.assert_close(u.double(), u64, rtol=ROUNDING[dtype], atol=SUM[dtype] * float(u64.abs().amax()))
    zhat64 = expected(inputs64, u.double(), scale)
    torch.testing.assert_close(
        zhat.double(), zhat64, rtol=ROUNDING[dtype], atol=SUM[dtype] * float(zhat64.abs().amax())
    )


# ---- the kernel


@interpreted
@given(
    st.tuples(st.integers(1, 70), st.integers(1, 70), st.integers(1, 100), st.integers(1, 40)),
    st.booleans(),
    st.sampled_from(list(SUM)),
    st.booleans(),
    st.sampled_from(KINDS),
)
@example((37, 50, 45, 100), True, torch.float32, True, KINDS[0])  # in parts, and never in the same pass
@example((70, 64, 96, 17), True, torch.bfloat16, False, KINDS[0])  # padded to 32
def test_any_shape(shape, same_pass, dtype, bias, kind):
    inputs = case(*shape, dtype, *kind, bias=bias)
    check_forward(inputs, tiles(same_pass, rows=16, inner=16), scale=2.0 if bias else 1.0)


@interpreted
def test_the_tables_tiles():
    """What a launch takes unasked, aligned or not, and the widest tile, whose gate is computed in eight parts."""
    check_forward(case(40, 64, 72, dtype=torch.bfloat16), configuration("projection", 72, 64, 40, torch.bfloat16))
    aligned, unaligned = case(3, 64, 8), case(3, 61, 8)
    assert tiles_for(aligned.x, aligned.weight) == configuration("projection", 8, 64, 3, torch.float32)
    assert tiles_for(unaligned.x, unaligned.weight) == UNALIGNED
    check_forward(unaligned, UNALIGNED)
    for same_pass in (True, False):
        check_forward(case(150, 70, 300, 40, torch.bfloat16), tiles(same_pass, rows=128, columns=256, inner=64))


@interpreted
@SAME_PASS
def test_rows_apart(same_pass):
    """x, W, A and Wc are columns of something wider. What lies between is not read.

    The library behind u = x A^T may add strided operands in another order: they agree to the rounding of sums, and to
    the bit on some processors alone.
    """
    inputs = case(20, 33, 21)
    apart = Case(
        *(torch.cat([t, torch.full_like(t, torch.nan)], -1)[:, : t.shape[-1]] for t in inputs[:4]), *inputs[4:]
    )
    found, same = (projection(*each, 2.0, tiles(same_pass)) for each in (apart, inputs))
    for one, other in zip(found, same, strict=True):
        bound = SUM[torch.float32] * other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=ROUNDING[torch.float32], atol=bound)


@interpreted
@DTYPES
@SAME_PASS
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # says NumPy, in the interpreter
def test_what_is_not_finite_travels(dtype, same_pass):
    inputs = case(40, 20, 40, dtype=dtype)
    inputs.x[3, 5], inputs.x[17, 0], inputs.x[18, 19] = torch.inf, torch.nan, -torch.inf
    inputs.weight[7, 2] = torch.nan
    inputs.Wc[4, 1], inputs.Wc[5, 1] = torch.inf, -torch.inf  # an open and a shut gate
    inputs.bias[6] = torch.inf
    zhat, u = projection(*inputs, 2.0, tiles(same_pass, rows=16))
    zhat64 = expected(Case(*map(wide, inputs)), u.double())
    torch.testing.assert_close(zhat.double(), zhat64, rtol=ROUNDING[dtype], atol=10 * SUM[dtype], equal_nan=True)
    assert zhat.isnan().any()
    assert zhat.isinf().any()
    assert zhat.isfinite().sum() > 36 * 38


@interpreted
@pytest.mark.parametrize("gate_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_shut_gate_keeps_its_digits(dtype, gate_dtype):
    """A gate of e^-16 is wrong by as much, relative to it, as its logit is: p in bf16 alone would make that 3 %."""
    inputs = case(40, 16, 40, dtype=dtype, scalar=False, bias=False)
    inputs = inputs._replace(
        x=inputs.x.abs(), weight=inputs.weight.abs() * 64, Wc=(-4 - 0.01 * inputs.Wc.abs()).to(gate_dtype)
    )
    zhat, u = projection(*inputs, 2.0, tiles())
    rtol = ROUNDING[dtype] + 2e-3  # 16 logits' worth of 2^-14
    torch.testing.assert_close(zhat.double(), expected(Case(*map(wide, inputs)), u.double()), rtol=rtol, atol=1e-7)


@interpreted
@SAME_PASS
def test_no_rows(same_pass):
    zhat, u = projection(*case(T=0), 2.0, tiles(same_pass))
    assert (zhat.shape, u.shape) == ((0, 45), (0, 8))


def test_what_the_kernel_refuses():
    with pytest.raises(ValueError, match="1 to 128"):
        projection(*case(R=129), 2.0)
    with pytest.raises(ValueError, match="1 to 128"):
        projection(*case(channel=False, scalar=False), 2.0)
    with pytest.raises(ValueError, match="one type"):
        projection(*case()._replace(x=torch.zeros(2, 50, dtype=torch.bfloat16)), 2.0)


# ---- the operator


@pytest.fixture(params=["triton", "cpu"])
def implementation(request, monkeypatch):
    """Both, on CPU tensors: the Triton kernels interpreted, and the C++ ones behind a library product."""
    if request.param == "cpu":
        if (obstacle := choice.cpu_obstacle()) is not None:
            pytest.skip(obstacle)
    elif not triton.knobs.runtime.interpret:
        pytest.skip("Triton compiles for the GPU here: tests/gpu has these checks")
    else:
        monkeypatch.setitem(ops.IMPLEMENTATIONS, "cpu", lambda: triton_kernels)
        monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: None)
    return request.param


def leaves(inputs: Case) -> Case:
    return Case(*(None if tensor is None else tensor.detach().clone().requires_grad_() for tensor in inputs))


def gradients(zhat: Tensor, inputs: Case, seed: int = 1) -> list[Tensor]:
    """zhat, and the gradients of everything there is for a fixed dL/dzhat."""
    G = torch.randn(zhat.shape, generator=torch.Generator().manual_seed(seed)).to(zhat.dtype)
    return [zhat, *torch.autograd.grad(zhat, [tensor for tensor in inputs if tensor is not None], G)]


def check_gradients(inputs: Case, scale: float = 2.0) -> None:
    mine, theirs = leaves(inputs), leaves(Case(*map(wide, inputs)))
    found = gradients(gated_projection(*mine, scale), mine)
    for one, other in zip(found, gradients(expected(theirs, scale=scale), theirs), strict=True):
        assert one.shape == other.shape
        assert (one.double() - other).abs().max() <= GRADIENT[inputs.x.dtype] * other.abs().max()
    assert [t.dtype for t in found[1:]] == [t.dtype for t in mine if t is not None]


@pytest.mark.parametrize(("dtype", "kind"), list(zip(SUM, KINDS, strict=True)), ids=str)
def test_gradients(implementation, dtype, kind):
    """Each type and each kind of gates once: the backward pass is of PyTorch's products and `modulate_backward`."""
    check_gradients(case(dtype=dtype, channel=kind[0], scalar=kind[1], bias=True))
    check_gradients(case(50, 17, 30, 3, dtype, *kind, bias=False), scale=1.0)


def test_leading_dimensions_and_gradients_that_do_not_lie_side_by_side(implementation):
    inputs = leaves(case(24))
    x = inputs.x.detach().view(2, 3, 4, 50).transpose(0, 1).requires_grad_()
    zhat = gated_projection(x, *inputs[1:])
    assert zhat.shape == (3, 2, 4, 45)
    zhat.sum().backward()  # dL/dzhat is one number, expanded
    theirs = leaves(Case(*map(wide, inputs)))
    expected(theirs).sum().backward()
    torch.testing.assert_close(x.grad.transpose(0, 1).reshape(24, 50).double(), theirs.x.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(inputs.weight.grad.double(), theirs.weight.grad, rtol=1e-5, atol=1e-5)


def test_no_rows_have_gradients_of_zero(implementation):
    inputs = leaves(case(T=0))
    found = gradients(gated_projection(inputs.x.view(0, 5, 50), *inputs[1:]), inputs)
    assert found[0].shape == (0, 5, 45)
    assert all(not gradient.any() for gradient in found[1:])


@pytest.mark.parametrize("missing", range(6))
def test_only_what_is_asked_for(implementation, missing):
    """A frozen input gets no gradient, and the others get theirs."""
    mine = leaves(case())
    mine[missing].requires_grad_(False)
    gated_projection(*mine).square().sum().backward()
    assert [tensor.grad is None for tensor in mine] == [i == missing for i in range(6)]


def test_the_u_of_the_operator_has_a_gradient(implementation):
    inputs = leaves(case())
    zhat, u = torch.ops.comt.gated_projection(*inputs, 2.0)
    found = torch.autograd.grad(zhat.sum() + (u * u).sum(), inputs[:3])
    theirs = leaves(Case(*map(wide, inputs)))
    u64 = theirs.x @ theirs.A.T
    for one, other in zip(
        found, torch.autograd.grad(expected(theirs, u64).sum() + (u64 * u64).sum(), theirs[:3]), strict=True
    ):
        assert (one.double() - other).abs().max() <= 5e-6 * other.abs().max()
    torch.autograd.grad(torch.ops.comt.gated_projection(*inputs, 2.0)[1].sum(), inputs.A)


@GATES
def test_opcheck(implementation, channel, scalar):
    inputs = leaves(case(5, 6, 7, 2, channel=channel, scalar=scalar, bias=scalar))
    torch.library.opcheck(torch.ops.comt.gated_projection.default, (*inputs, 2.0))


def test_compiled(implementation):
    """Traced forward and backward in one graph. The same kernels run: the same numbers."""
    torch._dynamo.reset()
    inputs = leaves(case())

    def block(*tensors: Tensor) -> Tensor:
        return torch.tanh(gated_projection(*tensors))

    found = gradients(torch.compile(block, fullgraph=True, backend="aot_eager")(*inputs), inputs)
    torch.testing.assert_close(found, gradients(block(*inputs), inputs), rtol=1e-6, atol=1e-6)


def test_recomputed_and_without_gradients(implementation):
    inputs = leaves(case())
    again = checkpoint(gated_projection, *inputs, use_reentrant=False)
    for one, other in zip(gradients(again, inputs), gradients(gated_projection(*inputs), inputs), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        zhat = gated_projection(*inputs)
    assert torch.equal(zhat, again)
    assert not zhat.requires_grad


def test_under_autocast(implementation):
    """As F.linear: the products in bf16, gradients in the parameters' own type."""
    inputs = leaves(case())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        zhat = gated_projection(*inputs)
        assert gated_projection(*Case(*(None if t is None else t.double() for t in inputs))).dtype == torch.float64
    assert zhat.dtype == torch.bfloat16
    theirs = leaves(Case(*map(wide, inputs)))
    found = gradients(zhat, inputs)
    for one, other in zip(found, gradients(expected(theirs), theirs), strict=True):
        assert (one.double() - other).abs().max() <= GRADIENT[torch.bfloat16] * other.abs().max()
    assert {gradient.dtype for gradient in found[1:]} == {torch.float32}
    with torch.autocast("cpu", dtype=torch.bfloat16):  # nor does a backward pass inside change anything
        inside = torch.autograd.grad(gated_projection(*inputs).float().sum(), inputs.x)[0]
    assert inside.dtype == torch.float32


def test_what_is_kept_for_the_backward_pass(implementation):
    """x, the parameters, u and zhat: of the [T, N] tensors only the output itself."""
    inputs, kept = leaves(case(T=37, N=45)), []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        zhat = gated_projection(*inputs)
    wide_ones = [tensor for tensor in kept if tensor.numel() == 37 * 45]
    assert {tensor.untyped_storage().data_ptr() for tensor in wide_ones} == {zhat.untyped_storage().data_ptr()}
    known = {tensor.untyped_storage().data_ptr() for tensor in (*inputs, zhat)}
    assert sum(t.numel() for t in kept if t.untyped_storage().data_ptr() not in known) == 37 * 8  # u


# ---- where no kernel can run


@pytest.mark.parametrize(("dtype", "R"), [(torch.float64, 8), (torch.float32, 129)])
def test_the_reference_where_no_kernel_can_run(dtype, R, monkeypatch):
    monkeypatch.setitem(ops.IMPLEMENTATIONS, "cpu", lambda: pytest.fail("called"))
    inputs = case(dtype=dtype, R=R)
    torch.testing.assert_close(gated_projection(*inputs), expected(inputs), rtol=1e-5, atol=1e-5)


def test_the_reference_without_a_compiler(monkeypatch):
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: "no C++ compiler")
    monkeypatch.setitem(ops.IMPLEMENTATIONS, "cpu", lambda: pytest.fail("called"))
    inputs = case(12)
    found = gated_projection(inputs.x.view(3, 4, 50), *inputs[1:])
    torch.testing.assert_close(found.view(12, 45), expected(inputs), rtol=1e-5, atol=1e-5)


def test_the_derivative_of_the_reference():
    inputs = tuple(tensor.double().requires_grad_() for tensor in case(3, 4, 5, 2))
    assert torch.autograd.gradcheck(gated_projection, inputs)


def test_a_gate_is_needed():
    with pytest.raises(ValueError, match="Wc, ws or both"):
        gated_projection(*case(channel=False, scalar=False))
