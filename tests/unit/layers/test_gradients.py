"""The closed-form gradients of CoMT, Appendix G (A14 to A20), against autograd in float64.

With Y = G(X) * (X W), the printed form is dL/dW = X^T (dL/dY * G(X)): G does not depend on W, so that is the whole
gradient of W. What the paper leaves out, and these tests put in where the mathematics needs it:

- The paper's W is [d_in, d_out] (Y = X W); ours is its transpose. G is a column of one number a token.
- A14 and A15: dL/dQ and dL/dK are taken before RoPE; the appendix does not say so.
- A19: Eq. 7 names the output of SiLU G, so dL/dG already holds the factor U of D = ... (U * G). Read so, A19 is right
  as printed; read as the gradient at U * G it lacks a factor U. The test shows both readings.
- Nothing is printed for the modulators' own weights, nor for the way through G(X) back to X; autograd does both, and
  the last test says what they are.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from comt_cli.kernels.gates import comt_gate
from comt_cli.layers.attention import Attention, FeedForward
from comt_cli.layers.gates import ComtGate, Site
from comt_cli.layers.projection import Projections
from comt_cli.layers.rotary import rotation_table

# Both sides are float64 sums of a few dozen terms of order 1.
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)
D, F, B, T = 8, 12, 2, 5


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(widths: dict[str, tuple[int, int]], heads: int = 0) -> Projections:
    gate = partial(ComtGate, hidden=2, init="torch-linear")
    sites = [Site(name, "decoder", 0, 1, i, o) for name, (i, o) in widths.items()]
    module = Projections(sites, dict.fromkeys(widths, gate), lambda _: 0.02).double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed + len(widths)) * 0.5)
    return module


def record(module: Projections) -> dict[str, Tensor]:
    """What goes into a group of projections and what comes out, with gradients kept."""
    kept: dict[str, Tensor] = {}

    def hook(_module, inputs, outputs):
        kept["x"] = inputs[0]
        for site, output in zip(module.sites, outputs, strict=True):
            output.retain_grad()
            kept[site.name] = output

    module.register_forward_hook(hook)
    return kept


def weight_gradient(module: Projections, name: str) -> Tensor:
    """dL/dW as the paper shapes it, [d_in, d_out]."""
    widths = [site.d_out for site in module.sites]
    names = [site.name for site in module.sites]
    return dict(zip(names, module.weight.grad.split(widths), strict=True))[name].T


def gate_of(module: Projections, name: str, x: Tensor) -> Tensor:
    gate = module.gate(name)
    return comt_gate(x @ gate.A.T, gate.B)


def closed_form(x: Tensor, upstream: Tensor) -> Tensor:
    """X^T (...), summed over all tokens of the batch."""
    return torch.einsum("btd,btn->dn", x, upstream)


@pytest.fixture(scope="module")
def attention():
    module = Attention(D, 2, 2, make)
    inner, outer = record(module.qkv), record(module.output)
    x = normal(B, T, D, seed=50)
    (module(x, rotation_table(T, D // 2, 10000.0, x)) * normal(B, T, D, seed=51)).sum().backward()
    return module, inner, outer


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
def test_a14_to_a16(name, attention):
    module, kept, _ = attention
    upstream = kept[name].grad * gate_of(module.qkv, name, kept["x"])
    close(weight_gradient(module.qkv, name), closed_form(kept["x"], upstream))
    without_the_gate = closed_form(kept["x"], kept[name].grad)
    assert not torch.allclose(weight_gradient(module.qkv, name), without_the_gate, rtol=0.01)


def test_a17(attention):
    module, _, kept = attention
    upstream = kept["o_proj"].grad * gate_of(module.output, "o_proj", kept["x"])
    close(weight_gradient(module.output, "o_proj"), closed_form(kept["x"], upstream))


@pytest.fixture(scope="module")
def feed_forward():
    module = FeedForward(D, F, make)
    inner, outer = record(module.gate_up), record(module.down)
    (module(normal(B, T, D, seed=60)) * normal(B, T, D, seed=61)).sum().backward()
    return module, inner, outer


def silu_slope(z: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return s * (1 + z * (1 - s))


def test_a18(feed_forward):
    module, kept, _ = feed_forward
    upstream = kept["up_proj"].grad * gate_of(module.gate_up, "up_proj", kept["x"])
    close(weight_gradient(module.gate_up, "up_proj"), closed_form(kept["x"], upstream))


def test_a19(feed_forward):
    module, kept, down = feed_forward
    x, gamma = kept["x"], gate_of(module.gate_up, "gate_proj", kept["x"])
    preactivation = gamma * (x @ module.gate_up.site_weights()["gate_proj"].T)  # SiLU' is taken here, after the gate
    close(kept["gate_proj"], preactivation)
    # dL/d(U * G), by hand: through the down projection and through its gate, which reads the same U * G.
    inner, W, gate = down["x"], module.down.weight, module.down.gate("down_proj")
    d_out = down["down_proj"].grad
    factor = gate_of(module.down, "down_proj", inner)
    phi = torch.sigmoid(inner @ gate.A.T)
    d_z = (d_out * (inner @ W.T)).sum(-1, keepdim=True) * factor * (1 - factor)
    d_inner = (d_out * factor) @ W + (d_z * gate.B * phi * (1 - phi)) @ gate.A
    d_silu = d_inner * kept["up_proj"]  # the gradient at G, the output of SiLU: it has the factor U
    ours = weight_gradient(module.gate_up, "gate_proj")
    close(ours, closed_form(x, d_silu * silu_slope(preactivation) * gamma))
    without_up = closed_form(x, d_inner * silu_slope(preactivation) * gamma)
    assert not torch.allclose(ours, without_up, rtol=0.01)


def test_a20(feed_forward):
    module, _, kept = feed_forward
    upstream = kept["down_proj"].grad * gate_of(module.down, "down_proj", kept["x"])
    close(weight_gradient(module.down, "down_proj"), closed_form(kept["x"], upstream))


def test_what_the_appendix_does_not_print():
    """The modulators' gradients and both ways back to X. With v = sum_n dL/dY_n (X W)_n and s = gamma (1 - gamma):
    dL/dB = sum_t v s phi, dL/dA = sum_t v s (B * phi') x^T, dL/dX = (dL/dY * gamma) W^T + v s (B * phi') A.
    """
    module = make({"q_proj": (D, F)})
    gate, x, d_y = module.gate("q_proj"), normal(T, D, seed=70).requires_grad_(), normal(T, F, seed=71)
    (module(x)[0] * d_y).sum().backward()
    with torch.no_grad():
        phi = torch.sigmoid(x @ gate.A.T)
        gamma = torch.sigmoid(phi @ gate.B.T)
        v_s = (d_y * (x @ module.weight.T)).sum(-1, keepdim=True) * gamma * (1 - gamma)
        d_u = v_s * gate.B * phi * (1 - phi)
        close(gate.B.grad, (v_s * phi).sum(0, keepdim=True))
        close(gate.A.grad, d_u.T @ x)
        close(x.grad, (d_y * gamma) @ module.weight + d_u @ gate.A)
