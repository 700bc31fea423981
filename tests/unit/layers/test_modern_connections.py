"""Connections whose state is more than a stream, against their papers' equations written out a token at a time.

What they start as: `test_modern_starts`.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from method_cases import built, wiring_of
from naive import COUNT, EPSILON, LAYERS, D, branch, close, matrix, normal, rms_norm, sigmoid, sigmoids, softmax, stack
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.residual.attention_residuals import DepthAttention, DepthMixture
from comt_cli.layers.residual.base import State, final_stream
from comt_cli.layers.residual.hyper_connections import normalised_products, read_streams, sinkhorn, write_streams


def norm_of(part: nn.Module, x_D: Tensor) -> Tensor:
    return rms_norm(x_D, part.weight, EPSILON)


def unit(x_D: Tensor) -> Tensor:
    """RMSNorm without a gain, with PyTorch's epsilon for float64."""
    return x_D / torch.sqrt(x_D.square().mean() + torch.finfo(torch.float64).eps)


# ---- a second implementation, of one token


def naive_hyper(connections, x_D: Tensor) -> Tensor:
    n = connections[0].n
    H = [x_D] * n
    for k, c in enumerate(connections):
        A_m = [float(i == k % n) + c.A_m.value[i].item() for i in range(n)]
        B = [1 + c.B.value[i].item() for i in range(n)]
        A_r = [[float(i == m) + c.A_r.value[i, m].item() for m in range(n)] for i in range(n)]
        if c.dynamic is not None:
            s_a, s_b = c.dynamic.s_a.value.item(), c.dynamic.s_b.value.item()
            for i in range(n):
                read, write, *rest = (torch.tanh(matrix(c.dynamic.W, unit(H[i])))).tolist()
                A_m[i] += s_a * read
                B[i] += s_b * write
                A_r[i] = [a + s_a * more for a, more in zip(A_r[i], rest, strict=True)]
        o = branch(k, norm_of(c.norm, sum(a * h for a, h in zip(A_m, H, strict=True))))
        H = [sum(A_r[i][m] * H[i] for i in range(n)) + B[m] * o for m in range(n)]
    return sum(H)


def first_b(k: int, n: int, mixing: str, start: str) -> Tensor:
    """Where b starts at junction k: reading is staggered, and all but the diagonal, or the identity, is shut."""
    staggered = [1.0 if i == k % n else -1.0 for i in range(n)]
    match mixing:
        case "sinkhorn":
            res = [0.0 if i == j else -8.0 for i in range(n) for j in range(n)]
        case "permutations":
            res = [0.0 if order == tuple(range(n)) else -8.0 for order in permutations(range(n))]
        case _:
            res = []
    if start == "random":
        return torch.zeros(2 * n + len(res)).double()
    return torch.tensor(staggered + (staggered if start == "mhc-lite" else [0.0] * n) + res).double()


def naive_manifold(connections, x_D: Tensor, read_out: nn.Module | None = None, *, mixing: str, start: str) -> Tensor:
    n = connections[0].n
    x = [x_D] * n
    for k, c in enumerate(connections):
        part = c.coefficients
        first = first_b(k, n, mixing, start) + part.b.value
        found = matrix(part.phi, unit(torch.cat(x)))
        sizes = [n, n, len(found) - 2 * n]
        alpha = [*part.alpha.value.tolist(), 0.0]
        pre, post, res = (
            a * f + b for a, f, b in zip(alpha, torch.split(found, sizes), torch.split(first, sizes), strict=False)
        )
        H_pre, H_post = sigmoids(pre).tolist(), (2 * sigmoids(post)).tolist()
        match mixing:
            case "sinkhorn":
                M = [[math.exp(res[i * n + j].item()) for j in range(n)] for i in range(n)]
                for _ in range(20):
                    columns = [sum(M[i][j] for i in range(n)) for j in range(n)]
                    M = [[M[i][j] / columns[j] for j in range(n)] for i in range(n)]
                    M = [[entry / sum(row) for entry in row] for row in M]
            case "permutations":
                weights = softmax(res.tolist())
                orders = list(zip(weights, permutations(range(n)), strict=True))
                M = [[sum(w for w, order in orders if order[i] == j) for j in range(n)] for i in range(n)]
            case _:
                M = [[float(i == j) for j in range(n)] for i in range(n)]
        o = branch(k, norm_of(c.norm, sum(h * s for h, s in zip(H_pre, x, strict=True))))
        x = [sum(M[i][j] * x[j] for j in range(n)) + H_post[i] * o for i in range(n)]
    if read_out is None:
        return sum(x)
    part = read_out.coefficients
    shares = sigmoids(part.alpha.value * matrix(part.phi, unit(torch.cat(x))) + part.b.value).tolist()
    return sum(share * h for share, h in zip(shares, x, strict=True))


