"""The encoder-decoder: its sizes and what methods add to them, its special cases, and what it has from `Model`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

import pytest
from method_cases import wiring_of
from small_networks import PAIRS, SOURCE, TARGET, VOCABULARY, pair_model
from torch import nn

from comt_cli.errors import UserError
from comt_cli.layers.gates import ComtGate
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.norm_placement import PostNorm
from comt_cli.methods.base import Wiring
from comt_cli.models.accounting import Network, count
from comt_cli.models.build import empty_network
from comt_cli.models.flops import flops_per_sample, parameter_count
from comt_cli.models.transformer import Transformer
from comt_cli.tasks.settings.translation import TransformerSettings

BASE, BIG = TransformerSettings(size="base"), TransformerSettings(size="big")


def empty(settings: TransformerSettings, method: str | dict, vocabulary: int = 37_000) -> Transformer:
    wiring = wiring_of({"name": method} if isinstance(method, str) else method)
    return empty_network(settings, wiring, vocabulary=vocabulary)


def test_initial_values_are_glorots():
    model = pair_model({"name": "post-ln"}, TransformerSettings(size="nano", width=192, ffn_width=256))
    assert model.embedding.weight.std().item() == pytest.approx(192**-0.5, rel=0.05)
    for part in (part for part in model.modules() if isinstance(part, Projections)):
        for site, weight in zip(part.sites, part.site_weights().values(), strict=True):
            bound = math.sqrt(6 / (site.d_in + site.d_out))
            assert 0.98 * bound < weight.abs().max() <= bound
        assert part.bias is None or not part.bias.any()


def test_the_plain_network_counts_what_the_published_one_does():
    printed = {
        ("base", 37_000): 63_045_632,
        ("base", 32_000): 60_485_632,
        ("big", 37_000): 214_171_648,
        ("big", 32_768): 209_838_080,
    }
    for (size, vocabulary), post_ln in printed.items():
        settings = TransformerSettings(size=size)
        assert parameter_count(empty(settings, "post-ln", vocabulary)) == post_ln
        assert parameter_count(empty(settings, "pre-ln", vocabulary)) == post_ln + 4 * settings.shape().width


ADDED = {
    "sas": ({"name": "sas"}, "post-ln", 31_518_780, 125_952_060),
    "grc, both": ({"name": "grc", "reads": "both"}, "pre-ln", 15_744_000, 62_945_280),
    "grc, ffn": ({"name": "grc", "at": "ffn"}, "pre-ln", 3_151_872, 12_595_200),
    "eau+grc": ({"name": "eau+grc", "norm": "post"}, "post-ln", 7_098_624 + 7_879_680, 28_353_024 + 31_488_000),
    "comt": ({"name": "comt", "hidden": 2}, "pre-ln", 135_360, 270_528),
    "transponder": ({"name": "transponder", "rank": 8}, "pre-ln", 1_082_304, 2_163_648),
}


def test_what_methods_add():
    for settings, size in ((BASE, 2), (BIG, 3)):
        plain = {name: parameter_count(empty(settings, name)) for name in ("post-ln", "pre-ln")}
        found = {name: parameter_count(empty(settings, each[0])) - plain[each[1]] for name, each in ADDED.items()}
        assert found == {name: each[size] for name, each in ADDED.items()}


def test_a_gate_of_swiglu_is_served_by_up_proj_and_refused_alone():
    def model(*sites: str) -> Transformer:
        return pair_model({"name": "comt", "sites": list(sites)})

    assert "up_proj" in model("gate_proj", "up_proj").encoder[0].mlp.up.gates
    for sites in (("gate_proj",), ("gate_proj", "down_proj")):
        with pytest.raises(UserError, match="an encoder-decoder have no gate_proj"):
            model(*sites)
    with pytest.raises(UserError, match="have no conv1"):
        pair_model(Wiring(PostNorm, {"conv1": partial(ComtGate.at, hidden=2, init="normal")}))


def test_deepnorm_scales_by_both_depths():
    settings = TransformerSettings(size="nano", width=192, ffn_width=256, encoder_layers=6, decoder_layers=6)
    model = pair_model({"name": "deepnorm"}, settings)
    for stack, alpha, beta in (
        (model.encoder, 0.81 * (6**4 * 6) ** (1 / 16), 0.87 * (6**4 * 6) ** (-1 / 16)),
        (model.decoder, 18**0.25, 72**-0.25),
    ):
        for block in stack:
            for connection in block.connections:
                assert (connection.alpha, connection.beta) == (pytest.approx(alpha), pytest.approx(beta))
            for part in (part for part in block.modules() if isinstance(part, Projections)):
                for site in part.sites:
                    gain = 1 if site.name in ("q_proj", "k_proj") else beta
                    wanted = gain * math.sqrt(2 / (site.d_in + site.d_out))
                    # 36864 draws or more: the standard error of a standard deviation is 0.4 %.
                    assert part.site_weights()[site.name].std().item() == pytest.approx(wanted, rel=0.02), site
    first = [stack[0].attention_connection for stack in (model.encoder, model.decoder)]
    assert [(round(c.alpha, 3), round(c.beta, 3)) for c in first] == [(1.418, 0.497), (2.06, 0.343)]
    assert isinstance(model.encoder_norm, nn.Identity)


def test_flops_and_memory():
    """By hand: 2 a multiply-add, thrice for the backward pass; attention in full."""
    settings, length = PAIRS, 8
    model = empty_network(settings, wiring_of({"name": "post-ln"}), vocabulary=VOCABULARY, length=length)
    d, f, V = 24, 40, VOCABULARY
    products = 2 * (4 * d * d + 2 * d * f) + 3 * (8 * d * d + 2 * d * f) + V * d
    mixing = (2 + 2 * 3) * 2 * length * d
    assert flops_per_sample(model) == 3 * 2 * length * (products + mixing)
    dimensions = json.dumps({"vocabulary": V, "length": length})
    network = Network(settings.model_dump_json(), dimensions, '{"name": "comt"}', "pre-ln")
    cost, is_ours = count(network)
    assert is_ours
    comt, pre_ln = (parameter_count(pair_model({"name": name})) for name in ("comt", "pre-ln"))
    assert cost.extra_parameters == comt - pre_ln
    recomputed, _ = count(replace(network, recomputes=True))
    assert recomputed.kept_per_row < cost.kept_per_row
    assert recomputed.flops_per_row == cost.flops_per_row
    dropped = settings.model_copy(update={"attention_dropout": 0.1}).model_dump_json()
    assert count(replace(network, model=dropped))[0].kept_per_row > cost.kept_per_row


def test_the_cache_says_what_it_cannot_hold():
    model = pair_model({"name": "post-ln"}).eval()
    memory, cache = model.encode(SOURCE), model.decoding_cache(3, 2)
    for column in range(2):
        assert model.step(TARGET[:, column : column + 1], cache, memory).shape == (3, VOCABULARY)
    with pytest.raises(UserError, match="room for 2 tokens per text; 3 are needed"):
        model.step(TARGET[:, :1], cache, memory)
    with pytest.raises(UserError, match="cannot reserve a cache"):
        model.decoding_cache(2**30, 2**20)
    assert not any(tensor.requires_grad for tensor in (*memory.keys, *memory.values))
