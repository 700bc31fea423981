"""The numbers behind the figures, against naive second computations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from comt_cli.analysis.figures.gate_summary import summary_frame
from comt_cli.analysis.figures.mixing import DISPERSION, READ_OUT, Mixing
from comt_cli.analysis.figures.tokens import ChannelGates, GateValues, ResidualStream
from comt_cli.analysis.model_figure import Subject
from comt_cli.analysis.observed import DEFAULT_TEXT, Observation, SiteValues, observed_gates, tokens_of, watch
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.layers.initialise import initialise
from comt_cli.layers.positions import rotation_table
from comt_cli.layers.residual.base import State
from comt_cli.layers.residual.norm_placement import contributions
from comt_cli.layers.shared_values import SharedValues
from comt_cli.methods import method_from
from comt_cli.models.llama import Llama
from comt_cli.models.recorded import recorded
from comt_cli.tasks.settings.language import ModelSettings

TEXT = "Once a castle."
VOCABULARY = 130


class Letters:
    """One token a character, and an end."""

    def encode(self, text: str) -> list[int]:
        return [*self.prompt(text), 128]

    def prompt(self, text):
        return list(text.encode("ascii")) or [128]  # as of a real one: what a text begins after

    def pieces(self, ids) -> list[str]:
        return [chr(i) if i < 128 else "</s>" for i in ids]


def loaded(**options) -> LoadedModel:
    settings = ModelSettings(size="tiny", width=32, ffn_width=48, layers=3, heads=4, kv_heads=2)
    model = Llama(settings, VOCABULARY, method_from(options).wiring())
    initialise(model, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "log_alpha" in name:
                parameter.fill_(0.3)
            elif parameter.ndim == 2:
                parameter.mul_(5)
    return LoadedModel(model, options["name"], "a network", Letters(), 64)


def gate_values(source: LoadedModel, text: str) -> list[SiteValues]:
    return observed_gates(source, Observation({"text": tokens_of(source, text)}))


def by_site(values: list[SiteValues]) -> dict[tuple[str, str], dict[int, np.ndarray]]:
    found: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    for each in values:
        found.setdefault((each.where["site"], each.kind), {})[each.layer] = each.values
    return found


def frame_of(figure, source: LoadedModel, text: str = TEXT, site: str | None = None) -> pd.DataFrame:
    return figure().frame(Subject(loaded=source, text=text, site=site))


def test_frames_have_the_values_of_gates_and_channels_are_thinned_out(monkeypatch) -> None:
    source = loaded(name="transponder", rank=4)
    values = by_site(gate_values(source, TEXT))
    scalar = frame_of(GateValues, source)
    assert scalar["token"].tolist()[: len(TEXT)] == list(TEXT)
    for (site, layer), own in scalar.groupby(["site", "layer"]):
        np.testing.assert_allclose(own["value"], values[site, "scalar"][layer][:, 0], rtol=1e-6)
    assert len(scalar) == 7 * 3 * len(TEXT)
    monkeypatch.setattr("comt_cli.analysis.figures.tokens.MAX_CHANNELS", 11)
    channel = frame_of(ChannelGates, source)
    assert sorted(channel["channel"].unique()) == list(range(0, 32, 3))
    for layer, own in channel.groupby("layer"):
        found = own.pivot(index="position", columns="channel", values="value").to_numpy()
        np.testing.assert_allclose(found, values["down_proj", "channel"][layer][:, ::3], rtol=1e-6)
    with pytest.raises(UserError, match="no channel-wise gates at nose") as caught:
        frame_of(ChannelGates, source, site="nose")
    assert "q_proj, k_proj" in str(caught.value)


def test_the_summary_counts_what_it_says() -> None:
    values = gate_values(loaded(name="transponder", rank=4), TEXT)
    frame = summary_frame(values)
    assert len(frame) == 7 * 2 * 3
    for row in frame.itertuples():
        numbers = by_site(values)[row.site, row.kind][row.layer].ravel().tolist()
        mean = sum(numbers) / len(numbers)
        assert row.mean == pytest.approx(mean, rel=1e-5)
        assert row.std == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in numbers) / len(numbers)), rel=1e-3)
        assert row.saturation == pytest.approx(sum(v < 0.1 or v > 1.9 for v in numbers) / len(numbers))
        assert row.p5 <= mean <= row.p95
        assert (row.low, row.high) == (0, 2)
    assert frame["saturation"].max() > 0


def mixture_of(**options):
    one = loaded(**options)
    return one, frame_of(Mixing, one)


def one_weight(frame, weight: str, layer: int, part: str):
    own = frame[(frame["weight"] == weight) & (frame["layer"] == layer) & (frame["part"] == part)]
    return own.pivot(index="target", columns="source", values="mean").to_numpy()


def test_attention_over_depth_is_what_the_junction_makes_of_its_sources():
    one, frame = mixture_of(name="attention-residuals", blocks=3)
    assert np.allclose(one_weight(frame, "attention", 3, "mlp"), 1 / 4)  # e, two blocks, and the sum so far
    with torch.no_grad():
        for block in one.model.blocks:
            for connection in block.connections:
                if connection.attention is not None:
                    connection.attention.query.value.normal_(generator=torch.Generator().manual_seed(1))
    changed = frame_of(Mixing, one)
    assert one_weight(changed, "attention", 3, READ_OUT).shape == (1, 4)  # e, and three blocks
    for _, own in changed.groupby(["layer", "part"]):
        assert own["mean"].sum() == pytest.approx(1)
    assert (changed["std"] > 0).any()
    assert "step" not in vars(one.model.blocks[0].attention_connection)


def test_the_shares_of_multiway_dense_connections_make_what_a_block_begins_with():
    one, frame = mixture_of(name="muddformer")
    for weight in ("queries", "keys", "values", "stream"):
        assert one_weight(frame, weight, 3, "attention").tolist() == [[0, 0, 1]]
    with torch.no_grad():
        for block in one.model.blocks:
            block.mlp_connection.dense.W2.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    connection = one.model.blocks[2].attention_connection
    changed = frame_of(Mixing, one)
    with recorded([connection], "step") as calls:
        watch(one, tokens_of(one, TEXT).inputs)
    state = calls[connection][0][0]
    query_BTD, _, value_BTD = state.qkv
    for name, way_BTD in (("queries", query_BTD), ("values", value_BTD), ("stream", state.x)):
        shares_BTJ = connection.mixing(state)[name]
        expected = torch.einsum("btj,jbtd->btd", shares_BTJ, torch.stack(state.sources))
        torch.testing.assert_close(way_BTD, expected)
        assert (changed.loc[changed["weight"] == name, "std"] > 0).any()


@pytest.mark.parametrize("method", ["pre-ln", "deepnorm"])
def test_cosine_and_norm_ratio_are_those_of_every_blocks_stream(method) -> None:
    source = loaded(name=method)
    frame = frame_of(ResidualStream, source).set_index(["layer", "position"])
    ids = torch.tensor([Letters().prompt(TEXT)])
    with torch.no_grad():
        x = source.model.embedding(ids)
        rotation = rotation_table(ids.shape[1], 8, source.model.settings.rope_theta, x)
        for layer, block in enumerate(source.model.blocks, start=1):
            y = block(State(x), rotation).stream
            a, b = x[0].double().numpy(), y[0].double().numpy()
            sizes = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1), np.linalg.norm(b - a, axis=1)
            cosine, row = (a * b).sum(1) / sizes[0] / sizes[1], frame.loc[layer]
            np.testing.assert_allclose(row["cosine"], cosine, atol=1e-6)
            np.testing.assert_allclose(row["angle"], np.arccos(cosine) / np.pi, atol=1e-6)
            np.testing.assert_allclose(row["norm_ratio"], sizes[1] / sizes[0], rtol=1e-6)
            along = (a * (b - a)).sum(1) / sizes[0] / sizes[2]
            np.testing.assert_allclose(row["update_cosine"], along, atol=1e-6)
            x = y


def test_texts_and_networks_that_cannot_be_used_are_refused() -> None:
    source = loaded(name="comt")
    for text, count in (("", 1), ("a" * 100, 100)):
        with pytest.raises(UserError, match=f"the text has {count} tokens; comt takes 2 to 64"):
            tokens_of(source, text)
    assert "".join(tokens_of(replace(source, context_length=20)).pieces) == DEFAULT_TEXT[:20]
    with pytest.raises(UserError, match="mixes no streams, outputs or values"):
        frame_of(Mixing, source)
    source.model.to(torch.bfloat16)
    assert by_site(gate_values(source, TEXT))["q_proj", "scalar"][1].dtype == np.float32
    with torch.no_grad():
        source.model.head.weight[0, 0] = np.nan
    with pytest.raises(UserError, match="not finite"):
        frame_of(ResidualStream, source)
    assert not any(module._forward_hooks for module in source.model.modules())


GATED = [
    ({"name": "sdpa-gate", "granularity": "headwise"}, {("sdpa", "head"): 4}),
    ({"name": "transponder-path"}, {("attention", "scalar"): 1, ("mlp", "scalar"): 1}),
    ({"name": "transponder-static", "sites": ["o_proj"]}, {("o_proj", "channel"): 32}),
]


@pytest.mark.parametrize(("options", "widths"), GATED, ids=["heads", "branches", "static"])
def test_gates_anywhere_are_found(options, widths) -> None:
    found = by_site(gate_values(loaded(**options), TEXT))
    assert {key: by_layer[1].shape for key, by_layer in found.items()} == {
        key: (len(TEXT), width) for key, width in widths.items()
    }


@pytest.mark.parametrize("name", ["hyper-connections", "muddformer", "siamese-norm"])
def test_the_stream_of_compound_states_is_compared_from_layer_to_layer(name):
    """At the start that of Hyper-Connections and MUDD is Pre-LN's, but for an epsilon of the norms."""
    frame = frame_of(ResidualStream, loaded(name=name))
    assert sorted(frame["layer"].unique()) == [1, 2, 3]
    assert np.isfinite(frame[["cosine", "norm_ratio"]]).all(axis=None)
    if name != "siamese-norm":
        expected = frame_of(ResidualStream, loaded(name="pre-ln"))
        np.testing.assert_allclose(frame["cosine"], expected["cosine"], atol=1e-3)
        np.testing.assert_allclose(frame["norm_ratio"], expected["norm_ratio"], rtol=1e-3)


