"""A second implementation of every equation, written from the papers with explicit loops, in float64.

Tolerance: both sides sum the same float64 numbers in different orders, at most a few thousand terms of order 1. An
error of some 1e-13 relative is all that can be right, and 1e-11 leaves room for a model's depth. The exception is the
rotary table, which the model computes in float32, as public checkpoints expect: there, angles up to 10 carry 1e-6.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from comt_cli.layers.gates import ComtGate, FullRankGate, Gate, Site, StaticGate, TransponderGate
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.base import ResidualConnection, ResidualSite
from comt_cli.methods.base import residual_connection, residual_connections

close = partial(torch.testing.assert_close, rtol=1e-11, atol=1e-11)
close_with_rope = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def dot(a: Tensor, b: Tensor) -> float:
    return math.fsum(p * q for p, q in zip(a.tolist(), b.tolist(), strict=True))


def naive_comt(x_D: Tensor, A: Tensor, B: Tensor) -> float:
    """CoMT, Eq. 4: sigma(W2 phi(W1 X)), for one token."""
    return sigmoid(math.fsum(b * sigmoid(dot(a, x_D)) for a, b in zip(A, B[0].tolist(), strict=True)))


def naive_transponder(x_D: Tensor, A: Tensor, B: Tensor, log_alpha: float) -> list[float]:
    """Transponder, Eq. 4 and 5: 2 sigma(alpha B phi(A x)), for one token; a number for every row of B."""
    hidden = [sigmoid(dot(a, x_D)) for a in A]
    return [
        2 * sigmoid(math.exp(log_alpha) * math.fsum(b * h for b, h in zip(row, hidden, strict=True)))
        for row in B.tolist()
    ]


def naive_gate(gate: Gate, x_D: Tensor, d_out: int) -> Tensor:
    if isinstance(gate, ComtGate):
        return torch.full((d_out,), naive_comt(x_D, gate.A, gate.B), dtype=torch.float64)
    if isinstance(gate, FullRankGate):
        read = x_D[: gate.W.shape[1]]
        return torch.tensor([sigmoid(dot(row, read)) for row in gate.W], dtype=torch.float64)
    if isinstance(gate, StaticGate):
        alpha = math.exp(gate.log_alpha) if gate.learnable else 1
        return torch.tensor(
            [2 * sigmoid(alpha * gate.beta1.item() * b) for b in gate.beta2.tolist()], dtype=torch.float64
        )
    assert isinstance(gate, TransponderGate)
    gamma = torch.ones(d_out, dtype=torch.float64)
    for number, kind in enumerate(gate.kinds):
        A = gate.A.split(gate.rank)[number if gate.separate else 0]
        log_alpha = getattr(gate, f"log_alpha_{kind}").item() if gate.learnable else 0.0
        gamma *= torch.tensor(naive_transponder(x_D, A, getattr(gate, f"B_{kind}"), log_alpha), dtype=torch.float64)
    return gamma


def shaken(module: nn.Module) -> nn.Module:
    """In float64, with every parameter away from any special value."""
    module.double().requires_grad_(False)
    for index, parameter in enumerate(module.parameters()):
        parameter.copy_(normal(*parameter.shape, seed=100 + index) * 0.4 + 0.1)
    return module


def rms_norm(x_D: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """Zhang and Sennrich 2019: x / sqrt(mean(x^2) + eps) * g."""
    return x_D / math.sqrt(dot(x_D, x_D) / len(x_D) + eps) * gain_D


def naive_value(v_E: Tensor, x_D: Tensor, w_C: Tensor, row_E: Tensor, scale: float) -> Tensor:
    """nanochat's value embedding, of one head of one token: the gate reads as many channels as it has weights."""
    return v_E + scale * sigmoid(dot(w_C, x_D[: len(w_C)])) * row_E


def naive_smear(e_D: Tensor, previous_D: Tensor, w_C: Tensor, share: float) -> Tensor:
    """nanochat's smear of one token; its embeddings are normalised, so the gate reads normalised ones."""
    n_D = rms_norm(e_D, torch.ones_like(e_D), torch.finfo(e_D.dtype).eps)
    return e_D + share * sigmoid(dot(w_C, n_D[: len(w_C)])) * previous_D


def layer_norm(x_D: Tensor, gain_D: Tensor, shift_D: Tensor, eps: float) -> Tensor:
    """Ba et al. 2016: (x - mean) / sqrt(var + eps) * g + b."""
    centred_D = x_D - math.fsum(x_D.tolist()) / len(x_D)
    return rms_norm(centred_D, gain_D, eps) + shift_D


def matrix(W: Tensor, x_D: Tensor) -> Tensor:
    return torch.tensor([dot(row, x_D) for row in W], dtype=torch.float64)


def sigmoids(x_D: Tensor) -> Tensor:
    return torch.tensor([sigmoid(x) for x in x_D.tolist()], dtype=torch.float64)


def softmax(logits: list[float]) -> list[float]:
    total = math.fsum(math.exp(z) for z in logits)
    return [math.exp(z) / total for z in logits]


