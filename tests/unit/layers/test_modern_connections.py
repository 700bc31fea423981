"""Connections whose state is more than a stream, against their papers' equations written out a token at a time; what
they start as, and what a dead one would look like."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from method_cases import SETTINGS, TOKENS, built, loss_of, wiring_of
from naive import close, matrix, normal, rms_norm, shaken, sigmoids, softmax
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.residual.attention_residuals import DepthAttention
from comt_cli.layers.residual.base import Junction, ResidualConnection, Streams, read_behind, stream_of
from comt_cli.layers.residual.deep_cross_attention import DepthMixture
from comt_cli.layers.residual.hyper_connections import HyperConnection
from comt_cli.layers.residual.manifold_hyper_connections import (
    Coefficients,
    ManifoldHyperConnection,
    permutation_matrices,
)
from comt_cli.methods.base import residual_connection

D, LAYERS, EPSILON = 6, 3, 1e-3
COUNT = 2 * LAYERS


def stack(name: str, **options) -> tuple[list[ResidualConnection], nn.Module | None]:
    """The connections of three blocks, as if trained a little, in float64, and the read-out."""
    norm = partial(nn.RMSNorm, D, eps=EPSILON)
    connections: list[ResidualConnection] = []
    for index in range(COUNT):
        part = ("attention", "mlp")[index % 2]
        before = connections[-1:] if index % 2 else ()
        junction = Junction(D, "decoder", index, COUNT, index // 2, LAYERS, part, norm, before)
        connections.append(shaken(residual_connection(name)(junction, **options)))
    read_out = connections[-1].read_out(norm)
    return connections, None if read_out is None else shaken(read_out)


MIX = [normal(D, D, seed=10 + k) for k in range(COUNT)]


def branch(k: int, h: Tensor, *ways: Tensor) -> Tensor:
    """Of three ways, if there are, each has another part."""
    others = sum(way @ MIX[(k + 1 + i) % COUNT] for i, way in enumerate(ways))
    return torch.tanh(h @ MIX[k] + others)


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


def naive_manifold(connections, x_D: Tensor) -> Tensor:
    n = connections[0].n
    x = [x_D] * n
    for k, c in enumerate(connections):
        part = c.coefficients
        first = part.first_b.value + part.b.value
        found = matrix(part.phi, unit(torch.cat(x)))
        sizes = [n, n, len(found) - 2 * n]
        alpha = [*part.alpha.value.tolist(), 0.0]
        pre, post, res = (
            a * f + b for a, f, b in zip(alpha, torch.split(found, sizes), torch.split(first, sizes), strict=False)
        )
        H_pre, H_post = sigmoids(pre).tolist(), (2 * sigmoids(post)).tolist()
        match c.form:
            case "sinkhorn":
                M = [[math.exp(res[i * n + j].item()) for j in range(n)] for i in range(n)]
                for _ in range(20):
                    columns = [sum(M[i][j] for i in range(n)) for j in range(n)]
                    M = [[M[i][j] / columns[j] for j in range(n)] for i in range(n)]
                    M = [[entry / sum(row) for entry in row] for row in M]
            case "permutations":
                weights = softmax(res.tolist())
                mean = sum(w * P for w, P in zip(weights, permutation_matrices(n).double(), strict=True))
                M = mean.tolist()
            case _:
                M = torch.eye(n).tolist()
        o = branch(k, norm_of(c.norm, sum(h * s for h, s in zip(H_pre, x, strict=True))))
        x = [sum(M[i][j] * x[j] for j in range(n)) + H_post[i] * o for i in range(n)]
    return sum(x)


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


def naive_mudd(connections, x_D: Tensor) -> Tensor:
    X, ways, stream = [x_D], [x_D], x_D
    for i in range(1, LAYERS + 1):
        attention, mlp = connections[2 * i - 2], connections[2 * i - 1]
        norms = [attention.norm] if i == 1 else [attention.norm, attention.key_norm, attention.value_norm]
        stream = stream + branch(2 * i - 2, *map(norm_of, norms, ways))
        X.append(stream + branch(2 * i - 1, norm_of(mlp.norm, stream)))
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


CASES = {
    "static": ("hyper-connections", {"dynamic": False, "n": 3}, naive_hyper),
    "dynamic": ("hyper-connections", {}, naive_hyper),
    "mhc": ("manifold-hyper-connections", {"n": 3}, naive_manifold),
    "mhc-lite": (
        "manifold-hyper-connections",
        {"n": 3, "mixing": "permutations", "start": "mhc-lite"},
        naive_manifold,
    ),
    "identity": ("manifold-hyper-connections", {"mixing": "identity", "start": "random"}, naive_manifold),
    "full": ("attention-residuals", {}, partial(naive_attention, ends=(1, 2, 3, 4, 5, 6))),
    "two-blocks": ("attention-residuals", {"blocks": 2}, partial(naive_attention, ends=(3, 6))),
    "uneven-blocks": ("attention-residuals", {"blocks": 4}, partial(naive_attention, ends=(2, 3, 5, 6))),
    "delta": ("delta-attention-residuals", {}, naive_delta),
    "dense": ("denseformer", {}, partial(naive_dense, dilation=1, period=1)),
    "dilated": ("denseformer", {"dilation": 2, "period": 2}, partial(naive_dense, dilation=2, period=2)),
    "lambdas": ("start-lambdas", {}, partial(naive_lambdas, graded=False)),
    "graded": ("start-lambdas", {"start": "graded"}, partial(naive_lambdas, graded=True)),
    "siamese": ("siamese-norm", {}, naive_siamese),
    "keel": ("keel", {}, naive_keel),
    "mudd": ("mudd", {}, naive_mudd),
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
    state = x_BTD
    for k, each in enumerate(connections):
        state = each.step(state, partial(branch, k))
    found = stream_of(read_behind(state, read_out))
    more = () if read_out is None else (read_out,)
    for b in range(2):
        for t in range(2):
            close(found[b, t], naive(connections, x_BTD[b, t], *more))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "attention-residuals", "blocks": 9}, "8 junctions cannot be divided into 9"),
        ({"name": "denseformer", "period": 5}, "no mixture would have an earlier output in it, of 4 blocks"),
        ({"name": "denseformer", "dilation": 4, "period": 3}, "no mixture"),
    ],
)
def test_options_of_no_effect_are_refused(options, said):
    """When the model is built: they depend on its depth."""
    with pytest.raises(UserError, match=said):
        built(wiring_of(options))


# ---- the start


START_LIKE_PRE_LN = {
    "static": {"name": "hyper-connections", "dynamic": False},
    "dynamic": {"name": "hyper-connections"},
    "one-stream": {"name": "hyper-connections", "dynamic": False, "n": 1},
    "mhc": {"name": "mhc"},
    "mhc-lite": {"name": "mhc-lite"},
    "identity-hc": {"name": "identity-hc"},
    "full": {"name": "attention-residuals"},
    "blocks": {"name": "attention-residuals", "blocks": 3},
    "delta": {"name": "delta-attention-residuals"},
    "dense": {"name": "denseformer"},
    "lambdas": {"name": "start-lambdas", "normalised": False},
    "mudd": {"name": "muddformer"},
}


@pytest.mark.parametrize("name", START_LIKE_PRE_LN)
def test_the_start_is_pre_ln(name):
    """In float64, with norms whose epsilon is nothing: some have another size of the same direction."""
    settings = SETTINGS.model_copy(update={"norm_eps": 1e-15})
    options = {"name": "pre-ln"}, START_LIKE_PRE_LN[name]
    plain, model = (built(wiring_of(each), settings).double() for each in options)
    with torch.no_grad():
        expected, found = plain(TOKENS), model(TOKENS)
    assert (found - expected).norm() < 1e-6 * expected.norm()  # the angles' table is in float32


@pytest.mark.parametrize("last", [None, 1])
def test_deep_cross_attention_starts_as_pre_ln_but_for_what_gives_it_a_gradient(last):
    """With w = 0 it would be Pre-LN, and stay without weights that depend on the token: relu' is 0 at 0."""
    settings = SETTINGS.model_copy(update={"norm_eps": 1e-15})
    options = {"name": "pre-ln"}, {"name": "deep-cross-attention", "last": last}
    plain, model = (built(wiring_of(each), settings).double() for each in options)
    with torch.no_grad():
        expected, near = plain(TOKENS), model(TOKENS)
    weights = [part.w for part in model.modules() if isinstance(part, DepthMixture)]
    model(TOKENS).square().sum().backward()
    assert all((w.grad != 0).any() for w in weights)
    model.zero_grad()
    for w in weights:
        nn.init.zeros_(w)
    exact = model(TOKENS)
    exact.square().sum().backward()
    assert all((w.grad == 0).all() for w in weights)
    assert 1e-6 * expected.norm() < (near - expected).norm() < 0.05 * expected.norm()
    assert (exact - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("name", ["siamese-norm", "keel", "prores"])
def test_others_start_elsewhere(name):
    plain, model = (built(wiring_of({"name": each})) for each in ("pre-ln", name))
    with torch.no_grad():
        expected, found = plain(TOKENS), model(TOKENS)
    assert (found - expected).norm() > 0.01 * expected.norm()


def test_a_progressive_network_is_the_identity_at_first_and_pre_ln_at_last():
    plain, model = (built(wiring_of({"name": each})) for each in ("pre-ln", "prores"))
    with torch.no_grad():
        assert torch.equal(model(TOKENS), model.outputs(model.final_norm(model.embedding(TOKENS))))
        for block in model.blocks:
            for joint in block.joints:
                joint.connection.share.at_update(1000 * SETTINGS.shape().layers)
        assert torch.equal(model(TOKENS), plain(TOKENS))


# ---- what a dead mechanism looks like


def trained_a_little(options: dict, steps: int):
    model = built(wiring_of(options))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    optimizer.zero_grad()
    loss_of(model).backward()
    return model


ALIVE = START_LIKE_PRE_LN | {
    "random": {"name": "mhc", "start": "random"},
    "siamese": {"name": "siamese-norm"},
    "resformer": {"name": "resformer", "learned": True},
    "lime": {"name": "lime"},
}


def dead_parts(model) -> list[str]:
    """The parameters without a gradient; of one that serves several maps, which. H_pre and H_res have none to show
    where all streams are equal, at the first junction, nor H_res where they are summed, behind the last."""
    dead = [path for path, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    for path, part in model.named_modules():
        if isinstance(part, Coefficients) and not path.startswith(("blocks.0", "blocks.3")):
            for name, parameter in (("b", part.b.value), ("phi", part.phi)):
                maps = zip(("pre", "post", "res"), parameter.grad.split(part.sizes), strict=True)
                dead += [f"{path}.{name} {which}" for which, grad in maps if grad.numel() and not grad.any()]
    return dead


@pytest.mark.parametrize("name", ALIVE)
def test_every_parameter_learns(name):
    """After some steps: at the start what stands behind a zero has no gradient."""
    assert dead_parts(trained_a_little(ALIVE[name], 3)) == []


@pytest.mark.parametrize("name", ["mhc", "mhc-lite"])
def test_the_check_catches_a_mixing_matrix_that_does_not_learn(name, monkeypatch):
    matrices = ManifoldHyperConnection.matrices
    monkeypatch.setattr(
        ManifoldHyperConnection, "matrices", lambda self, H: (*(found := matrices(self, H))[:2], found[2].detach())
    )
    assert "blocks.1.mlp_connection.coefficients.b res" in dead_parts(trained_a_little(ALIVE[name], 1))


def streams_differ(model) -> bool:
    """Whether streams are not one: how far they are from their mean behind the last block, beside their
    size."""
    seen: list[Streams] = []
    model.blocks[-1].register_forward_hook(lambda _, __, state: seen.append(state))
    with torch.no_grad():
        model(TOKENS)
    (state,) = seen
    assert isinstance(state, Streams)
    return ((state.x - state.x.mean(-2, keepdim=True)).norm() / state.x.norm()).item() > 5e-3


@pytest.mark.parametrize("name", ["static", "dynamic", "mhc", "mhc-lite", "identity-hc"])
def test_streams_part(name):
    assert streams_differ(trained_a_little(START_LIKE_PRE_LN[name], 20))


def test_the_check_catches_streams_that_never_part(monkeypatch):
    """Read alike, equal streams get equal gradients for ever."""
    alike = HyperConnection.coefficients

    def read_alike(self, H_BTnD):
        A_m, *others = alike(self, H_BTnD)
        return torch.full_like(A_m, 1 / self.n) + self.A_m(), *others

    monkeypatch.setattr(HyperConnection, "coefficients", read_alike)
    assert not streams_differ(trained_a_little(START_LIKE_PRE_LN["static"], 20))


def test_mixtures_of_bf16_sources_keep_no_copies_in_fp32():
    """DeepCrossAttention's three, which read the same sources."""
    junction = stack("deep-cross-attention")[0][-2].junction  # attention's, in the last block
    connection = shaken(residual_connection("deep-cross-attention")(junction)).float().requires_grad_(True)
    sources, kept = [normal(2, 3, D, seed=k).bfloat16().requires_grad_() for k in range(LAYERS)], []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        for mixture in (connection.queries, connection.keys, connection.values):
            mixture(sources)
    large = {each.untyped_storage().data_ptr() for each in kept if each.numel() >= 2 * 3 * D}
    assert large == {source.untyped_storage().data_ptr() for source in sources}


def test_deep_cross_attention_reads_its_queries_mixture_where_a_block_begins():
    connections, _ = stack("deep-cross-attention")
    state = normal(2, 3, D)
    for k, each in enumerate(connections):
        if k % 2 == 0:
            read = each.read(state)
            state = each.step(state, partial(branch, k))
            torch.testing.assert_close(state.x, read + state.outputs[-1])
        else:
            assert torch.equal(each.read(state), state.x)
            state = each.step(state, partial(branch, k))


def test_sources_of_bf16_are_summed_in_fp32_and_not_copied():
    """Under autocast branches put out bf16, and the embedding is in fp32: sums are in the embedding's type, and what a
    mixture keeps for the backward pass are the sources themselves."""
    connections, _ = stack("attention-residuals", blocks=2)
    e_BTD, outputs = normal(2, 3, D).float(), [normal(2, 3, D, seed=k).bfloat16() for k in range(COUNT)]
    state = e_BTD
    for each, output in zip(connections[:-1], outputs, strict=False):
        state = each.float().step(state, lambda h, output=output: output)
    torch.testing.assert_close(state.outputs[1], sum(output.float() for output in outputs[:3]))
    torch.testing.assert_close(state.x, sum(output.float() for output in outputs[3:5]))

    attention, sources, kept = connections[-1].attention.requires_grad_(True), (e_BTD, *outputs[:3]), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        mixed = attention([source.requires_grad_() for source in sources])
    close(mixed.double(), attention.double()([source.double() for source in sources]), rtol=1e-5, atol=1e-5)
    large = {each.untyped_storage().data_ptr() for each in kept if each.numel() >= e_BTD.numel()}
    assert large == {source.untyped_storage().data_ptr() for source in sources}


def test_queries_and_maps_survive_the_model_wide_start():
    model = built(wiring_of({"name": "attention-residuals"}))
    attentions = [module for module in model.modules() if isinstance(module, DepthAttention)]
    assert len(attentions) == 2 * SETTINGS.shape().layers  # one a junction but the first, and the read-out
    assert all((each.query.value == 0).all() and (each.gain_offset.value == 0).all() for each in attentions)
    for connection in built(wiring_of({"name": "hyper-connections"})).modules():
        if isinstance(connection, HyperConnection):
            assert (connection.dynamic.W == 0).all()
    for connection in built(wiring_of({"name": "mhc"})).modules():
        if isinstance(connection, ManifoldHyperConnection):
            assert (connection.coefficients.phi == 0).all()


@pytest.mark.parametrize(
    "name", ["hyper-connections", "manifold-hyper-connections", "attention-residuals", "delta-attention-residuals"]
)
def test_only_the_first_junction_begins_a_stack(name):
    """Behind it a plain stream would be copied, or read, as if nothing had come before: the baseline, silently."""
    connections, _ = stack(name)
    plain_BTD = normal(1, 2, D, seed=1)
    connections[0].step(plain_BTD, lambda x_BTD: x_BTD)
    with pytest.raises(AssertionError):
        connections[1].step(plain_BTD, lambda x_BTD: x_BTD)
