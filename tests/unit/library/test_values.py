"""Values of gates and the residual stream as data frames, against second computations."""

from __future__ import annotations

import doctest
import re

import numpy as np
import pytest
import torch
from method_cases import KINDS, METHODS
from pandas.testing import assert_frame_equal
from torch import nn
from toy_translation import toy_model, toy_spec

from comt_cli.analysis.figures.tokens import ResidualStream
from comt_cli.analysis.model_figure import Subject
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.layers.initialise import initialise
from comt_cli.library import values
from comt_cli.library.values import gate_values, residual_stream
from comt_cli.library.wrap import unwrap, wrap
from comt_cli.methods import method_from
from comt_cli.models.llama import Llama
from comt_cli.models.recorded import recorded
from comt_cli.tasks.settings.language import ModelSettings

RAGGED = [[3, 4, 5, 6], [7, 8]]
PADDED = {"input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 99, 99]]), "attention_mask": [[1, 1, 1, 1], [1, 1, 0, 0]]}
NUMBERS = ["cosine", "angle", "update_cosine", "norm_ratio"]
PLACES = ["row", "position", "layer", "site", "kind", "channel"]


class Letters:
    def prompt(self, text):
        return [ord(letter) - 90 for letter in text]

    def pieces(self, ids):
        return [chr(90 + each) for each in ids]


def network(**options) -> Llama:
    settings = ModelSettings(size="tiny", width=16, ffn_width=24, layers=2, heads=4, kv_heads=2)
    model = Llama(settings, 50, method_from(options).wiring(), length=8)
    initialise(model, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)  # so that tokens differ
    return model


def test_a_gate_by_hand_has_its_values_and_all_else_its_place():
    model = network(name="comt", sites=["o_proj", "q_proj"])
    for number, block in enumerate(model.blocks):
        gate = block.attention.qkv.gates["q_proj"]
        nn.init.zeros_(gate.A)
        with torch.no_grad():
            gate.B.copy_(torch.tensor([[2.0, number]]))  # sigmoid((2 + number) / 2)
    frame = gate_values(model, RAGGED)
    assert [*frame] == ["row", "position", "token", "layer", "site", "kind", "channel", "value"]
    first = frame.iloc[:6]
    assert first[["row", "position", "token"]].to_numpy().tolist() == [
        [row, position, token] for row, tokens in enumerate(RAGGED) for position, token in enumerate(tokens)
    ]
    assert frame[["site", "layer"]].drop_duplicates().to_numpy().tolist() == [
        ["q_proj", 1], ["q_proj", 2], ["o_proj", 1], ["o_proj", 2],
    ]  # fmt: skip
    by_hand = frame[frame["site"] == "q_proj"].groupby("layer")["value"].agg(["min", "max"])
    np.testing.assert_allclose(by_hand.loc[1], 1 / (1 + np.exp(-1)), rtol=1e-6)
    np.testing.assert_allclose(by_hand.loc[2], 1 / (1 + np.exp(-1.5)), rtol=1e-6)
    assert frame["channel"].isna().all()
    assert frame.loc[frame["site"] == "o_proj", "value"].nunique() > 6


def test_channels_and_heads_are_numbered_or_averaged():
    model = network(name="transponder", sites=["q_proj", "v_proj"], rank=3)
    frame = gate_values(model, RAGGED)
    counts = frame.groupby(["site", "kind"]).size().to_dict()
    widths = {("q_proj", "channel"): 16, ("q_proj", "scalar"): 1, ("v_proj", "channel"): 8, ("v_proj", "scalar"): 1}
    assert counts == {place: 2 * 6 * width for place, width in widths.items()}
    channels = frame[frame["kind"] == "channel"]
    assert channels.loc[channels["site"] == "v_proj", "channel"].tolist()[:9] == [*range(8), 0]
    means = gate_values(model, RAGGED, channels=False)
    assert len(means) == 2 * 2 * 2 * 6
    expected = frame.groupby(PLACES[:-1], sort=False)["value"].mean()
    np.testing.assert_allclose(means["value"], expected, rtol=1e-5)
    heads = gate_values(network(name="sdpa-gate", granularity="headwise"), RAGGED)
    assert heads["channel"].tolist()[:5] == [0, 1, 2, 3, 0]
    static = gate_values(network(name="transponder-static", sites=["o_proj"]), RAGGED)
    assert len(static) == 2 * 6 * 16


def test_padding_has_no_rows_and_changes_nothing():
    model = network(name="transponder", residual="hyper-connections").double()  # other shapes have other last bits
    for observe in (gate_values, residual_stream):
        frame = observe(model, PADDED)
        assert_frame_equal(frame, observe(model, RAGGED))
        alone = observe(model, torch.tensor(RAGGED[1]))  # one row may stand alone
        second = frame[frame["row"] == 1].reset_index(drop=True)
        numbers = ["value"] if "value" in frame else NUMBERS
        np.testing.assert_allclose(alone[numbers], second[numbers], rtol=1e-4, atol=1e-5)
        assert_frame_equal(alone.drop(columns=[*numbers, "row"]), second.drop(columns=[*numbers, "row"]))


def test_attention_with_inputs_of_its_own_for_keys_has_their_gates():
    """Multiway dense connections give queries, keys and values inputs of their own, and each gate reads its own."""
    model = network(name="comt", residual="mudd")
    for block in model.blocks:
        if (dense := block.mlp_connection.dense) is not None:
            nn.init.normal_(dense.W2, std=0.5, generator=torch.Generator().manual_seed(0))
    read = []
    qkv = model.blocks[1].attention.qkv
    handle = qkv.register_forward_hook(lambda module, inputs, output: read.append(inputs))
    frame = gate_values(model, [RAGGED[0]]).set_index(["layer", "site"])
    handle.remove()
    assert len(read) == 1
    for site, own_BTD in zip(("q_proj", "k_proj", "v_proj"), read[0], strict=True):
        np.testing.assert_allclose(frame.loc[(2, site), "value"], qkv.gate(site)(own_BTD).detach().ravel(), rtol=1e-5)


def test_the_stream_is_that_of_the_figure_and_of_the_adds_in_a_layer():
    loaded = LoadedModel(network(name="comt"), "comt", "a network", Letters(), 64)
    drawn = ResidualStream().frame(Subject(loaded=loaded, text="abcdef"))
    frame = residual_stream(loaded, "abcdef")
    assert_frame_equal(frame.drop(columns="row"), drawn[[column for column in frame if column != "row"]])
    assert frame["token"].tolist()[:6] == [*"abcdef"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_stream_of_every_connection_is_what_its_adds_read(kind):
    """From the states that the first add of every block is given, and what the head reads."""
    model, ids = network(**METHODS[kind]), torch.tensor([RAGGED[0]])
    frame = residual_stream(model, ids)
    connections = [block.attention_connection for block in model.blocks]
    with torch.no_grad(), recorded(connections, "step") as calls:
        model.eval()(ids)
        streams = [each.read(calls[each][0][0])[0] for each in connections]
    first = torch.cosine_similarity(*streams, dim=-1)
    np.testing.assert_allclose(frame.loc[frame["layer"] == 1, "cosine"], first, rtol=1e-4, atol=1e-5)
    assert np.isfinite(frame[["cosine", "angle", "norm_ratio"]]).all(axis=None)


WRAPPED = {
    "LlamaForCausalLM": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4},
    "Olmo2Model": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4},
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 2, "n_head": 4},
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_of_a_wrapped_model_the_gates_and_the_stream(kind):
    """Against transformers' own hidden states, and gates called on what their projections read; padding may stand
    before the tokens here."""
    transformers = pytest.importorskip("transformers")
    family = getattr(transformers, kind)
    torch.manual_seed(0)
    model = wrap(family(family.config_class(vocab_size=50, **WRAPPED[kind])), "transponder", start="paper")
    batch = {"input_ids": torch.tensor([[3, 4, 5], [0, 6, 7]]), "attention_mask": torch.tensor([[1, 1, 1], [0, 1, 1]])}
    mask = batch["attention_mask"].bool()
    (projection,) = (part for name, part in model.named_modules() if re.search(r"\.1\.mlp\.(down|c)_proj$", name))
    read = []
    handle = projection.register_forward_hook(lambda module, inputs, output: read.append(inputs[0]))
    frame = gate_values(model, batch)
    handle.remove()
    assert model.training
    assert frame[["row", "position"]].drop_duplicates().to_numpy().tolist() == mask.nonzero().tolist()
    own = frame[(frame["layer"] == 2) & (frame["site"] == "down_proj")]
    product = own[own["kind"] == "channel"].merge(own[own["kind"] == "scalar"], on=["row", "position"])
    with torch.no_grad():
        gamma = projection.gate(read[0])[mask].ravel()
        hidden = model.eval()(**batch, output_hidden_states=True).hidden_states
    np.testing.assert_allclose(product["value_x"] * product["value_y"], gamma, rtol=1e-5)

    layers = residual_stream(model, batch)
    first = torch.cosine_similarity(hidden[0][mask], hidden[1][mask], dim=-1)  # behind the last there is a norm
    np.testing.assert_allclose(layers.loc[layers["layer"] == 1, "cosine"], first, rtol=1e-5)

    plain = residual_stream(unwrap(model, discard=True), batch)
    for method in ({"name": "laurel-lr", "rank": 2}, "hyper-connections"):  # these start as an addition, but for bits
        connected = residual_stream(wrap(model, method, start="paper"), batch)
        assert_frame_equal(connected.drop(columns=NUMBERS), plain.drop(columns=NUMBERS))
        np.testing.assert_allclose(connected[NUMBERS], plain[NUMBERS], rtol=1e-4, atol=1e-4)
        unwrap(model, discard=True)


