"""The operators of gated products: what PyTorch asks of one (schema, fake, derivative), gradients, what is kept.

The kernels' place is taken by autograd on the definition (`reference_kernels`); fp32, as the operators' fakes say.
"""

from __future__ import annotations

import pytest
import reference_kernels
import torch
from torch import Tensor

from comt_cli.kernels import add_norm, heads, modulate, swiglu
from comt_cli.kernels.gates import Modulation

T, D, R, HEADS, KV, HALF = 6, 8, 3, 4, 2, 1
GATES = {
    "comt": (False, True, 1.0),
    "channel": (True, False, 2.0),
    "transponder": (True, True, 2.0),
    "none": (False, False, 1.0),
}


@pytest.fixture(autouse=True)
def by_definition(monkeypatch):
    reference_kernels.stand_in(monkeypatch)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def operands(widths: list[int], gated: tuple[bool, ...], kind: str) -> tuple[Tensor, Modulation]:
    """A product with two columns of another's, and the gates of its sites."""
    channel, scalar, scale = GATES[kind]
    gated = gated if channel or scalar else (False,) * len(widths)
    rank = R if any(gated) else 0
    columns = sum(widths) + sum(gated) * rank + 2
    Mg = sum(width for width, has in zip(widths, gated, strict=True) if has)
    Wc = normal(Mg, R, seed=1) if channel else None
    ws = normal(sum(gated), R, seed=2) if scalar else None
    return normal(T, columns), Modulation(Wc, ws, scale, rank, gated)


def calls(kind: str) -> dict[str, tuple]:
    """The operation, its definition, and arguments, for each of the four."""
    width = HEADS * 2 * HALF
    kv = KV * 2 * HALF
    angle = torch.arange(3)[:, None] * torch.ones(HALF)
    table = angle.cos(), angle.sin()  # three rows: every second of the six tokens begins a text anew
    one = operands([D], (True,), kind)
    two = operands([D, D], (False, True), kind)
    three = operands([width, kv, kv], (True, False, True), kind)
    x, gain = normal(T, D, seed=3), normal(D, seed=4)
    return {
        "modulate": (modulate.modulate, modulate.reference, (*two, [D, D])),
        "heads": (heads.heads, heads.reference, (*three, *table, HEADS, KV)),
        "swiglu": (swiglu.swiglu, swiglu.reference, (*two, D, D + 3)),
        "add_norm": (add_norm.add_norm, add_norm.reference, (x, *one, gain, 1e-5)),
    }


def flat(arguments: tuple) -> list:
    """As a schema has them."""
    return [field for each in arguments for field in (each if isinstance(each, Modulation) else [each])]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the checker's own
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("op", ["modulate", "heads", "swiglu", "add_norm"])
def test_pytorch_accepts_the_operator_and_gradients_reach_every_tensor(op, kind):
    """fp32, sums of at most a dozen terms: 1e-5."""
    operation, definition, arguments = calls(kind)[op]
    torch.library.opcheck(getattr(torch.ops.comt, op).default, tuple(flat(arguments)))
    leaves = [each for each in flat(arguments) if isinstance(each, Tensor) and each.requires_grad]
    results = []
    for function in (operation, definition):
        outputs = function(*arguments)
        outputs = [outputs] if isinstance(outputs, Tensor) else outputs[: {"heads": 3, "add_norm": 2}[op]]
        loss = sum((output * normal(*output.shape, seed=9).detach()).sum() for output in outputs)
        results.append(torch.autograd.grad(loss, leaves))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_a_second_derivative_is_refused():
    operation, _, arguments = calls("transponder")["modulate"]
    with pytest.raises(RuntimeError, match="has no second derivative"):
        torch.autograd.grad(operation(*arguments).sum(), arguments[0], create_graph=True)


def kept_elements(function, *arguments) -> int:
    """Numbers that autograd keeps in storages that are no argument's."""
    given = {each.untyped_storage().data_ptr() for each in flat(arguments) if isinstance(each, Tensor)}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if (storage := tensor.untyped_storage().data_ptr()) not in given:
            kept[storage] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _outputs = function(*arguments)
    return sum(kept.values())


def test_no_gate_and_no_logit_is_kept():
    """Of heads q, k and v, which attention keeps too, and u; of add_norm y, as the next addition, and 1 / rms."""
    kept = {op: kept_elements(function, *arguments) for op, (function, _, arguments) in calls("transponder").items()}
    assert kept == {
        "modulate": 0,
        "swiglu": 0,
        "heads": T * (HEADS + 2 * KV) * 2 * HALF + T * 2 * R,
        "add_norm": T * D + T,
    }


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the checker's own
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["one-type", "two-types"])
def test_a_product_that_is_added_as_it_is(dtype):
    """Neither it nor, in the stream's type, a gradient of its own exists; bf16: one rounding, of 2^-8."""
    x, gain, product = normal(T, D, seed=3), normal(D, seed=4), normal(T, D).detach().to(dtype).requires_grad_()
    arguments = x, product, Modulation(None, None, 1.0, 0, (False,)), gain, 1e-5
    torch.library.opcheck(torch.ops.comt.add_norm.default, tuple(flat(arguments)))
    outgoing = [normal(T, D, seed=9), normal(T, D).to(dtype)]
    found, right = (
        torch.autograd.grad(function(*arguments)[:2], [x, product, gain], outgoing)
        for function in (add_norm.add_norm, add_norm.reference)
    )
    assert (found[0] is found[1]) == (dtype == torch.float32)
    tolerance = 1e-5 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(found, right, rtol=tolerance, atol=tolerance)
    assert kept_elements(add_norm.add_norm, *arguments) == T * D + T  # y; 1 / rms