def mixture(attention: DepthAttention, sources: list[Tensor]) -> Tensor:
    w, gain = attention.query.value, 1 + attention.gain_offset.value
    scores = [(w * gain * v / torch.sqrt(v.square().mean() + 1e-6)).sum().item() for v in sources]
    return sum(a * v for a, v in zip(softmax(scores), sources, strict=True))


def naive_attention(connections, x_D: Tensor, read_out: nn.Module, ends: tuple[int, ...]) -> Tensor:
    sources, partial_sum = [x_D], None
    for k, c in enumerate(connections):
        available = sources + ([] if partial_sum is None else [partial_sum])
        o = branch(k, norm_of(c.norm, mixture(c.attention, available) if k else x_D))
        partial_sum = o if partial_sum is None else partial_sum + o
        if k + 1 in ends:
            sources, partial_sum = [*sources, partial_sum], None
    return mixture(read_out.attention, sources)


def naive_delta(connections, x_D: Tensor) -> Tensor:
    outputs = [x_D]
    for k, c in enumerate(connections):
        added = mixture(c.attention, outputs) if k else 0
        o = branch(k, norm_of(c.norm, x_D + added))
        x_D, outputs = x_D + o, [*outputs, o]
    return x_D


def naive_dense(connections, x_D: Tensor, dilation: int, period: int) -> Tensor:
    X, Y = [x_D], x_D
    for i in range(1, LAYERS + 1):
        for k in (2 * i - 2, 2 * i - 1):
            Y = Y + branch(k, norm_of(connections[k].norm, Y))
        X.append(Y)
        if i % period == 0:
            mixed = [j for j in range(i + 1) if j % dilation == i % dilation]
            a = connections[2 * i - 1].DWA.value.tolist()
            Y = sum((a_j + (j == i)) * X[j] for a_j, j in zip(a, mixed, strict=True))
    return Y


