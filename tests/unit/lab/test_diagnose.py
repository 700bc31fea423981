"""What residual connections do at the start, and what of the chapter's numbers comes out again."""

from __future__ import annotations

import re

import pytest
import torch
from same_bits import Reason, assert_same_bits
from torch import nn

from comt_cli.lab.diagnose import networks, start
from comt_cli.lab.diagnose.claims import Verdict, claims_frame
from comt_cli.lab.diagnose.networks import LINEAR_RELU, LLAMA, SETUPS, wirings
from comt_cli.lab.diagnose.verb import _methods
from comt_cli.methods import in_words
from comt_cli.methods.base import residual_connections

WIRINGS = wirings()
PRE, POST = WIRINGS["pre-norm"], WIRINGS["post-norm"]


@pytest.fixture(scope="module")
def claims():
    """All claims of the chapter, by their names."""
    return claims_frame().set_index("name")


def test_a_seed_gives_the_very_network_that_plain_pytorch_does():
    torch.manual_seed(7)
    linears = [nn.Linear(64, 64) for _ in range(3)]
    x = torch.randn(4, 64)
    h = x
    for linear in linears:
        h = h + torch.relu(linear(nn.functional.layer_norm(h, (64,))))
    network, ours, _ = LINEAR_RELU.build(PRE, 3, 7)
    assert_same_bits(ours, x, Reason.SAME_CALL)
    torch.testing.assert_close(network.streams(ours)[-1], h)


@pytest.mark.parametrize("name", ["pre-norm", "comt", "rezero"])
def test_the_set_up_llama_is_a_language_model_on_its_own_embedding(name):
    network, x, _ = LLAMA.build(WIRINGS[name], 4, 3)
    model = network.module
    assert x.std().item() == pytest.approx(model.settings.embedding_init_std, rel=0.05)
    tokens = torch.cdist(x.flatten(0, 1), model.embedding.weight).argmin(1).view(x.shape[:-1])
    assert_same_bits(model.embedding(tokens), x, Reason.MOVED)
    torch.testing.assert_close(network.output(network.streams(x)[-1]), model.hidden(tokens))


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_every_connection_goes_into_every_setup_at_an_odd_depth(setup):
    for name in (name for name in WIRINGS if name in residual_connections()):
        seen = networks.trace(*setup.build(WIRINGS[name], 3, 1, 32))
        assert len(seen.activations) == len(seen.gradients) == 4, name
        assert all(0 < norm < 1e6 for norm in (*seen.activations, *seen.gradients, seen.output_gradient)), name


def test_the_traced_gradient_is_the_derivative():
    network, x, random = LINEAR_RELU.build(POST, 4, 3)
    network.module.double()
    x, random = x.double(), random.double()
    seen = networks.trace(network, x, random)
    direction = torch.randn_like(x)
    with torch.no_grad():
        ends = [(network.streams(x + sign * 1e-6 * direction)[-1] * random).sum() for sign in (1, -1)]
    (gradient,) = torch.autograd.grad((network.streams(x)[-1] * random).sum(), x)
    torch.testing.assert_close((ends[0] - ends[1]) / 2e-6, (gradient * direction).sum(), rtol=1e-6, atol=1e-6)
    assert seen.gradients[0] == pytest.approx(gradient.norm().item())
    assert seen.output_gradient == pytest.approx(random.norm().item())


def test_the_sum_behind_a_layernorm_has_no_gradient_at_any_depth_and_behind_an_rmsnorm_it_has():
    frame = networks.gradient_by_loss([1, 6], [1, 2], None).set_index(["connection", "precision", "loss"])
    for connection in ("post-norm", "pre-norm, final norm"):
        assert frame.loc[connection, "float64", "sum"]["gradient_norm"].max() < 1e-13
        for loss in ("functional", "distance"):
            assert frame.loc[connection, "float64", loss]["gradient_norm"].min() > 1
    assert frame.loc["pre-norm", "float64", "sum"]["gradient_norm"].min() > 1
    assert networks.trace(*LLAMA.build(POST, 1, 1), loss="sum").gradients[0] > 1


def test_what_is_the_identity_at_the_start():
    compared = {"rezero": WIRINGS["rezero"], "pre-norm": PRE, "comt": WIRINGS["comt"]}
    frame = networks.measured(compared, [LINEAR_RELU, LLAMA], [2], 3, [1], 32)["identity"].set_index("connection")
    assert frame.columns.tolist() == ["linear-relu", "llama", "zero_branch", "zero_branch_norm"]
    assert (frame.loc["rezero", ["linear-relu", "llama", "zero_branch"]] == 0).all()
    assert (frame.loc["pre-norm", ["linear-relu", "llama"]] > 0.01).all()
    assert frame.loc["pre-norm", "zero_branch"] == 0
    assert frame.loc["plain", "zero_branch"] > 0.5
    assert frame.loc["plain", "zero_branch_norm"] == 0
    assert frame.loc["comt"].isna().tolist() == [True, False, True, True]


@pytest.mark.slow
def test_what_of_the_chapter_reproduces(claims):
    found = {verdict: set(claims.index[claims["verdict"] == verdict.value]) for verdict in Verdict}
    assert found[Verdict.digits] == {
        *("power-0.9", "power-0.5", "decomposition", "zero-branch-50", "rezero", "block-size"),
        *("pre-norm-20", "flexible-post", "flexible-rezero", "thirty-plain", "thirty-residual"),
    }
    assert found[Verdict.its_loss] == {"post-norm-20", "ratio-20", "final-norm"}
    assert found[Verdict.no] == {
        *("product-1.05", "product-0.95", "floor", "block-size-text", "scale-1-linear", "post-norm-depth", "gap-depth"),
    }
    assert len(claims) == 28


def test_every_claim_has_its_numbers_and_none_is_left_out(claims):
    texts = claims[["claim", "chapter", "ours", "why"]]
    assert not texts.eq("").any(axis=None)
    assert not texts.apply(lambda column: column.str.contains("[{}]")).any(axis=None)
    for name, expected in (("floor", [3325.3]), ("thirty-residual", [189.8797, 202.074])):
        numbers = [float(each) for each in re.findall(r"[\d.]+", claims.loc[name, "ours"])[: len(expected)]]
        assert numbers == pytest.approx(expected, rel=1e-4), name


def test_what_is_published_of_a_start_is_of_something_that_is_looked_at():
    looked_at = {in_words(method) for method in _methods("all")}
    assert start.published().keys() <= looked_at
    assert {"hyper-connections (dynamic false)", "attention-residuals (blocks 4)"} <= looked_at
    assert [in_words(method) for method in _methods("mhc-lite,dhc")] == [
        "hyper-connections",
        "mhc-lite",
        "mhc-lite (start mhc-lite)",
    ]
