"""Models of transformers, wrapped: against themselves before, against comt's own network, and in others' hands."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from same_bits import Reason, assert_same_bits, differ
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from worlds import run_together

from comt_cli.errors import UserError
from comt_cli.exchange.huggingface import load_llama
from comt_cli.library.connect import CONNECTIONS, adds_in
from comt_cli.library.gated import gates_in
from comt_cli.library.hosts import HOSTS, stack_of
from comt_cli.library.wrap import attach, unwrap, wrap
from comt_cli.methods import methods
from comt_cli.models.build import empty_network, wiring_of
from comt_cli.training.parallel import join_world

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
    "sdpa-heads-of-5": {"name": "sdpa-gate", "granularity": "headwise", "reads": 5},
    "eau": "eau",
    "eau-before-o": {"name": "eau", "place": "before-o"},
    "laurel-pa": LAUREL_PA,
    "scaled": {"name": "scaled", "scale": "learned"},
    "denseformer": "denseformer",
    "lambdas": {"name": "start-lambdas", "normalised": False},
    "backout": {"name": "backout", "start": 0.0, "blocks": 1},
    "one-stream": {"name": "hyper-connections", "n": 1},
}
FEW = ("comt+laurel", "sdpa-heads", "path")
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
    "skips": "skip-gates",
    "attnres": "attention-residuals",
    "blocks": {"name": "attention-residuals", "blocks": 2},
    "delta": "delta-attention-residuals",
    "hyper": HYPER,
    "mhc": {"name": "mhc", "n": 2, "start": "random", "read_out": "learned"},
    "mhc-lite": {"name": "mhc-lite", "n": 2},
    "identity-hc": {"name": "identity-hc", "n": 2},
}
TOKENS = torch.randint(3, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(0))


def made(name: str = "LlamaForCausalLM", **options) -> nn.Module:
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**{**FAMILIES[name], **options})).eval()


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
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.3)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_at_identity_a_model_computes_what_it_did(family, dtype):
    plain = made(family).to(dtype)
    before = out(plain)
    # Each type with each method, and each kind of host; what is added does not know of the host.
    of_all = (
        ("LlamaForCausalLM",)
        if dtype == torch.bfloat16
        else ("LlamaForCausalLM", "Olmo2ForCausalLM", "GPT2LMHeadModel")
    )
    tried = IDENTICAL if family in of_all else FEW
    weights = {name: value.clone() for name, value in plain.state_dict().items()}
    for method in map(IDENTICAL.get, tried):
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


# ---- in the hands of others

SEVERAL = {
    "gates": {"name": "transponder", "rank": 2, "residual": "laurel-lr"},
    "sdpa": "sdpa-gate",
    "history": LAUREL_PA,
    "streams": HYPER,
}
"""Gates, a gate that reads another module's input, sources and streams passed from block to block."""


@pytest.fixture(params=SEVERAL)
def wrapped(request) -> nn.Module:
    return moved(wrap(made(), SEVERAL[request.param], start="paper"))


def close(found: Tensor, expected: Tensor, within: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=within, atol=within * expected.abs().max().item())


def gradients(model: nn.Module, tokens: Tensor = TOKENS) -> dict[str, Tensor]:
    model.zero_grad()
    model(tokens, labels=tokens, use_cache=False).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["LlamaForCausalLM", "GPT2LMHeadModel", "Olmo2ForCausalLM"])
@pytest.mark.parametrize("method", [*SEVERAL, "path"])
def test_every_parameter_that_was_added_gets_a_gradient(family, method):
    """At identity too, where there is one: else a wrapped model would never leave it."""
    given = {**SEVERAL, **IDENTICAL}[method]
    model = wrap(made(family), given, start="paper" if given is HYPER else "identity")
    found = gradients(model.train())
    without = [name for name, p in model.named_parameters() if name not in found]
    assert not without
    for placed in gates_in(model):
        assert any(p.grad.abs().max() > 0 for p in placed.gate.parameters()), placed


def test_generates_with_a_cache_what_it_does_without(wrapped):
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(TOKENS)}
    cached, whole = (wrapped.generate(TOKENS, use_cache=use, **options) for use in (True, False))
    assert cached.tolist() == whole.tolist()
    cache = transformers.DynamicCache(config=wrapped.config)
    parts = [wrapped(part, past_key_values=cache)[0].detach() for part in TOKENS.split([4, 1, 2], 1)]
    close(torch.cat(parts, 1), out(wrapped))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_is_computed_again_in_the_backward_pass(wrapped):
    wrapped.train()
    expected = gradients(wrapped)
    wrapped.activation_checkpointing_enable()
    assert_same_bits(gradients(wrapped), expected, Reason.RECOMPUTED)
    wrapped.activation_checkpointing_enable({"use_reentrant": True})
    if wrapped.comt_wrapping.method["name"] in ("transponder", "sdpa-gate"):
        assert_same_bits(gradients(wrapped), expected, Reason.RECOMPUTED)
    else:
        with pytest.raises(UserError, match="re-entrant"):
            gradients(wrapped)


def test_runs_under_autocast(wrapped):
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(wrapped.train())
    expected = gradients(wrapped)
    assert found.keys() == expected.keys()
    assert all(torch.isfinite(each).all() for each in found.values())
    total = torch.cat([(found[name] - expected[name]).flatten() for name in found]).norm()
    assert total < 0.1 * torch.cat([each.flatten() for each in expected.values()]).norm()


