"""The figure of how far gates moved from one, and the recipe that draws it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_recipe import shipped
from test_analysis import TEXT, loaded
from torch import nn

from comt_cli.analysis.figures.gates_moved import GatesMoved
from comt_cli.analysis.model_figure import Subject
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.runs.plan import plan


def identity(**options) -> LoadedModel:
    one = loaded(**options)
    one.model.comt_wrapping = SimpleNamespace(start="identity")
    return one


def frame_of(**models: LoadedModel):
    of = Subject(text=TEXT)
    of.models = models  # in place of those of runs
    return GatesMoved().frame(of)


def test_gates_and_low_rank_maps_moved_as_far_as_they_were_made_to():
    comt = identity(name="comt", scale=2, sites=["o_proj", "q_proj"])
    transponder = identity(name="transponder", sites=["down_proj"])
    laurel = identity(name="laurel-lr", rank=32)
    with torch.no_grad():
        for layer, block in enumerate(comt.model.blocks):
            for projections in (block.attention.qkv, block.attention.output):
                for gate in projections.gates.values():
                    nn.init.zeros_(gate.A)
                    gate.B.fill_(-0.1 * layer)  # of two, each of which 1/2 is multiplied with
        for block in transponder.model.blocks:
            gate = block.mlp.down.gates["down_proj"]
            nn.init.zeros_(gate.A)
            nn.init.zeros_(gate.B_scalar)
            gate.B_channel.copy_(torch.tensor([[0.1], [-0.1]]).repeat(16, gate.rank))
        for block in laurel.model.blocks:
            for part, share in (("attention", 0.25), ("mlp", 0.5)):
                low_rank = getattr(block, f"{part}_connection").low_rank
                nn.init.eye_(low_rank.A)
                low_rank.B.copy_(share * torch.eye(32))
    frame = frame_of(comt=comt, transponder=transponder, laurel=laurel, plain=identity(name="pre-ln"))
    assert [*frame] == ["row", "site", "layer", "moved", "mean"]
    assert list(dict.fromkeys(frame["row"])) == ["comt", "transponder", "laurel"]
    moved = {place[:3]: place[3:] for place in frame.itertuples(index=False, name=None)}
    alpha, rank = np.exp(0.3), transponder.model.blocks[0].mlp.down.gates["down_proj"].rank
    up = 2 / (1 + np.exp(-alpha * 0.1 * rank / 2)) - 1
    for layer in (1, 2, 3):
        gamma = 2 / (1 + np.exp(0.1 * (layer - 1)))
        for site in ("q_proj", "o_proj"):
            assert moved["comt", site, layer] == pytest.approx((1 - gamma, gamma), abs=1e-6)
        assert moved["transponder", "down_proj", layer] == pytest.approx((up, 1))  # half of the channels, half down
        for site, share in (("attention low-rank", 0.25), ("mlp low-rank", 0.5)):
            assert moved["laurel", site, layer] == pytest.approx((share, np.nan), nan_ok=True)
    said = GatesMoved().sentences(frame)
    assert "comt: 0.05 (most at o_proj of layer 3, 0.1, mean factor 0.9501)" in said[-1]
    assert any("low-rank" in sentence for sentence in said)


def test_what_did_not_start_at_one_is_refused_and_what_did_not_move_is_drawn():
    with pytest.raises(UserError, match="the gates of other did not start at one"):
        frame_of(other=loaded(name="comt"))
    assert frame_of(plain=loaded(name="pre-ln")).empty
    still = identity(name="transponder")
    for gate in (gate for block in still.model.blocks for gate in block.mlp.down.gates.values()):
        gate.start_at_one()
    figure, of = GatesMoved(), Subject(loaded=still, text=TEXT)
    assert figure.suits(of)
    assert not figure.suits(Subject(loaded=loaded(name="transponder")))
    assert not figure.suits(Subject(loaded=identity(name="pre-ln")))
    frame = figure.frame(of)
    unmoved = frame[frame["site"] == "down_proj"]
    assert (unmoved["moved"] == 0).all()
    figure.draw(unmoved)


def test_its_recipe_draws_the_runs_of_the_table():
    table, figure = (shipped(f"ours/{name}") for name in ("retrofit", "retrofit-gates"))
    for scale in table.recipe.scales:
        known = {spec.id: spec.row for spec in plan(table, scale)}
        drawn = {spec.id: spec.row for spec in plan(figure, scale)}
        assert drawn.items() <= known.items()
        assert {*known.values()} - {*drawn.values()} == {"plain"}
