"""Observations of translators against the gates and the equations of the residual connections themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy_translation import TOKENIZER, toy_model, toy_spec

from comt_cli.analysis.figures.gate_summary import summary_frame
from comt_cli.analysis.figures.residual_shares import ResidualShares
from comt_cli.analysis.model_figure import Subject
from comt_cli.analysis.observed import observed_gates, observed_pair
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedTranslator
from comt_cli.generation.translate import translator
from comt_cli.layers.gates import Gate
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.base import ResidualConnection

TEXT = "Trains at 9:30."
MORE = 7  # the longest translation of an untrained network


def loaded(seed: int = 0, **method) -> LoadedTranslator:
    """A translator as if trained a little, whose encoder and decoder are of other depths; it says a few tokens."""
    spec = toy_spec(method=method, encoder_layers=2, decoder_layers=3)
    model = toy_model(spec, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    decode = spec.settings.decode.model_copy(update={"max_extra": MORE})
    return LoadedTranslator(model, "m", "a network", TOKENIZER, decode, 40, spec=spec)


def test_the_pair_is_a_sentence_and_what_beam_search_makes_of_it() -> None:
    one = loaded(name="comt")
    on = observed_pair(one, f"  {TEXT}\n")
    using = translator(one, torch.device("cpu"))
    (((best, *_),),) = using.pools([TEXT], one.decode)
    assert on.sequences["source"].inputs[0][0].tolist() == [*TOKENIZER.encode(TEXT), TOKENIZER.special.end]
    assert on.sequences["target"].inputs[0][0].tolist() == [using.begin, *best.hypothesis.tokens]
    assert [*on.sequences] == ["source", "target"]  # as the model takes them
    assert "".join(on.sequences["source"].pieces[:6]) == "Trains"
    assert f"“{TEXT}”" in on.said[0]
    assert best.text in on.said[0]


def test_sentences_that_cannot_be_used_are_refused() -> None:
    one = loaded(name="comt")
    for text, count in (("", 0), (" \n ", 0), ("a" * 40, 40)):
        with pytest.raises(UserError, match=f"the text has {count} tokens; m takes 1 to 39"):
            observed_pair(one, text)
    assert len(observed_pair(one, "a" * 39).sequences["source"].pieces) == 40
    with torch.no_grad():
        one.model.embedding.weight[5] = np.nan
    with pytest.raises(UserError, match="not finite"):
        observed_pair(one, TEXT)


@torch.no_grad()
def test_values_are_those_that_the_gates_multiply_with() -> None:
    """Output of each gate while the network ran, in the place that its module has in the network."""
    one = loaded(name="transponder", residual="post-norm")
    on = observed_pair(one, TEXT)
    model = one.model.eval()
    expected: dict[tuple[tuple[str, ...], str, int], Tensor] = {}

    def keep(place: tuple[str, ...], layer: int, gate: Gate, scaled: Any, z_BTN: Tensor, u_BTr: Tensor) -> Tensor:
        expected.update({(place, kind, layer): value[0] for kind, value in gate.values(u_BTr).items()})
        return scaled(z_BTN, u_BTr)

    for stack, blocks in model.stacks.items():
        for layer, block in enumerate(blocks, start=1):
            for name, carrier in block.named_modules():
                if isinstance(carrier, Projections):
                    part = name.partition(".")[0]
                    text = "source" if stack == "encoder" or name == "cross.key_value" else "target"
                    for site, gate in carrier.gates.items():
                        place = (stack, part, text, site)
                        gate.scaled = partial(keep, place, layer, gate, gate.scaled)
    model(*on.inputs)
    values = observed_gates(one, on)
    found = {(tuple(each.where.values()), each.kind, each.layer): each for each in values}
    assert found.keys() == expected.keys()
    for key, each in found.items():
        assert list(each.tokens) == on.sequences[each.where["text"]].pieces
        wanted = expected[key].expand(len(each.tokens), -1).numpy()
        np.testing.assert_allclose(each.values, wanted, rtol=1e-5, err_msg=str(key))
    assert list(summary_frame(values))[:6] == ["stack", "part", "text", "site", "kind", "layer"]


def affine(map_: nn.Module, x: Tensor) -> Tensor:
    return x @ map_.weight.T + map_.bias


def sas_gate(gate: nn.Module, both: Tensor) -> Tensor:
    return torch.sigmoid(affine(gate.output, torch.tanh(affine(gate.hidden, both))))


def sas(at: ResidualConnection, x: Tensor, branch) -> tuple[dict[str, Tensor], Tensor]:
    out = branch(x)
    both = torch.cat([x, out], dim=-1)
    a, b = sas_gate(at.alpha_gate, both), sas_gate(at.beta_gate, both)
    third = (
        ("(1-alpha)(1-beta)", (1 - a) * (1 - b)) if at.gamma_gate is None else ("gamma", sas_gate(at.gamma_gate, both))
    )
    return {"alpha": a, "beta": b, third[0]: third[1]}, a * x + b * out + third[1] * at.norm(x + out)


def grc(at, x, branch):
    is_post = at.ends_in_norm
    out = branch(x if is_post else at.norm(x))
    read = {"skip": x, "sublayer": out, "both": torch.cat([x, out], dim=-1)}[at.reads]
    g = torch.sigmoid(affine(at.gate, read))
    return {"g": g}, at.norm(x + g * out) if is_post else x + g * out


def laurel(at, x, branch):
    a, b = torch.softmax(at.weights.value, 0)
    return {"a": a, "b": b}, a * branch(at.norm(x)) + b * x


EQUATIONS = {
    "sas": ({"name": "sas"}, sas),
    "grc": ({"name": "grc", "norm": "post"}, grc),
    "laurel": ({"name": "laurel-rw"}, laurel),
}


@torch.no_grad()
@pytest.mark.parametrize(("method", "equation"), EQUATIONS.values(), ids=list(EQUATIONS))
def test_shares_are_those_of_the_connections_own_equation(method, equation) -> None:
    one = loaded(**method)
    on = observed_pair(one, TEXT)
    expected = []

    def compute(connection: ResidualConnection, read: tuple, y: Tensor) -> None:
        shares, mine = equation(connection, *read)
        torch.testing.assert_close(mine, y, rtol=1e-4, atol=1e-4)  # so the shares are the equation's
        junction = connection.site
        tokens = len(on.sequences["source" if junction.stack == "encoder" else "target"].pieces)
        for share, value in shares.items():
            deviation = float(value.std(correction=0))
            where = (junction.stack, junction.layer + 1, junction.part, share)
            expected.append((*where, float(value.mean()), deviation, tokens))

    for module in one.model.eval().modules():
        if isinstance(module, ResidualConnection):
            module.register_forward_hook(compute)
    one.model(*on.inputs)
    computed, expected = expected, []
    frame = ResidualShares().frame(Subject(loaded=one, text=TEXT))
    assert (frame["low"] <= frame["high"]).all()
    keys = ["stack", "layer", "part", "share", "tokens"]
    assert [*frame[keys].itertuples(index=False, name=None)] == [(*each[:4], each[6]) for each in computed]
    np.testing.assert_allclose(frame["mean"], [each[4] for each in computed], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(frame["std"], [each[5] for each in computed], rtol=1e-3, atol=1e-5)  # fp32: may be 0
