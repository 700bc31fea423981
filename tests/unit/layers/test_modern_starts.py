"""Where connections start whose state is more than a stream, and what a dead one would look like."""

from __future__ import annotations

import pytest
import torch
from method_cases import SETTINGS, TOKENS, built, loss_of, projections, wiring_of
from torch import Tensor, nn

from comt_cli.lab.networks import LEAST_APART, least_gradient
from comt_cli.layers.residual.attention_residuals import DepthMixture
from comt_cli.layers.residual.hyper_connections import Coefficients, Dynamic

EXACT = SETTINGS.model_copy(update={"norm_eps": 1e-15})
"""With norms whose epsilon is nothing: in float64 some models have a stream of Pre-LN's direction and another size."""
UPDATES = 10

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
    options = {"name": "pre-ln"}, START_LIKE_PRE_LN[name]
    plain, model = (built(wiring_of(each), EXACT).double() for each in options)
    with torch.no_grad():
        expected, found = plain(TOKENS), model(TOKENS)
    assert (found - expected).norm() < 1e-6 * expected.norm()  # the angles' table is in float32
    if name == "dynamic":  # branches may start smaller: their last projections, by sqrt(n)
        smaller = built(wiring_of({"name": "hyper-connections", "divide_output_std": True}))
        (_, one), (_, other) = (projections(each)[1] for each in (smaller, plain))
        torch.testing.assert_close(one.weight.double(), 0.5 * other.weight)


@pytest.mark.parametrize("last", [None, 1])
def test_deep_cross_attention_starts_as_pre_ln_but_for_what_gives_it_a_gradient(last):
    """With w = 0 it would be Pre-LN, and stay without weights that depend on the token: relu' is 0 at 0."""
    options = {"name": "pre-ln"}, {"name": "deep-cross-attention", "last": last}
    plain, model = (built(wiring_of(each), EXACT).double() for each in options)
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


# ---- what a dead mechanism looks like


def trained_a_little(options: dict):
    """In float64, where rounding is far from any gradient; with those of the pass behind the last update."""
    model = built(wiring_of(options), EXACT).double()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(UPDATES):
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
    "cross": {"name": "deep-cross-attention"},
}
PARTS = "attention", "mlp"
FIRST, LAST = "blocks.0.attention_connection", "blocks.3.mlp_connection"
DEAD = {
    "static": {f"{FIRST}.A_m.value"},
    "dynamic": {f"{FIRST}.A_m.value", f"{FIRST}.dynamic.W read"},
    "one-stream": {f"blocks.{layer}.{part}_connection.A_m.value" for layer in range(4) for part in PARTS},
    "mhc": {f"{FIRST}.coefficients.{name} {which}" for name in ("b.value", "phi") for which in ("pre", "res")},
    "identity-hc": {f"{FIRST}.coefficients.{name} pre" for name in ("b.value", "phi")},
}
"""What the methods themselves leave without a gradient. Equal streams, at the first junction, are mixed into the same,
and how they are read gives h a size alone, which the norm takes away; so it does with a single stream everywhere."""
DEAD["mhc-lite"] = DEAD["random"] = DEAD["mhc"] | {f"{LAST}.coefficients.{name} res" for name in ("b.value", "phi")}
"""Behind the last junction the streams are summed, which columns that add up to one do not change. Sinkhorn's do not
quite, but where all entries are equal."""


def gradients(model) -> dict[str, Tensor | None]:
    """Of every parameter; of one that serves several maps, of each map's part."""
    found = {path: parameter.grad for path, parameter in model.named_parameters()}
    for path, part in model.named_modules():
        if isinstance(part, Coefficients):
            shared, sizes = ("b.value", "phi"), dict(zip(("pre", "post", "res"), part.sizes, strict=True))
        elif isinstance(part, Dynamic):
            shared, sizes = ("W",), {"read": 1, "write": 1, "mix": len(part.W) - 2}
        else:
            continue
        for name in shared:
            parts = found.pop(f"{path}.{name}").split([*sizes.values()])
            found |= {f"{path}.{name} {which}": grad for which, grad in zip(sizes, parts, strict=True) if grad.numel()}
    return found


def dead_parts(model) -> set[str]:
    """Those whose gradient is no more than rounding."""
    least = least_gradient(model)
    return {path for path, grad in gradients(model).items() if grad is None or grad.norm() <= least}


@pytest.mark.parametrize("name", ALIVE)
def test_every_parameter_learns_and_streams_part(name):
    """After some steps: at the start what is behind a zero has no gradient."""
    model, seen = trained_a_little(ALIVE[name]), []
    assert dead_parts(model) == DEAD.get(name, set())
    with torch.no_grad(), model.blocks[-1].register_forward_hook(lambda _, __, state: seen.append(state)):
        model(TOKENS)
    (state,) = seen
    if (
        state.has_streams and state.x.shape[-2] > 1 and name != "random"
    ):  # how far they are from their mean, beside their size
        assert (state.x - state.x.mean(-2, keepdim=True)).norm() > LEAST_APART * state.x.norm()