def test_shares_of_skip_connections_and_of_what_is_subtracted_at_the_end():
    """As they start: sigmoid(-1.5), which both sigmoid(0) and its factor leave alone, and 0.2. They can be drawn."""
    _, frame = mixture_of(name="skip-gates")
    assert set(frame["weight"]) == {"skip-stream"}
    np.testing.assert_allclose(one_weight(frame, "skip-stream", 3, "attention"), [[1 / (1 + math.exp(1.5)), 1]])
    Mixing().draw(frame)
    _, frame = mixture_of(name="backout")
    np.testing.assert_allclose(one_weight(frame, "middle-last", 3, READ_OUT), [[-0.2, 1]], rtol=1e-6)
    Mixing().draw(frame)


def test_two_siamese_streams_begin_as_one_and_share_what_branches_read():
    _, frame = mixture_of(name="siamese-norm")
    shares = frame[frame["weight"] == "x-y"]
    assert len(shares) == 2 * 7  # six junctions, and the read-out
    np.testing.assert_allclose(shares.groupby(["layer", "part"])["mean"].sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(one_weight(frame, "x-y", 1, "attention"), [[0.5, 0.5]], rtol=1e-5)
    apart = frame[frame["weight"] == DISPERSION]
    assert len(apart) == 5  # the first junction is handed one stream
    assert (apart["mean"] > 0).all()


def test_shares_of_a_sum_are_taken_along_it():
    x_BTD, y_BTD = torch.tensor([[[3.0, 0.0]]]), torch.tensor([[[-1.0, 5.0]]])
    # x + y is (2, 5), of which x has 6 and y 23 of 29.
    torch.testing.assert_close(contributions(x_BTD, y_BTD), torch.tensor([[[6 / 29, 23 / 29]]]))


def mixed_values(weight: str, **options):
    """The weights of the last of three blocks, drawn anew; the values of three blocks; and what it attends with."""
    one = loaded(**options)
    (shared,) = [module for module in one.model.blocks[2].modules() if isinstance(module, SharedValues)]
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(3, 1, one.model.blocks[0].attention.kv_heads, 2, 5, generator=generator)
    with torch.no_grad():
        for parameter in shared.parameters():
            parameter.normal_(generator=generator)
        before = (values[0], values[0], values[1], values[1]) if shared.mixes_keys else (values[0],)
        _, mixed = shared(values[2], values[2], [*before])
    weights = one_weight(frame_of(Mixing, one), weight, 3, "attention")
    return torch.tensor(weights, dtype=torch.float32), values, mixed


def test_the_values_of_earlier_blocks_that_attention_reads():
    weights_KJ, values, mixed = mixed_values("heads", name="lime")
    torch.testing.assert_close(mixed, torch.einsum("kj,bjte->bkte", weights_KJ, torch.cat(values.unbind(), 1)))
    weights_1S, values, mixed = mixed_values("first-own", name="resformer", learned=True)
    torch.testing.assert_close(mixed, torch.einsum("s,sbkte->bkte", weights_1S[0], values[[0, 2]]))