def test_of_a_translator_both_stacks_on_their_sequences():
    model = toy_model(
        toy_spec("post-ln", {"name": "comt", "residual": "post-norm"}, encoder_layers=1, decoder_layers=2)
    )
    pairs = {"input_ids": [[3, 4, 1], [5, 1]], "decoder_input_ids": [[2, 6], [2, 7]]}
    frame = gate_values(model, pairs)
    per_part = frame.groupby(["stack", "part", "text"])["site"].unique().map(list).to_dict()
    ends, both = ["q_proj", "k_proj", "v_proj", "o_proj"], ["up_proj", "down_proj"]
    assert per_part == {
        ("encoder", "attention", "source"): ends,
        ("encoder", "mlp", "source"): both,
        ("decoder", "attention", "target"): ends,
        ("decoder", "cross", "target"): ["q_proj", "o_proj"],
        ("decoder", "cross", "source"): ["k_proj", "v_proj"],
        ("decoder", "mlp", "target"): both,
    }
    assert (frame[frame["text"] == "source"].groupby(["stack", "part", "layer", "site"]).size() == 5).all()
    streams = residual_stream(model, pairs)
    places = {("encoder", "source", 1): 5, ("decoder", "target", 1): 4, ("decoder", "target", 2): 4}
    assert streams.groupby(["stack", "text", "layer"]).size().to_dict() == places
    with pytest.raises(UserError, match="no decoder_input_ids"):
        gate_values(model, RAGGED)


