"""Where connections start whose state is more than a stream."""

from __future__ import annotations

import pytest
import torch
from method_cases import SETTINGS, TOKENS, built, projections, wiring_of
from torch import nn

from comt_cli.layers.residual.attention_residuals import DepthMixture

EXACT = SETTINGS.model_copy(update={"norm_eps": 1e-15})
"""With norms whose epsilon is nothing: in float64 some models have a stream of Pre-LN's direction and another size."""

START_LIKE_PRE_LN = {
    "static": {"name": "hyper-connections", "dynamic": False},
    "dynamic": {"name": "hyper-connections"},
    "one-stream": {"name": "hyper-connections", "dynamic": False, "n": 1},
    "mhc": {"name": "mhc"},
    "mhc-lite": {"name": "mhc-lite"},
    "mhc-read-out": {"name": "mhc", "read_out": "learned"},
    "identity-hc": {"name": "identity-hc"},
    "full": {"name": "attention-residuals"},
    "blocks": {"name": "attention-residuals", "blocks": 3},
    "delta": {"name": "delta-attention-residuals"},
    "dense": {"name": "denseformer"},
    "lambdas": {"name": "start-lambdas", "normalised": False},
    "mudd": {"name": "muddformer"},
    "mudd-of-last-2": {"name": "muddformer", "last": 2},
    "smear": {"name": "smear"},
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