WITH_STATES = {
    *("keel", "start-lambdas", "denseformer", "hyper-connections", "manifold-hyper-connections", "mudd", "progressive"),
    *("attention-residuals", "delta-attention-residuals", "siamese-norm", "deep-cross-attention", "backout"),
    "skip-gates",
}
"""Of these whole stacks are written out (`test_modern_connections`): most hand on more than a stream."""
ONE_STREAM = [name for name in residual_connections() if name not in WITH_STATES]


def naive_connection(  # noqa: PLR0911, PLR0912 - one case a connection
    name: str, connection: nn.Module, x_D: Tensor, branch, eps: float, layer: int, layers: int, past=()
) -> Tensor:
    """One junction of one token, `layer` counted from 1 as the papers do; `past` are earlier x, newest first."""

    def norm(y_D: Tensor, which: str = "norm") -> Tensor:
        part = getattr(connection, which)
        if isinstance(part, nn.LayerNorm):
            return layer_norm(y_D, part.weight, part.bias, eps)
        return rms_norm(y_D, part.weight, eps)

    def low_rank(y_D: Tensor) -> Tensor:
        return matrix(connection.low_rank.B, matrix(connection.low_rank.A, y_D))

    def affine(part: nn.Module, y_D: Tensor) -> Tensor:
        return matrix(part.weight, y_D) + part.bias

    match name:
        case "pre-norm" | "scaled-init":
            return x_D + branch(norm(x_D))
        case "post-norm":
            return norm(x_D + branch(x_D))
        case "deepnorm":
            return norm((2 * layers) ** (1 / 4) * x_D + branch(x_D))
        case "deepnorm-mixln-code":
            return norm(2.8284271247461903 * x_D + branch(x_D))
        case "mix-ln":
            return norm(x_D + branch(x_D)) if layer <= round(layers / 4) else x_D + branch(norm(x_D))
        case "layernorm-scaling":
            return x_D + branch(norm(x_D) / math.sqrt(layer))
        case "sandwich-ln":
            return x_D + norm(branch(norm(x_D)), "branch_norm")
        case "hybrid-norm":
            return x_D + branch(x_D) if connection.norm is None else norm(x_D) + branch(norm(x_D))
        case "rezero":
            return x_D + connection.a.value.item() * branch(x_D)
        case "highway":
            T_D = sigmoids(affine(connection.transform_gate, x_D))
            return T_D * branch(norm(x_D)) + (1 - T_D) * x_D
        case "laurel-rw" | "laurel-rw-lr":
            a, b = softmax(connection.weights.value.tolist())
            return a * branch(norm(x_D)) + b * (x_D + low_rank(x_D) if name == "laurel-rw-lr" else x_D)
        case "laurel-lr":
            return branch(norm(x_D)) + x_D + low_rank(x_D)
        case "laurel-pa":
            g = connection.g.value.tolist()
            return branch(norm(x_D)) + x_D + sum(g_j * low_rank(x_j) for g_j, x_j in zip(g, (x_D, *past), strict=True))
        case "sas":
            F_D = branch(x_D)
            both = torch.cat([x_D, F_D])
            a, b = (
                sigmoid(affine(gate.output, torch.tanh(affine(gate.hidden, both))).item())
                for gate in (connection.alpha_gate, connection.beta_gate)
            )
            return a * x_D + b * F_D + (1 - a) * (1 - b) * norm(x_D + F_D)
        case "scaled":
            return x_D + 0.1 * branch(norm(x_D))
        case "grc":
            return x_D + sigmoids(affine(connection.gate, x_D)) * branch(norm(x_D))
    raise ValueError(name)


def make_plain(widths: dict[str, tuple[int, int]], heads: int = 0) -> Projections:
    return Projections([Site(name, "decoder", 0, 1, i, o) for name, (i, o) in widths.items()], {}, lambda _: 0.02)


D, LAYERS, EPSILON = 6, 3, 1e-3
COUNT = 2 * LAYERS


def connections_of(name: str, width: int = D, layers: int = LAYERS, **options) -> list[ResidualConnection]:
    """Without initial values."""
    connections: list[ResidualConnection] = []
    for index in range(2 * layers):
        part = ("attention", "mlp")[index % 2]
        before = connections[-1:] if index % 2 else ()
        norm = partial(nn.RMSNorm, width, eps=EPSILON)
        site = ResidualSite(width, "decoder", index, 2 * layers, index // 2, layers, part, norm, before)
        connections.append(residual_connection(name)(site, **options))
    return connections


def stack(name: str, **options) -> tuple[list[ResidualConnection], nn.Module | None]:
    """As if trained a little, in float64, and the output aggregation."""
    connections = [shaken(each) for each in connections_of(name, **options)]
    aggregation = connections[-1].output_aggregation(connections[-1].site.norm)
    return connections, None if aggregation is None else shaken(aggregation)


MIX = [normal(D, D, seed=10 + k) for k in range(COUNT)]


def branch(k: int, h: Tensor, *kv: Tensor) -> Tensor:
    """Of three inputs, if there are, each has another part."""
    others = sum(each @ MIX[(k + 1 + i) % COUNT] for i, each in enumerate(kv))
    return torch.tanh(h @ MIX[k % COUNT] + others)
