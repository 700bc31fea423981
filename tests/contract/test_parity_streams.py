"""mHC, identity-HC and their read-outs against DeepSeek-V4, HY-V4 and GLM-5.3-Flash in transformers (`deployed`).

The mistakes below are those of public implementations: a transposed map (NeMo Automodel#2154, Megatron-LM#4957), a map
that is computed and not applied (lucidrains/hyper-connections#8), a read-out without initial values (Megatron-LM#4481).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from deployed import BORROWED, CONFIG, HEADS, LAYERS, Pair, State, lent, modelling, ours, renamed
from torch import Tensor, nn

from comt_cli.layers.residual import hyper_connections
from comt_cli.layers.residual.hyper_connections import LearnedReadOut, ManifoldHyperConnection

N = 4
HC = {"hc_mult": N, "hc_eps": 0.0}
"""Without the epsilon of 1e-6 that transformers adds and comt does not."""
UNUSED = {
    "num_key_value_heads": HEADS,
    "head_dim": 16, "q_lora_rank": 4, "kv_lora_rank": 4, "o_lora_rank": 4, "o_groups": 1, "v_head_dim": 4,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "index_n_heads": 1, "index_head_dim": 16, "linear_head_dim": 4,
    "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4,
}  # fmt: skip
"""Of attention and experts that are replaced."""
NORMS = {
    "attention_connection.norm.weight": "input_layernorm.weight",
    "mlp_connection.norm.weight": "post_attention_layernorm.weight",
}
COEFFICIENTS = {
    f"{part}_connection.coefficients.{old}": f"{hc}.{new}"
    for part, hc in (("attention", "attn_hc"), ("mlp", "ffn_hc"))
    for old, new in (("phi", "fn"), ("alpha.value", "scale"), ("b.value", "base"))
}


def transposed(tensor: Tensor) -> Tensor:
    """Rows of phi, or numbers of b, with the logits of H_res transposed: in transformers old streams are the rows."""
    rest, logits = tensor.split([2 * N, len(tensor) - 2 * N])
    return torch.cat([rest, logits.unflatten(0, (N, -1)).transpose(0, 1).flatten(0, 1)]) if len(logits) else tensor


def layout(state: State) -> State:
    found = renamed(state, COEFFICIENTS)
    found = {name: tensor if name.endswith("scale") else transposed(tensor) for name, tensor in found.items()}
    found |= renamed(state, NORMS) | renamed(state, BORROWED) | {"norm.weight": state.pop("final_norm.weight")}
    for old, new in (("phi", "fn"), ("alpha.value", "scale"), ("b.value", "base")):
        if (name := f"read_out.coefficients.{old}") in state:
            found[f"hc_head.hc_{new}"] = state.pop(name)
    return found


def deepseek_v4(method: str = "mhc", start: str = "random", **config: Any) -> Pair:
    code = modelling("deepseek_v4", "DeepseekV4HyperHead")
    theirs = code.DeepseekV4Model(code.DeepseekV4Config(**CONFIG | HC | UNUSED | config))
    model = ours(name=method, n=N, start=start, read_out="learned")
    return Pair(model, lent(model, theirs), layout, starts_of(model))


def starts_of(model: nn.Module) -> State:
    """Starts of b, which comt does not store in it, by the names of transformers."""
    blocks = enumerate(model.blocks)
    parts = [(f"layers.{i}.{hc}", getattr(each, part)) for i, each in blocks for part, hc in
             (("attention_connection", "attn_hc"), ("mlp_connection", "ffn_hc"))]  # fmt: skip
    return {f"{name}.base": transposed(part.coefficients.first_b.value) for name, part in parts}


def hy_v4() -> Pair:
    code = modelling("hy_v4", "HYV4HyperHead")
    dense = {"mlp_layer_types": ["dense"] * LAYERS}
    theirs = code.HYV4Model(code.HYV4Config(**CONFIG | HC | UNUSED | dense | {"pad_token_id": 0}))
    model = ours(name="identity-hc", n=N, read_out="learned")
    return Pair(model, lent(model, theirs, outputs=3), layout, starts_of(model))


def glm5_next() -> Pair:
    """It reads the mean of the streams. comt reads their sum, and the final norm removes the factor."""
    code = modelling("glm5_next", "Glm5NextTextHyperHead")
    kinds = {
        "layer_types": ["indexed_attention"] * LAYERS,
        "mlp_layer_types": ["dense"] * LAYERS,
        "qk_rope_head_dim": 0,
    }
    theirs = code.Glm5NextTextModel(code.Glm5NextTextConfig(**CONFIG | HC | UNUSED | kinds | {"pad_token_id": 0}))
    model = ours(name="mhc", n=N, start="random")
    return Pair(model, lent(model, theirs, outputs=3), layout)


@pytest.mark.parametrize("start", ["pre-ln", "mhc-lite", "random"])
def test_mhc_with_a_learned_read_out_is_deepseek_v4s(start):
    deepseek_v4(start=start).check()


def test_identity_hc_with_a_learned_read_out_is_hy_v4s():
    hy_v4().check()


def test_mhc_is_glm_5s():
    glm5_next().check()


def test_transformers_starts_as_our_docstrings_say():
    for pair, scale, pre in ((deepseek_v4(), 1, 0), (hy_v4(), 0.01, -math.log(N - 1))):
        last = pair.theirs.hc_head
        for connection in (pair.theirs.layers[0].attn_hc, pair.theirs.layers[1].ffn_hc):
            assert connection.base.tolist() == pytest.approx([pre] * N + [0] * (len(connection.base) - N))
            assert connection.scale.tolist() == pytest.approx([scale] * len(connection.scale))
            # Of at least 768 numbers: 5 standard errors are 13 %.
            assert connection.fn.std().item() == pytest.approx(pair.theirs.config.initializer_range, rel=0.13)
        assert last.hc_base.tolist() == pytest.approx([pre] * N)
        assert last.hc_scale.item() == pytest.approx(scale)
        assert last.hc_fn.any()


# ---- mistakes

sinkhorn, write_streams = hyper_connections.sinkhorn, hyper_connections.write_streams
matrices = ManifoldHyperConnection.matrices


def half_written(self, H_BTnD: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    pre, post, res = matrices(self, H_BTnD)
    return pre, post / 2, res


IN_COMT: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "H_res transposed": (hyper_connections, "sinkhorn", lambda logits: sinkhorn(logits).mT),
    "H_res not applied": (hyper_connections, "write_streams", lambda H, M, s, o: write_streams(H, None, s, o)),
    "rows before columns": (hyper_connections, "sinkhorn", lambda logits: sinkhorn(logits.mT).mT),
    "19 iterations": (hyper_connections, "sinkhorn", lambda logits: sinkhorn(logits, 19)),
    "a softmax alone": (hyper_connections, "sinkhorn", lambda logits: logits.softmax(-1)),
    "H_post below 1": (ManifoldHyperConnection, "matrices", half_written),
    "coefficients of streams without a norm": (hyper_connections, "normalised_products", nn.functional.linear),
    "a summed read-out": (LearnedReadOut, "weights", lambda self, H: torch.ones_like(H[..., 0])),
}


@pytest.mark.parametrize("mistake", IN_COMT)
def test_a_mistake_is_noticed(mistake, monkeypatch):
    pair = deepseek_v4()
    monkeypatch.setattr(*IN_COMT[mistake])
    with pytest.raises(AssertionError, match="off by"):
        pair.check()


@pytest.mark.parametrize("name", ["hc_head.hc_fn", "hc_head.hc_base", "layers.0.attn_hc.fn", "layers.1.ffn_hc.scale"])
def test_a_weight_that_is_not_copied_is_noticed(name):
    pair = deepseek_v4()
    pair.copy_weights()
    nn.init.normal_(pair.theirs.get_parameter(name))
    with pytest.raises(AssertionError, match="off by"):
        pair.compare()


def test_logits_copied_as_they_are_are_noticed():
    """Without the transposition of phi and b."""
    pair = deepseek_v4()
    pair.layout = lambda state: {
        name: transposed(tensor) if name.endswith(("hc.fn", "hc.base")) else tensor
        for name, tensor in layout(state).items()
    }
    with pytest.raises(AssertionError, match="off by"):
        pair.check()


def test_the_epsilon_of_transformers_is_noticed():
    """It is not small beside every entry of H_res."""
    with pytest.raises(AssertionError, match="off by"):
        deepseek_v4(hc_eps=1e-6).check()
