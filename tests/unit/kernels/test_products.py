"""oneDNN's fp32 products agree with fp64, and replace PyTorch's own where a processor gains by it, only there."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.kernels import products
from comt_cli.runs.directory import PYTORCH

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="this PyTorch does not expose oneDNN's product",
)

IN_ANOTHER_PROCESS = """
import torch
import torch.nn.functional as F
from comt_cli.kernels import products
from comt_cli.kernels.processors import processor_class

calls, onednn = [], products.product
products.product = lambda *matrices: calls.append(1) or onednn(*matrices)
products.CLASSES = (processor_class(),)
assert products.multiplier() == "PyTorch"
products.install()
assert products.multiplier() == "oneDNN"
a, b, z, bias = torch.randn(256, 128), torch.randn(128, 256), torch.randn(256, 256), torch.randn(256)
right = a.double() @ b.double()

def check(found, expected, by):
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    assert len(calls) == by, (len(calls), by)
    calls.clear()

out = torch.empty(256, 256)
assert torch.mm(a, b, out=out) is out
check(out, right, 1)
check(torch.addmm(z, a, b), z.double() + right, 1)
check(torch.addmm(bias, a, b), bias.double() + right, 1)
check(torch.addmm(bias[:, None], a, b), bias[:, None].double() + right, 0)
check(torch.addmm(z, a, b, alpha=2, beta=0.5), z.double() / 2 + 2 * right, 0)
check(z.clone().addmm_(a, b), z.double() + right, 1)
check(z.T.clone().T.addmm_(a, b), z.double() + right, 1)
square = torch.randn(256, 256)
expected = square.double() @ square.double()
check(torch.mm(square, square, out=square), expected, 1)
check(a @ b, right, 1)
x, W, bias = torch.randn(4, 128, 96), torch.randn(224, 96), torch.randn(224)

def gradients(x, W, b):
    x, W, b = (each.clone().requires_grad_() for each in (x, W, b))
    y = F.linear(x, W, b)
    return [y, *torch.autograd.grad(y.square().sum(), (x, W, b))]

expected = gradients(x.double(), W.double(), bias.double())
assert not calls  # fp64 is PyTorch's
for found, right in zip(gradients(x, W, bias), expected, strict=True):
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=2e-3)
assert len(calls) == 3, len(calls)
"""


LAYOUTS = {
    "rows": torch.randn,
    "columns": lambda rows, columns: torch.randn(columns, rows).T,
    "slice": lambda rows, columns: torch.randn(rows, columns + 7)[:, 3:-4],
    "slice of columns": lambda rows, columns: torch.randn(columns, rows + 7)[:, 3:-4].T,
}
EACH = st.sampled_from([*LAYOUTS])


@given(st.integers(32, 300), st.integers(1, 300), st.integers(32, 300), EACH, EACH, st.booleans())
def test_product_agrees_with_fp64(M: int, K: int, N: int, of_a: str, of_b: str, bias: bool) -> None:
    a, b = LAYOUTS[of_a](M, K), LAYOUTS[of_b](K, N)
    bias_N = torch.randn(N) if bias else None
    expected = a.double() @ b.double() + (0 if bias_N is None else bias_N.double())
    if not products.fits(a, b):
        assert M * K * N < products.LEAST_MULTIPLICATIONS
        return
    found = products.product(a, b, bias_N)
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_what_onednn_does_not_read_or_gains_nothing_on_is_left_to_pytorch() -> None:
    square = torch.randn(256, 256)
    assert products.fits(square, square)
    assert not products.fits(square[:1].expand(256, 256), square)
    assert not products.fits(torch.randn(256, 512)[:, ::2], square)
    assert not products.fits(square.double(), square.double())
    assert not products.fits(square, square.bfloat16())
    assert not products.fits(torch.randn(4096, 256), square[:, :8])
    assert not products.fits(torch.randn(0, 256), square)


def test_pytorchs_products_are_replaced() -> None:
    """Every operator, `F.linear` with its gradients, and what oneDNN does not take."""
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "overrid" not in run.stderr.lower()


def test_on_other_processors_products_remain_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "processor_class", lambda: "Intel AMX")
    monkeypatch.setattr(products, "_registered", None)
    monkeypatch.setattr(torch.library, "Library", lambda *_: pytest.fail("an operator was replaced"))
    assert "Intel AMX" in (products.obstacle() or "")
    products.install()
    assert products.multiplier() == PYTORCH