def test_shows_hidden_states_of_the_shape_of_the_stream(wrapped):
    states = wrapped(TOKENS, output_hidden_states=True).hidden_states
    assert [state.shape for state in states] == [(*TOKENS.shape, WIDTH)] * (LAYERS + 1)


def test_is_copied_saved_and_made_anew(wrapped, tmp_path):
    expected = out(wrapped)
    twin = copy.deepcopy(wrapped)
    assert_same_bits(out(twin), expected, Reason.SAME_CALL)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert_same_bits(out(wrapped), expected, Reason.SAME_CALL)
    torch.save(wrapped, tmp_path / "model.pt")
    assert_same_bits(out(torch.load(tmp_path / "model.pt", weights_only=False)), expected, Reason.SAVED)
    with torch.device("meta"):
        other = attach(transformers.LlamaForCausalLM(wrapped.config), wrapped.comt_wrapping).eval()
    other.load_state_dict(wrapped.state_dict(), assign=True)
    other.model.rotary_emb = wrapped.model.rotary_emb  # whose numbers are in no checkpoint
    assert_same_bits(out(other), expected, Reason.SAVED)


def test_gates_follow_the_type_of_the_model(wrapped):
    halves = wrapped.to(torch.bfloat16)
    assert {p.dtype for p in halves.parameters()} == {torch.bfloat16}
    assert out(halves).dtype == torch.bfloat16


@pytest.mark.parametrize("method", ["gates", "streams"])  # what the others compute, a trainer does not see
def test_is_trained_by_a_trainer(method, tmp_path):
    wrapped = moved(wrap(made(), SEVERAL[method], start="paper"))

    class Same(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> dict[str, Tensor]:
            return {"input_ids": TOKENS[0], "labels": TOKENS[0]}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=2, learning_rate=3e-3, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, gradient_checkpointing=True, logging_steps=1,
    )  # fmt: skip
    before = copy.deepcopy(wrapped.state_dict())
    trainer = transformers.Trainer(wrapped, arguments, train_dataset=Same())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert all(differ(value, before[name]) for name, value in wrapped.state_dict().items() if "gate" in name)


def test_peft_adds_its_delta_behind_the_gates():
    peft = pytest.importorskip("peft")
    model = moved(wrap(made(), "comt"))
    before = out(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=2))
    assert_same_bits(out(adapted), before, Reason.IDENTITY)
    layer = adapted.base_model.model.model.layers[0].self_attn.q_proj
    nn.init.normal_(layer.lora_B["default"].weight)
    h = torch.randn(2, 5, WIDTH)
    delta = layer.lora_B["default"](layer.lora_A["default"](h)) * layer.scaling["default"]
    close(layer(h), layer.get_base_layer()(h) + delta)
    assert not any(placed.gate.A.requires_grad for placed in gates_in(adapted))
    for placed in gates_in(adapted):
        placed.gate.requires_grad_(True)
    assert {
        name.partition(".self_attn.")[2] for name in gradients(adapted) if ".layers.0." in name and "attn" in name
    } == {
        *(f"q_proj.lora_{each}.default.weight" for each in "AB"),
        *(f"q_proj.base_layer.gate.{each}" for each in "AB"),
        *(f"{site}.gate.{each}" for site in ("k_proj", "v_proj", "o_proj") for each in "AB"),
    }


def test_a_model_of_peft_is_refused():
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(made(), peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(UserError, match=r"q_proj.*PEFT(.|\n)*Wrap"):
        wrap(adapted, "comt")


@pytest.mark.slow
def test_is_compiled_as_a_whole(wrapped):
    torch._dynamo.reset()
    with torch.no_grad():
        close(torch.compile(wrapped, fullgraph=True)(TOKENS, use_cache=False).logits, out(wrapped))


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def steps_together(rank: int, folder: str) -> None:
    """Train wrapped models with DDP and FSDP2: every process has half of the sequences."""
    with join_world("cpu"):
        for name, method in SEVERAL.items():
            for way in ("ddp", "fsdp"):
                model = moved(wrap(made(), method, start="paper")).train()
                whole = nn.parallel.DistributedDataParallel(model) if way == "ddp" else model
                if way == "fsdp":
                    numbers = [each for each in model.parameters() if each.dim() == 0]  # FSDP2 cannot shard them
                    for block in (*model.model.layers, model):
                        fully_shard(block, ignored_params={*numbers})
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
                for _ in range(2):
                    optimizer.zero_grad()
                    whole(TOKENS[rank : rank + 1], labels=TOKENS[rank : rank + 1], use_cache=False).loss.backward()
                    for number in numbers if way == "fsdp" else ():
                        dist.all_reduce(number.grad, dist.ReduceOp.SUM)
                        number.grad /= 2
                    optimizer.step()
                state = model.state_dict()
                if way == "fsdp":
                    state = {key: full(value) for key, value in state.items()}
                if rank == 0:
                    torch.save(state, f"{folder}/{name} {way}.pt")


@pytest.mark.slow
def test_is_trained_by_several_processes(nursery, tmp_path):
    run_together(nursery, 2, steps_together, str(tmp_path))
    for name, method in SEVERAL.items():
        model = moved(wrap(made(), method, start="paper")).train()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            gradients(model)
            optimizer.step()
        for way in ("ddp", "fsdp"):
            found = torch.load(tmp_path / f"{name} {way}.pt")
            assert found.keys() == model.state_dict().keys()
            for key, value in model.state_dict().items():
                close(found[key], value, 1e-4)
