"""Positions of norms, and fixed factors of branches, against NanoChat, Gemma 2 and Granite in transformers
(`deployed`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from deployed import BORROWED, CONFIG, HEADS, D, Pair, State, assert_noticed, lent, modelling, ours, renamed
from torch import Tensor, nn

from comt_cli.layers.norms import EmbeddingNorm
from comt_cli.layers.residual.norm_placement import PreNorm, SandwichLN
from comt_cli.layers.residual.scaled import ScaledBranch

MORE = {"head_dim": D // HEADS, "pad_token_id": 0}
NORMS = {
    "attention_connection.norm.weight": "input_layernorm.weight",
    "mlp_connection.norm.weight": "post_attention_layernorm.weight",
}
FOUR_NORMS = {
    "attention_connection.norm.weight": "input_layernorm.weight",
    "attention_connection.branch_norm.weight": "post_attention_layernorm.weight",
    "mlp_connection.norm.weight": "pre_feedforward_layernorm.weight",
    "mlp_connection.branch_norm.weight": "post_feedforward_layernorm.weight",
}


def without_gains(state: State) -> State:
    """NanoChat's norms have no gains; comt's are 1 here."""
    for name in [name for name in state if name.endswith("norm.weight")]:
        del state[name]
    return renamed(state, BORROWED)


def with_gains(norms: dict[str, str]) -> Callable[[State], State]:
    return lambda state: renamed(state, BORROWED | norms) | {"norm.weight": state.pop("final_norm.weight")}


def nanochat() -> Pair:
    code = modelling("nanochat", "NanoChatModel")
    model = ours(name="embedding-norm")
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)
    return Pair(model, lent(model, code.NanoChatModel(code.NanoChatConfig(**CONFIG | MORE))), without_gains)


def gemma2() -> Pair:
    code = modelling("gemma2", "Gemma2Model")
    model = ours(name="sandwich-ln")
    theirs = lent(model, code.Gemma2Model(code.Gemma2Config(**CONFIG | MORE)))
    from_one = {name: -1.0 for name, _ in theirs.named_parameters() if name.endswith("norm.weight")}  # gains are 1 + w
    return Pair(model, theirs, with_gains(FOUR_NORMS), from_one)


def granite() -> Pair:
    code = modelling("granite", "GraniteModel")
    model = ours(name="scaled", scale=0.22)
    config = code.GraniteConfig(**CONFIG | MORE | {"residual_multiplier": 0.22})
    return Pair(model, lent(model, code.GraniteModel(config)), with_gains(NORMS))


@pytest.mark.parametrize("make", [nanochat, gemma2, granite])
def test_parity(make):
    make().check()


# ---- mistakes


def norm_of_the_sum(self, x: Tensor, branch: Any) -> Tensor:
    return self.branch_norm(x + branch(self.norm(x)))


def unnormed_input(self, x: Tensor, branch: Any) -> Tensor:
    return x + self.branch_norm(branch(x))


MISTAKES: dict[str, tuple[Callable[[], Pair], Any, str, Callable[..., Any]]] = {
    "no norm of the embedding": (nanochat, EmbeddingNorm, "forward", lambda self, x: x),
    "a norm over all tokens": (
        nanochat,
        EmbeddingNorm,
        "forward",
        lambda self, x: nn.functional.rms_norm(x, x.shape[1:]),
    ),
    "a norm that removes the mean": (
        nanochat,
        EmbeddingNorm,
        "forward",
        lambda self, x: nn.functional.layer_norm(x, x.shape[-1:]),
    ),
    "the norm's output as the skip path": (
        nanochat,
        PreNorm,
        "forward",
        lambda self, x, branch: self.norm(x) + branch(self.norm(x)),
    ),
    "the second norm after the sum": (gemma2, SandwichLN, "forward", norm_of_the_sum),
    "no first norm": (gemma2, SandwichLN, "forward", unnormed_input),
    "the skip path scaled too": (
        granite,
        ScaledBranch,
        "forward",
        lambda self, x, branch: 0.22 * (x + branch(self.norm(x))),
    ),
    "no scale": (granite, ScaledBranch, "forward", lambda self, x, branch: x + branch(self.norm(x))),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(mistake, monkeypatch):
    assert_noticed(monkeypatch, *MISTAKES[mistake])


def test_a_weight_that_is_left_out_is_noticed():
    pair = gemma2()
    pair.layout = with_gains(dict([*FOUR_NORMS.items()][:3]))
    with pytest.raises(AssertionError, match=r"not copied: blocks\.0\.mlp_connection\.branch_norm\.weight"):
        pair.check()


def test_only_a_model_that_does_not_exist_is_skipped(monkeypatch):
    for name, kind in (("no_such_model", "NanoChatModel"), ("nanochat", "NoSuchModel")):
        with pytest.raises(pytest.skip.Exception, match=f"has no {name if kind.startswith('Nano') else kind}"):
            modelling(name, kind)
    monkeypatch.setitem(sys.modules, "transformers.models.nanochat.modeling_nanochat", None)  # it cannot be imported
    with pytest.raises(ImportError):
        modelling("nanochat", "NanoChatModel")