def test_the_model_stays_as_it_was_also_where_it_fails():
    model = network(name="comt", residual="hyper-connections")
    model.train()
    model.blocks[1].eval()
    model.blocks[0].attention.fused = model.blocks[1].attention.qkv.fused = True  # whose kernels hooks cannot see into
    model.head.weight.requires_grad_(False)
    before = [(module.training, vars(module).get("fused"), {*vars(module)}) for module in model.modules()]
    gradients = {name: parameter.requires_grad for name, parameter in model.named_parameters()}

    def check():
        after = [(module.training, vars(module).get("fused"), {*vars(module)}) for module in model.modules()]
        assert after == before
        assert not any(module._forward_hooks for module in model.modules())
        assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == gradients
        assert all(parameter.grad is None for parameter in model.parameters())
        assert torch.is_grad_enabled()

    plain = network(name="comt", residual="hyper-connections").eval()
    for observe in (gate_values, residual_stream):
        assert_frame_equal(observe(model, RAGGED), observe(plain, RAGGED))
        check()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Llama, "outputs", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                observe(model, RAGGED)
        check()


def test_half_precision_is_observed_in_its_own_type():
    model = network(name="transponder", rank=2)
    expected = gate_values(model, RAGGED), residual_stream(model, RAGGED)
    model.bfloat16()
    gates, stream = gate_values(model, RAGGED), residual_stream(model, RAGGED)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert gates["value"].dtype == np.float32
    np.testing.assert_allclose(gates["value"], expected[0]["value"], atol=0.15)
    assert (gates["value"] - expected[0]["value"]).abs().mean() < 0.01
    np.testing.assert_allclose(stream["cosine"], expected[1]["cosine"], atol=0.03)


def test_texts_need_a_tokenizer_and_batches_tokens():
    model = network(name="comt", sites=["q_proj"])
    named = gate_values(torch.compile(model), ["abc", "de"], tokenizer=Letters())
    assert named["token"].tolist()[:5] == [*"abcde"]
    for batch, said in {
        "abc": "a text needs a tokenizer",
        (): "must be text, or token ids",
        3: "must be text, or token ids",
        ((3, 4), ()): "must be text, or token ids",
        ((0.5,),): "must be text, or token ids",
        ((3, 50),): "has the id 50; valid ids are 0 to 49",
    }.items():
        with pytest.raises(UserError, match=said):
            gate_values(model, batch)
    with pytest.raises(UserError, match="padding before tokens"):
        gate_values(model, {"input_ids": [[0, 3]], "attention_mask": [[0, 1]]})
    with pytest.raises(UserError, match=r"attention_mask is \[1, 1\], and input_ids is \[1, 2\]"):
        gate_values(model, {"input_ids": [[3, 4]], "attention_mask": [[1]]})
    for plain in (network(name="pre-ln"), nn.Linear(2, 2)):
        with pytest.raises(UserError, match="the model has no gates"):
            gate_values(plain, RAGGED)
    with pytest.raises(UserError, match="no list of blocks"):
        residual_stream(nn.Linear(2, 2), RAGGED)


def test_the_examples_give_what_they_say():
    pytest.importorskip("transformers")
    found = doctest.testmod(values)
    assert (found.failed, found.attempted > 0) == (0, True)
