"""What a wiring puts into any model: connections that know their place, gates at every kind of site, norms by place."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from image_method_cases import NETWORKS
from method_cases import SETTINGS, VOCABULARY
from pydantic import ValidationError
from torch import nn

from comt_cli.errors import UserError
from comt_cli.layers.convolution import BatchNorm
from comt_cli.layers.gates import ComtGate
from comt_cli.layers.norms import NormPlace
from comt_cli.layers.residual.base import ResidualSite
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.methods import method_from
from comt_cli.methods.base import Wiring
from comt_cli.models.base import Model
from comt_cli.models.build import empty_network
from comt_cli.models.kernels import use_kernels

CPU = torch.device("cpu")


def language(wiring: Wiring) -> Model:
    return empty_network(SETTINGS, wiring, vocabulary=VOCABULARY)


def images(wiring: Wiring, network: str = "basic") -> Model:
    return empty_network(NETWORKS[network], wiring, classes=3)


def test_connections_know_where_they_are():
    seen: list[ResidualSite] = []

    def residual(site: ResidualSite) -> PreNorm:
        seen.append(site)
        return PreNorm(site)

    model = language(Wiring(residual))
    found = [(j.index, j.count, j.layer, j.layers, j.part) for j in seen[:3]]
    assert found == [(0, 8, 0, 4, "attention"), (1, 8, 0, 4, "mlp"), (2, 8, 1, 4, "attention")]
    first = model.stacks["decoder"][0]
    assert [list(j.before) for j in seen[:3]] == [[], [first.attention_connection], []]
    seen.clear()
    images(Wiring(residual))
    assert [(j.index, j.count, j.layer, j.layers, j.part) for j in seen] == [(0, 2, 0, 2, "map"), (1, 2, 1, 2, "map")]
    assert {j.stack for j in seen} == {"blocks"}


def test_a_gate_that_would_be_nowhere_is_refused():
    for build, site in ((language, "conv1"), (images, "q_proj"), (images, "conv3")):
        with pytest.raises(UserError, match=f"have no {site}"):
            build(Wiring(PreNorm, {site: partial(ComtGate.at, hidden=2, init="normal")}))


def test_norms_are_made_by_their_place():
    def named(place: NormPlace) -> nn.Module:
        norm = nn.Identity()
        norm.of = place.of
        return norm

    model = language(Wiring(PreNorm, norms={"*": named, "mlp": lambda place: nn.RMSNorm(place.width)}))
    (block, *_) = model.stacks["decoder"]
    assert (block.attention_connection.norm.of, model.final_norm.of) == ("attention", "final")
    assert isinstance(block.mlp_connection.norm, nn.RMSNorm)
    resnet = images(Wiring(PreNorm, norms={"norm2": named}))
    (block, *_) = resnet.stacks["blocks"]
    assert isinstance(block.norms["norm1"], BatchNorm)
    assert block.norms["norm2"].of == "norm2"
    use_kernels(resnet, "fused", CPU, torch.float32, compiled=False)
    assert not block.conv2.fused


def test_a_method_is_the_same_run_however_it_is_named():
    expected = {"of": {"name": "comt", **method_from({"name": "comt"}).stored()}}
    for of in ("comt", {"name": "comt"}, {"name": "comt", "hidden": 2}):
        assert method_from({"name": "embedding-norm", "of": of}).stored() == expected
    assert method_from({"name": "embedding-norm"}).stored() == {}
    assert method_from({"name": "embedding-norm", "of": "pre-ln"}).stored() == {}
    for wrong in ("embedding-norm", "wider", "comt-pixel", {"hidden": 2}):
        with pytest.raises(ValidationError, match=r"there is no method .* of language models that is allowed here"):
            method_from({"name": "embedding-norm", "of": wrong})
    with pytest.raises(ValidationError, match="hidden"):
        method_from({"name": "embedding-norm", "of": {"name": "comt", "hidden": "2"}})
