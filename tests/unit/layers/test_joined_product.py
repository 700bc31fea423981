"""One product for the matrices of several sites and their gates: what it keeps, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comt_cli.kernels.gates import multiplied_in
from comt_cli.lab.timing import saved_bytes
from comt_cli.layers import projection
from comt_cli.layers.gates import Site, TransponderGate
from comt_cli.layers.projection import Projections

D, N, T = 12, 7, 5


def make(dtype: torch.dtype, width: int = N) -> Projections:
    gate = partial(TransponderGate.at, rank=3, init="normal")
    sites = [Site(name, "decoder", 0, 1, D, width) for name in ("q_proj", "k_proj", "v_proj")]
    module = Projections(sites, {"q_proj": gate, "v_proj": gate}, lambda _: 0.02)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module.to(dtype)


def by_autograd(module: Projections, x_BTD: Tensor) -> Tensor:
    matrices = module.weight, *module.down_projections().values()
    return F.linear(x_BTD, module.packing.join(D, multiplied_in(module.weight), *matrices))


def gradients(
    module: Projections, x_BTD: Tensor, product_of: Callable[[Projections, Tensor], Tensor], *, autocast: bool
) -> list[Tensor | None]:
    leaves = [x_BTD, *module.parameters()]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = product_of(module, x_BTD)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(output, wanted, weights.to(output.dtype), allow_unused=True))
    return [output.detach(), *(next(found) if leaf.requires_grad else None for leaf in leaves)]


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, False), (torch.bfloat16, False), (torch.float32, True)], ids=str
)
@pytest.mark.parametrize("filled", [False, True])
def test_values_and_gradients_are_autograds(dtype, autocast, filled, monkeypatch):
    """Whatever needs a gradient. `filled`: each site's rows and columns filled up, as on a GPU."""
    if filled:
        monkeypatch.setattr(projection, "aligned", lambda width, like: -(-width // 5) * 5)
    module = make(dtype)
    module.packing.aligns_sites = filled
    tolerance = 2**-7 if autocast or dtype is torch.bfloat16 else 1e-5
    A = module.gate("v_proj").down_projection()
    for x_needs, weight_needs, A_needs in product([True, False], repeat=3):
        x_BTD = torch.randn(2, T, D, generator=torch.Generator().manual_seed(2)).to(dtype).requires_grad_(x_needs)
        module.weight.requires_grad_(weight_needs)
        A.requires_grad_(A_needs)
        found = gradients(module, x_BTD, Projections.product, autocast=autocast)
        expected = gradients(module, x_BTD, by_autograd, autocast=autocast)
        for mine, theirs in zip(found, expected, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                # Sums of at most 41 products of size one, one rounding to the type; the same shapes, but another path.
                torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("backend", [None, "aot_eager_decomp_partition"])
def test_the_joined_matrix_is_not_kept(backend, autocast):
    """Nor is it where a compiler chooses what is: the second has what inductor chooses with, and makes no code. Under
    autocast x is kept in its type."""
    module = make(torch.float32)
    product_of = module.product if backend is None else torch.compile(module.product, backend=backend, fullgraph=True)
    x_TD = torch.randn(T, D, requires_grad=True)

    def product_here():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return product_of(x_TD)

    assert saved_bytes(product_here, [x_TD, *module.parameters()]) == autocast * 2 * T * D
