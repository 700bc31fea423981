"""Models of transformers, wrapped: against themselves before, against comt's own network, and in the hands of others."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from same_bits import Reason, assert_same_bits, differ
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.exchange.huggingface import load_llama
from comt_cli.library.connect import CONNECTIONS, Adds, adds_in
from comt_cli.library.gated import gates_in
from comt_cli.library.hosts import HOSTS, stack_of
from comt_cli.library.wrap import attach, unwrap, wrap
from comt_cli.methods import methods
from comt_cli.models.build import empty_network, wiring_of

transformers = pytest.importorskip("transformers")

WIDTH, LAYERS, VOCABULARY = 32, 3, 61
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "n_positions": 32, "bos_token_id": 1,
    "eos_token_id": 2, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
}  # fmt: skip
FAMILIES = {
    "LlamaForCausalLM": SIZES, "LlamaModel": SIZES, "MistralForCausalLM": SIZES, "Qwen2ForCausalLM": SIZES,
    "Qwen3ForCausalLM": {**SIZES, "head_dim": 12}, "SmolLM3ForCausalLM": SIZES, "Olmo2ForCausalLM": SIZES,
    "GPT2LMHeadModel": GPT2, "GPT2Model": GPT2,
}  # fmt: skip
LAUREL_LR = {"name": "laurel-lr", "rank": 2}
LAUREL_PA = {"name": "laurel-pa", "rank": 2}
HYPER = {"name": "hyper-connections", "n": 2}
IDENTICAL = {
    "comt": "comt",
    "comt+laurel": {"name": "comt", "hidden": 3, "residual": "laurel-lr"},
    "transponder": {"name": "transponder", "rank": 2},
    "static": "transponder-static",
    "path": {"name": "transponder-path", "rank": 2},
    "sdpa": "sdpa-gate",
    "sdpa-heads": {"name": "sdpa-gate", "granularity": "headwise"},
    "eau": "eau",
    "eau-before-o": {"name": "eau", "place": "before-o"},
    "laurel-pa": LAUREL_PA,
    "scaled": {"name": "scaled", "scale": "learned"},
    "denseformer": "denseformer",
    "lambdas": {"name": "start-lambdas", "normalised": False},
    "one-stream": {"name": "hyper-connections", "n": 1},
}
OTHERS = {
    "full-rank": "full-rank-gate",
    "only-last": {"name": "comt", "sites": "only_last"},
    "scalar": {"name": "transponder", "granularity": "channel", "separate_summaries": False},
    "eau+grc": "eau+grc",
    "laurel-lr": LAUREL_LR,
    "laurel-rw": "laurel-rw",
    "laurel-rw-lr": {"name": "laurel-rw-lr", "rank": 2},
    "highway": "highway",
    "grc": {"name": "grc", "reads": "both"},
    "graded": {"name": "start-lambdas", "start": "graded"},
    "dilated": {"name": "denseformer", "dilation": 2},
    "attnres": "attention-residuals",
    "blocks": {"name": "attention-residuals", "blocks": 2},
    "delta": "delta-attention-residuals",
    "hyper": HYPER,
    "mhc": {"name": "mhc", "n": 2, "start": "random"},
    "mhc-lite": {"name": "mhc-lite", "n": 2},
    "identity-hc": {"name": "identity-hc", "n": 2},
}
TOKENS = torch.randint(3, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(0))


def made(name: str = "LlamaForCausalLM", **options) -> nn.Module:
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**FAMILIES[name], **options)).eval()


def out(model: nn.Module, tokens: Tensor = TOKENS, **inputs) -> Tensor:
    return model(tokens, **inputs)[0].detach()


def moved(model: nn.Module) -> nn.Module:
    """The wrapped model, with everything that was added moved away from where it starts."""
    draw = torch.Generator().manual_seed(1)
    added = [placed.gate for placed in gates_in(model)]
    adds = adds_in(model, stack_of(model))
    added += [] if adds is None else [*adds.made, *([] if adds.end is None else [adds.end])]
    with torch.no_grad():
        for parameter in nn.ModuleList(added).parameters():
            if not any(parameter is known for known in norms_of(adds)):
                parameter += 0.3 * torch.randn(parameter.shape, generator=draw)
    return model


def norms_of(adds: Adds | None) -> list[Tensor]:
    return [] if adds is None else [p for each in adds.made for n, p in each.named_parameters() if n.startswith("norm.")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_at_identity_a_model_computes_what_it_did(family, dtype):
    plain = made(family).to(dtype)
    before = out(plain)
    weights = {name: value.clone() for name, value in plain.state_dict().items()}
    for method in IDENTICAL.values():
        model = copy.deepcopy(plain)
        assert wrap(model, method) is model
        assert weights.keys() <= model.state_dict().keys()
        assert_same_bits(out(model), before, Reason.IDENTITY, str(method))
        unwrap(model)
        assert_same_bits(model.state_dict(), weights, Reason.MOVED)
        assert [type(part) for part in model.modules()] == [type(part) for part in plain.modules()]
        assert_same_bits(out(model), before, Reason.SAME_CALL)


def test_every_host_is_tried():
    tried = {type(part) for family in FAMILIES for part in made(family).modules()}
    paths = {f"{kind.__module__}.{kind.__qualname__}" for kind in tried}
    assert {path for path in HOSTS if path.startswith("transformers")} <= paths


@pytest.mark.parametrize("method", [*IDENTICAL, *OTHERS])
def test_a_wrapped_llama_equals_comts_own_network(method):
    given = {**IDENTICAL, **OTHERS}[method]
    theirs = made()
    config = theirs.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    own = load_llama(config, theirs.state_dict(), "here", "here", None).model.eval()
    plain = out(theirs)
    moved(wrap(theirs, given, start="paper"))
    wrap(own, given, start="paper")
    found, others = ({(g.site.name, g.site.layer): g for g in gates_in(model)} for model in (theirs, own))
    assert found.keys() == others.keys()
    for key, placed in found.items():
        assert placed.site == replace(others[key].site, heads=placed.site.heads)
        others[key].gate.load_state_dict(placed.gate.state_dict())
    adds, own_adds = adds_in(theirs, stack_of(theirs)), adds_in(own, stack_of(own))
    if adds is not None:
        for one, other in zip(adds.made, own_adds.made, strict=True):
            left = other.load_state_dict(one.state_dict(), strict=False)
            assert not left.unexpected_keys
            assert all(name.startswith("norm.") for name in left.missing_keys)
        if adds.end is not None:
            own_adds.end.load_state_dict(adds.end.state_dict())
    ours = empty_network(own.settings, wiring_of(theirs.comt_wrapping.method), vocabulary=VOCABULARY)
    ours.to_empty(device="cpu").load_state_dict(own.state_dict())  # under the names of a run's checkpoint
    expected = ours.eval()(TOKENS)
    assert (expected - plain).abs().max() > 1e-3 * plain.abs().max()
    for result in (own(TOKENS), out(theirs)):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_every_connection_that_is_named_is_tried():
    tried = {**IDENTICAL, **OTHERS}.values()
    given = [method if isinstance(method, dict) else {"name": method} for method in tried]
    names = [getattr(methods()[each["name"]], "connection", each.get("residual", "pre-norm")) for each in given]
    assert {*CONNECTIONS} == {*names}
