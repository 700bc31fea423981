"""BERT: its sizes and what methods add, its equations, padding, its start, and what other tasks take of it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from initialised import initialised, shaken
from method_cases import wiring_of
from pydantic import ValidationError
from small_networks import BERT, MASKED_METHODS, SMALL, TOKENS, VOCABULARY

from comt_cli.errors import UserError
from comt_cli.layers.projection import Projections
from comt_cli.models.build import empty_network
from comt_cli.models.flops import parameter_count
from comt_cli.tasks.settings.masked_lm import BERT_SIZES, BertSettings

PIECES = 30_522
PLAIN = {"tiny": 4_416_698, "mini": 11_201_594, "small": 28_795_194, "medium": 41_404_730, "base": 109_514_298}


def counted(size: str, method: str | dict, **dimensions: int) -> int:
    wiring = wiring_of({"name": method} if isinstance(method, str) else method)
    return parameter_count(empty_network(BertSettings(size=size), wiring, vocabulary=PIECES, **dimensions))


def model_of(method: str | dict = "post-ln", **dimensions: int):
    wiring = wiring_of({"name": method} if isinstance(method, str) else method)
    return shaken(initialised(BERT, wiring, 1, vocabulary=VOCABULARY, **dimensions)).double().eval()


def test_parameters_are_those_of_the_public_models():
    for size, (d, L, *_) in BERT_SIZES.items():
        assert counted(size, "post-ln") == PLAIN[size]
        assert counted(size, "pre-ln") == PLAIN[size] + 2 * d
        assert counted(size, {"name": "grc", "norm": "post"}) == PLAIN[size] + 2 * L * (d * d + d)
        eau = L * (d * d + d + 2 * d * (d // 4) + d // 4 + d)
        assert counted(size, {"name": "eau", "residual": "post-norm"}) == PLAIN[size] + eau
    assert counted("base", "post-ln", classes=3) == 109_482_240 + 3 * 768 + 3  # the body and a pooler


def test_a_network_that_cannot_be_so_narrow_is_refused():
    wiring = wiring_of({"name": "wider", "of": "sas", "like": "post-ln"})
    settings = BertSettings(size="tiny", ffn_width=16)
    with pytest.raises(UserError, match="feed-forward networks would need"):
        empty_network(settings, wiring, vocabulary=PIECES)
    with pytest.raises(ValidationError, match="residual: is for the plain network"):
        wiring_of({"name": "wider", "of": "sas", "like": "post-ln", "residual": "post-norm"})


def test_it_starts_with_truncated_numbers_and_predicts_nothing():
    """An untrained model's loss is ln V: its logits have a standard deviation of 0.02 sqrt(D)."""
    settings = BertSettings(size="tiny", positions=64)
    model = initialised(settings, wiring_of({"name": "post-ln"}), 3, vocabulary=2048).eval()
    tokens = torch.randint(3, 2048, (16, 64), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
    assert loss.item() == pytest.approx(math.log(2048), rel=0.05)
    spread = 0.02 * 0.8796  # of a normal distribution without what is beyond two standard deviations
    matrices = [("embedding", model.embedding.weight), ("head", model.head.dense.weight)]
    matrices += [(path, part.weight) for path, part in model.named_modules() if isinstance(part, Projections)]
    for name, weight in matrices:
        assert weight.abs().max() <= 0.04, name
        assert weight.std().item() == pytest.approx(spread, rel=5 / math.sqrt(2 * weight.numel())), name
    assert all(not parameter.any() for name, parameter in model.named_parameters() if name.endswith("bias"))


def test_the_equations():
    """Against PyTorch's own encoder layers with our weights, and the embeddings and head by hand."""
    model, L = model_of(), BERT.shape()
    reference = torch.nn.TransformerEncoderLayer(
        L.width, L.heads, L.ffn_width, activation="gelu", layer_norm_eps=1e-12, batch_first=True, dtype=torch.float64
    ).eval()
    x = model.embedding.weight[TOKENS] + model.positions.weight[: TOKENS.shape[1]] + model.segments.weight[0]
    norms = model.embedding_norm, model.head.norm
    x = F.layer_norm(x, (L.width,), norms[0].weight, norms[0].bias, 1e-12)
    for block in model.blocks:
        parts = [
            *(("self_attn.in_proj", "_", block.attention.qkv), ("self_attn.out_proj", ".", block.attention.output)),
            *(("linear1", ".", block.mlp.up), ("linear2", ".", block.mlp.down)),
            *(("norm1", ".", block.attention_connection.norm), ("norm2", ".", block.mlp_connection.norm)),
        ]
        reference.load_state_dict(
            {f"{name}{join}{kind}": getattr(part, kind) for name, join, part in parts for kind in ("weight", "bias")}
        )
        with torch.no_grad():
            x = reference(x, src_key_padding_mask=TOKENS == 0)
    h = F.layer_norm(F.gelu(model.head.dense(x)), (L.width,), norms[1].weight, norms[1].bias, 1e-12)
    expected = h @ model.embedding.weight.T + model.head.bias
    is_token = TOKENS != 0
    torch.testing.assert_close(model(TOKENS)[is_token], expected[is_token], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SMALL["train-bert"].tested)
def test_padding_changes_nothing_and_later_tokens_do(name):
    model = model_of(MASKED_METHODS[name])
    with torch.no_grad():
        plain, padded = model(TOKENS), model(F.pad(TOKENS, (0, 5)))
        torch.testing.assert_close(padded[:, :9], plain, rtol=1e-9, atol=1e-9)
        changed = TOKENS.clone()
        changed[0, -1] = changed[0, -1] % (VOCABULARY - 1) + 1
        assert not torch.allclose(model(changed)[0, 0], plain[0, 0], rtol=1e-6, atol=0)  # it reads both sides


def test_a_pooled_output_reads_segments_and_all_tokens():
    """A classifier differs from the model by its heads alone: new: [pooler, classifier], drop: [head]."""
    model = model_of(classes=3)
    segments = torch.zeros_like(TOKENS)
    with torch.no_grad():
        plain = model(TOKENS)
        assert plain.shape == (3, 3)
        torch.testing.assert_close(model(TOKENS, segments), plain)
        segments[:, 4:] = 1
        assert not torch.allclose(model(TOKENS, segments), plain)
    of_model, of_classifier = {*model_of().state_dict()}, {*model.state_dict()}
    assert {name.split(".")[0] for name in of_classifier - of_model} == {"pooler", "classifier"}
    assert {name.split(".")[0] for name in of_model - of_classifier} == {"head"}
