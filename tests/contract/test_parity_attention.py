"""Gates on the attention output against Qwen3-Next and Step-3.7 in transformers (`deployed`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from deployed import (
    CONFIG,
    HEADS,
    KV_HEADS,
    LAYERS,
    SETTINGS,
    D,
    F,
    Pair,
    State,
    assert_noticed,
    in_float64,
    modelling,
    ours,
)
from torch import Tensor, nn

from comt_cli.layers.gates import FullRankGate, Gate, HeadGate

E = D // HEADS
HEAD = {"head_dim": E, "max_position_embeddings": 64, "pad_token_id": 0}
ROPE = {"rope_type": "default", "rope_theta": SETTINGS.rope_theta, "partial_rotary_factor": 1.0}


def layout(state: State) -> State:
    """Without the gates."""
    found = {"norm.weight": state.pop("final_norm.weight")}
    for i in range(LAYERS):
        old, new = f"blocks.{i}", f"layers.{i}"
        q, k, v = state.pop(f"{old}.attention.qkv.weight").split([D, KV_HEADS * E, KV_HEADS * E])
        gate, up = state.pop(f"{old}.mlp.gate_up.weight").split([F, F])
        found |= {
            f"{new}.self_attn.q_proj.weight": q,
            f"{new}.self_attn.k_proj.weight": k,
            f"{new}.self_attn.v_proj.weight": v,
            f"{new}.self_attn.o_proj.weight": state.pop(f"{old}.attention.output.weight"),
            f"{new}.mlp.gate_proj.weight": gate,
            f"{new}.mlp.up_proj.weight": up,
            f"{new}.mlp.down_proj.weight": state.pop(f"{old}.mlp.down.weight"),
            f"{new}.input_layernorm.weight": state.pop(f"{old}.attention_connection.norm.weight"),
            f"{new}.post_attention_layernorm.weight": state.pop(f"{old}.mlp_connection.norm.weight"),
        }
    return found


def gates(state: State) -> list[Tensor]:
    return [state.pop(f"blocks.{i}.attention.qkv.gates.sdpa.W") for i in range(LAYERS)]


def of_qwen(state: State) -> State:
    """Each head's rows of q_proj are followed by its rows of the gate."""
    each, found = gates(state), layout(state)
    for i, W in enumerate(each):
        name = f"layers.{i}.self_attn.q_proj.weight"
        found[name] = torch.cat([found[name].unflatten(0, (HEADS, E)), W.unflatten(0, (HEADS, E))], 1).flatten(0, 1)
    return found


def of_step(state: State) -> State:
    each = {f"layers.{i}.self_attn.g_proj.weight": W for i, W in enumerate(gates(state))}
    return each | layout(state)


def model_of(code: Any, kind: str, config: Any) -> Any:
    """Without the norms of queries and keys, which comt's attention has not."""
    with in_float64():  # the frequencies of rotary positions
        theirs = getattr(code, kind)(config).double()
    for layer in theirs.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = nn.Identity()
    return theirs


def greater_by_one(theirs: nn.Module) -> dict[str, Any]:
    """Their gains are 1 + w."""
    return {name: -1.0 for name, _ in theirs.named_parameters() if name.endswith("norm.weight")}


def qwen3_next() -> Pair:
    code = modelling("qwen3_next", "Qwen3NextAttention")
    kinds = {"layer_types": ["full_attention"] * LAYERS, "mlp_only_layers": [*range(LAYERS)], "rope_parameters": ROPE}
    theirs = model_of(code, "Qwen3NextModel", code.Qwen3NextConfig(**CONFIG | HEAD | kinds))
    return Pair(ours(name="sdpa-gate"), theirs, of_qwen, greater_by_one(theirs))


def step3p7() -> Pair:
    code = modelling("step3p7", "Step3p7Attention")
    kinds = {"layer_types": ["full_attention"] * LAYERS, "mlp_layer_types": ["dense"] * LAYERS, "sliding_window": 64}
    rope = {"rope_parameters": {"full_attention": ROPE}}
    theirs = model_of(code, "Step3p7TextModel", code.Step3p7TextConfig(**CONFIG | HEAD | kinds | rope))
    return Pair(ours(name="sdpa-gate", granularity="headwise"), theirs, of_step, greater_by_one(theirs))


def test_the_elementwise_gate_is_qwen3_nexts():
    qwen3_next().check()


def test_the_headwise_gate_is_step_3p7s():
    step3p7().check()


# ---- mistakes


def reads_attention(self, z: Tensor, u: Tensor) -> Tensor:
    return Gate.scaled(self, z, nn.functional.linear(z, self.W))


def reads_the_token_before(self, z: Tensor, u: Tensor) -> Tensor:
    return Gate.scaled(self, z, u.roll(1, dims=1))


def channels_of_heads_apart(self, z: Tensor, u: Tensor) -> Tensor:
    return z * torch.sigmoid(u).repeat(1, 1, z.shape[-1] // u.shape[-1])


MISTAKES: dict[str, tuple[Callable[[], Pair], type[Gate], str, Callable[..., Any]]] = {
    "reads the attention output": (qwen3_next, FullRankGate, "scaled", reads_attention),
    "reads the token before": (qwen3_next, FullRankGate, "scaled", reads_the_token_before),
    "not applied": (qwen3_next, FullRankGate, "scaled", lambda self, z, u: z),
    "a softmax over channels": (qwen3_next, FullRankGate, "values", lambda self, u: {"channel": u.softmax(-1)}),
    "twice the sigmoid": (qwen3_next, FullRankGate, "values", lambda self, u: {"channel": 2 * torch.sigmoid(u)}),
    "channels of a head apart": (step3p7, HeadGate, "scaled", channels_of_heads_apart),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(mistake, monkeypatch):
    assert_noticed(monkeypatch, *MISTAKES[mistake])


def test_rows_of_queries_and_gate_that_are_not_sorted_by_heads_are_noticed():
    def halves(state: State) -> State:
        each, found = gates(state), layout(state)
        for i, W in enumerate(each):
            name = f"layers.{i}.self_attn.q_proj.weight"
            found[name] = torch.cat([found[name], W])
        return found

    pair = qwen3_next()
    pair.layout = halves
    with pytest.raises(AssertionError, match="off by"):
        pair.check()