def naive_lambdas(connections, x_D: Tensor, *, graded: bool) -> Tensor:
    x_D = unit(x_D)
    x0 = x_D
    for k, c in enumerate(connections):
        if k % 2 == 0:
            down = (k // 2) / (LAYERS - 1)
            r = (1.15 - 0.1 * down if graded else 1) + c.r.value.item()
            x_D = r * x_D + c.m.value.item() * x0
        x_D = x_D + branch(k, norm_of(c.norm, x_D))
    return x_D


def naive_backout(connections, x_D: Tensor, read_out: nn.Module, start: float, middle: int) -> Tensor:
    outputs = []
    for k, c in enumerate(connections):
        x_D = x_D + branch(k, norm_of(c.norm, x_D))
        outputs.append(x_D)
    return x_D - (start + read_out.offset.value.item()) * outputs[2 * middle - 1]


def naive_skips(connections, x_D: Tensor, gate: str) -> Tensor:
    embedding, outputs, L = x_D, {}, len(connections) // 2
    for i in range(1, L + 1):
        attention, mlp = connections[2 * i - 2], connections[2 * i - 1]
        if i > L - L // 2:
            offset = attention.offset.value.item()
            g = 1 + offset if gate == "weight" else sigmoid(offset - 1.5)
            if gate == "token":
                g *= 2 * sigmoid((attention.gate.W[0] * unit(embedding)[:12]).sum().item())
            x_D = x_D + g * outputs[L + 1 - i]
        x_D = x_D + branch(2 * i - 2, norm_of(attention.norm, x_D))
        outputs[i] = x_D = x_D + branch(2 * i - 1, norm_of(mlp.norm, x_D))
    return x_D


def naive_siamese(connections, x_D: Tensor, read_out: nn.Module) -> Tensor:
    x, y = x_D, x_D
    for k, c in enumerate(connections):
        x = norm_of(c.post_norm, x)
        z = branch(k, norm_of(c.norm, x + norm_of(c.pre_norm, y)))
        x, y = x + z / math.sqrt(2 * (k // 2 + 1)), y + z
    return norm_of(read_out.x_norm, x) + norm_of(read_out.y_norm, y)


def naive_keel(connections, x_D: Tensor) -> Tensor:
    for k, c in enumerate(connections):
        o = branch(k, norm_of(c.norm, x_D))
        x_D = x_D + o if k == 0 else norm_of(c.output_norm, (1 if k == 1 else COUNT) * x_D + o)
    return x_D


def naive_progressive(connections, x_D: Tensor) -> Tensor:
    for k, c in enumerate(connections):
        x_D = x_D + min(7 / (5 * (k // 2 + 1)), 1) * branch(k, norm_of(c.norm, x_D))
    return x_D


def naive_mudd(connections, x_D: Tensor, read_out: nn.Module, last: int = LAYERS) -> Tensor:
    assert not [*read_out.parameters()]  # the last junction makes the stream
    X, ways, stream = [x_D], [x_D], x_D
    for i in range(1, LAYERS + 1):
        attention, mlp = connections[2 * i - 2], connections[2 * i - 1]
        norms = [attention.norm, attention.key_norm, attention.value_norm] if len(ways) > 1 else [attention.norm]
        assert hasattr(attention, "key_norm") == (len(ways) > 1)
        stream = stream + branch(2 * i - 2, *map(norm_of, norms, ways))
        X.append(stream + branch(2 * i - 1, norm_of(mlp.norm, stream)))
        if i <= LAYERS - last:
            assert mlp.dense is None
            stream, ways = X[i], [X[i]]
            continue
        hidden = torch.nn.functional.gelu(matrix(mlp.dense.W1, unit(X[i])))
        A = matrix(mlp.dense.W2, hidden) + mlp.dense.a.value
        count = len(A) // (i + 1)
        assert count == (1 if i == LAYERS else 4)
        mixed = [sum((A[c * (i + 1) + j] + (j == i)) * X[j] for j in range(i + 1)) for c in range(count)]
        *ways, stream = mixed
    return stream


def naive_cross(connections, x_D: Tensor, read_out: nn.Module, last: int | None) -> Tensor:
    def mixed(mixture: DepthMixture) -> Tensor:
        G = f if last is None or len(f) <= last + 2 else [f[0], sum(f[1:-last]), *f[-last:]]
        assert len(G) == len(mixture.offset.value)
        shares = [max((mixture.w[0] * G_s).sum().item(), 0) for G_s in G]
        return sum(G_s * (1 + b_s + s) for G_s, b_s, s in zip(G, mixture.offset.value, shares, strict=True))

    f = [x_D]
    for i in range(LAYERS):
        attention, mlp = connections[2 * i], connections[2 * i + 1]
        q, k, v = (mixed(mixture) for mixture in (attention.queries, attention.keys, attention.values))
        ways = norm_of(attention.norm, q), norm_of(attention.key_norm, k), norm_of(attention.value_norm, v)
        a = branch(2 * i, *ways)
        f.append(a + branch(2 * i + 1, norm_of(mlp.norm, q + a)))
    return mixed(read_out.mixture)


def manifold_case(mixing: str = "sinkhorn", start: str = "pre-ln", **options):
    options |= {"mixing": mixing, "start": start}
    return "manifold-hyper-connections", options, partial(naive_manifold, mixing=mixing, start=start)


CASES = {
    "static": ("hyper-connections", {"dynamic": False, "n": 3}, naive_hyper),
    "dynamic": ("hyper-connections", {}, naive_hyper),
    "mhc": manifold_case(n=3),
    "mhc-lite": manifold_case(n=3, mixing="permutations", start="mhc-lite"),
    "identity": manifold_case(mixing="identity", start="random"),
    "read-out": manifold_case(n=3, read_out="learned"),
    "full": ("attention-residuals", {}, partial(naive_attention, ends=(1, 2, 3, 4, 5, 6))),
    "two-blocks": ("attention-residuals", {"blocks": 2}, partial(naive_attention, ends=(3, 6))),
    "uneven-blocks": ("attention-residuals", {"blocks": 4}, partial(naive_attention, ends=(2, 3, 5, 6))),
    "delta": ("delta-attention-residuals", {}, naive_delta),
    "dense": ("denseformer", {}, partial(naive_dense, dilation=1, period=1)),
    "dilated": ("denseformer", {"dilation": 2, "period": 2}, partial(naive_dense, dilation=2, period=2)),
    "lambdas": ("start-lambdas", {}, partial(naive_lambdas, graded=False)),
    "graded": ("start-lambdas", {"start": "graded"}, partial(naive_lambdas, graded=True)),
    "backout": ("backout", {}, partial(naive_backout, start=0.2, middle=2)),
    "backout-of-first": ("backout", {"start": 0.5, "blocks": 1}, partial(naive_backout, start=0.5, middle=1)),
    **{
        f"skip-{gate}": ("skip-gates", {"gate": gate}, partial(naive_skips, gate=gate))
        for gate in ("token", "scalar", "weight")
    },
    **{
        f"skips-of-{layers}": ("skip-gates", {"layers": layers}, partial(naive_skips, gate="token"))
        for layers in (4, 5)
    },
    "siamese": ("siamese-norm", {}, naive_siamese),
    "keel": ("keel", {}, naive_keel),
    "mudd": ("mudd", {}, naive_mudd),
    "mudd-of-last-2": ("mudd", {"last": 2}, partial(naive_mudd, last=2)),
    "mudd-of-last": ("mudd", {"last": 1}, partial(naive_mudd, last=1)),
    "progressive": ("progressive", {"updates": 5}, naive_progressive),
    "cross": ("deep-cross-attention", {}, partial(naive_cross, last=None)),
    "1-dca": ("deep-cross-attention", {"last": 1}, partial(naive_cross, last=1)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_equations(name):
    connection, options, naive = CASES[name]
    connections, read_out = stack(connection, **options)
    for each in connections:
        if connection == "progressive":
            each.share.at_update(7)
    x_BTD = normal(2, 2, D)
    state = State(x_BTD)
    for k, each in enumerate(connections):
        state = each.step(state, partial(branch, k))
    found = final_stream(state, read_out, nn.Identity())
    more = () if read_out is None else (read_out,)
    for b in range(2):
        for t in range(2):
            close(found[b, t], naive(connections, x_BTD[b, t], *more))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "attention-residuals", "blocks": 9}, "8 residual adds cannot form 9 groups"),
        ({"name": "backout", "blocks": 5}, "the network has 4 blocks; there is no output of block 5"),
        ({"name": "muddformer", "last": 5}, "the network has 4 blocks; there are no 5 last ones"),
        ({"name": "denseformer", "period": 5}, "with 4 blocks no mixture has an earlier output"),
        ({"name": "denseformer", "dilation": 4, "period": 3}, "no mixture"),
    ],
)
def test_options_of_no_effect_are_refused(options, said):
    """When the model is built: they depend on its depth."""
    with pytest.raises(UserError, match=said):
        built(wiring_of(options))


@pytest.mark.parametrize("spread", [1, 300])
def test_sinkhorn(spread):
    """As in logarithms, also of logits that lie hundreds apart, where exponentials of a whole column would be 0: and
    its gradient. Columns first: the rows are divided last, and exact."""
    logits, weights = spread * normal(20, 4, 4), normal(20, 4, 4)
    found = []
    for each in (sinkhorn, _in_logarithms):
        of = logits.clone().requires_grad_()
        matrix = each(of)
        (matrix * weights).sum().backward()
        found.append((matrix.detach(), of.grad))
    torch.testing.assert_close(*(matrix for matrix, _ in found), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(*(gradient for _, gradient in found), rtol=1e-6, atol=1e-9)
    ones = torch.ones(20, 4, dtype=torch.float64)
    torch.testing.assert_close(found[0][0].sum(-1), ones, rtol=0, atol=1e-12)
    if spread == 1:
        torch.testing.assert_close(found[0][0].sum(-2), ones, rtol=0, atol=1e-3)
        assert (sinkhorn(logits, 1).sum(-2) - 1).abs().max() > 1e-2


def _in_logarithms(logits: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        logits = logits - logits.logsumexp(-2, keepdim=True)
        logits = logits - logits.logsumexp(-1, keepdim=True)
    return logits.exp()


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_mixtures_of_streams_are_what_they_are_called(compiled, static):
    """In both forms, and their gradients: the compiler's front end alone makes sums of the products."""
    torch._dynamo.reset()
    of = () if static else (3, 5)
    H, o, W = normal(3, 5, 4, D), normal(3, 5, D), normal(6, D)
    M, s = normal(*of, 4, 4), normal(*of, 4)
    Hbar = H / (H.square().mean(-1, keepdim=True) + torch.finfo(H.dtype).eps).sqrt()
    cases = [
        (read_streams, (H, s), (s.unsqueeze(-1) * H).sum(-2)),
        (write_streams, (H, M, s, o), (M @ H) + s.unsqueeze(-1) * o.unsqueeze(-2)),
        (write_streams, (H, None, s, o), H + s.unsqueeze(-1) * o.unsqueeze(-2)),
        (normalised_products, (H, W), F.linear(Hbar, W)),
    ]
    for function, given, expected in cases:
        run = torch.compile(function, backend="eager", fullgraph=True) if compiled else function
        inputs = [each if each is None else each.clone().requires_grad_() for each in given]
        torch.testing.assert_close(run(*inputs), expected)
        tensors = [each for each in inputs if each is not None]

        def of_tensors(*tensors, run=run, given=given):
            rest = iter(tensors)
            return run(*(None if each is None else next(rest) for each in given))

        assert torch.autograd.gradcheck(of_tensors, tensors, fast_mode=True)
    torch._dynamo.reset()
