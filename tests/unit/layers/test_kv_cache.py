"""Decoding on stored keys and values computes what one pass over the whole text does, for each kind of method."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from initialised import shaken
from method_cases import METHODS, SETTINGS, TOKENS, built, each_wiring, wiring_of
from same_bits import Reason, assert_same_bits
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.layers.kv_cache import KeyValueCache
from comt_cli.models.llama import Llama

SHAPE = SETTINGS.shape()
LENGTHS = [5, 12, 1]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
"""fp32 sums of some 50 to 100 terms in another order, through four blocks, on logits of the size of one: a few 1e-6.
What a wrong mask, position or column does to them is of their own size."""


def cache_for(model: Llama, rows: int, capacity: int) -> KeyValueCache:
    return KeyValueCache(model.shape, rows, capacity, model.settings.rope_theta, model.embedding.weight.detach())


@torch.no_grad()
def logits(model: Llama, tokens_BT: Tensor, cache: KeyValueCache | None = None) -> Tensor:
    return F.linear(model.hidden(tokens_BT, cache), model.head_weight)


def fed(model: Llama, tokens_BT: Tensor, cache: KeyValueCache, cuts: list[int]) -> Tensor:
    """The logits of the whole text, given in pieces."""
    return torch.cat([logits(model, piece, cache) for piece in tokens_BT.split(cuts, dim=1)], dim=1)


def padded(rows: list[Tensor]) -> Tensor:
    longest = max(map(len, rows))
    return torch.stack([F.pad(row, (longest - len(row), 0), value=3) for row in rows])


@each_wiring
def test_decoding_computes_what_one_pass_does(options):
    model = shaken(built(wiring_of(options)))
    whole = logits(model, TOKENS)
    length = TOKENS.shape[1]
    for cuts in ([1] * length, [5, 1, 2, 4]):  # token by token; a prompt, a step, and pieces behind it
        torch.testing.assert_close(fed(model, TOKENS, cache_for(model, len(TOKENS), length + 3), cuts), whole, **CLOSE)
    rows = [row[:length] for row, length in zip(TOKENS, LENGTHS, strict=True)]
    cache = cache_for(model, len(rows), 20)
    cache.begin(LENGTHS)
    prefilled, after = logits(model, padded(rows), cache), logits(model, TOKENS[:, :1], cache)
    for number, row in enumerate(rows):
        alone = logits(model, torch.cat([row, TOKENS[number, :1]])[None])[0]
        torch.testing.assert_close(prefilled[number, -len(row) :], alone[:-1], **CLOSE)
        torch.testing.assert_close(after[number, -1], alone[-1], **CLOSE)


@pytest.mark.parametrize("name", ["transponder", "headwise", "sas", "mhc", "muddformer", "value-embeddings"])
def test_decoding_in_bf16(name):
    """A kind of gate each, whose factors have types of their own, gates of a connection, a connection's memory, several
    streams, ways into attention, and what is added there."""
    model = shaken(built(wiring_of(METHODS[name]))).to(torch.bfloat16)
    cache = cache_for(model, len(TOKENS), 12)
    found = fed(model, TOKENS, cache, [5, 1, 6])
    assert found.dtype == cache.layers[0].k_BKSE.dtype == torch.bfloat16
    # A sum in another order may round to a neighbour in 8 bits here and there; a wrong mask makes an error of 1.
    difference = (found.float() - logits(model, TOKENS).float()).norm() / found.float().norm()
    assert difference < 0.05


@pytest.mark.parametrize("cuts", [[12], [4, 1, 1, 6]], ids=str)
@pytest.mark.parametrize("static", [False, True], ids=["filled", "all columns"])
@pytest.mark.parametrize("name", ["comt", "smear"])
def test_padding_changes_no_text(name, cuts, static):
    """Also in pieces, of which some hold nothing but padding for the shorter texts, and with the masks of a graph."""
    model = shaken(built(wiring_of({"name": name})))
    rows = [row[:length] for row, length in zip(TOKENS, LENGTHS, strict=True)]
    cache = cache_for(model, len(rows), 14)
    cache.static_shapes = static
    cache.begin(torch.tensor(LENGTHS))
    found = fed(model, padded(rows), cache, cuts)
    assert found.isfinite().all()
    for number, row in enumerate(rows):
        torch.testing.assert_close(found[number, -len(row) :], logits(model, row[None])[0], **CLOSE)


@pytest.mark.parametrize("name", ["pre-ln", "smear"])
def test_no_more_than_the_capacity_fits_and_rewound_columns_are_written_again(name):
    model = shaken(built(wiring_of({"name": name})))
    cache = cache_for(model, 3, 10)
    with pytest.raises(UserError, match="room for 10 tokens per text; 12 are needed"):
        logits(model, TOKENS, cache)
    logits(model, TOKENS[:, :6], cache)
    expected = logits(model, TOKENS[:, 6:8], cache)
    for begin in (2, 6):
        cache.rewind(6)
        found = logits(model, TOKENS[:, begin : begin + 2], cache)
    assert_same_bits(found, expected, Reason.SAME_CALL)
    for call in (lambda: logits(model, TOKENS[:, :3], cache), lambda: cache.begin([11, 1, 1])):
        with pytest.raises(UserError, match="11 are needed"):
            call()


def test_a_cache_beyond_the_memory_is_an_error_for_people():
    with pytest.raises(UserError, match="cannot reserve a cache for 2 texts of 1000000000000000 tokens"):
        KeyValueCache(SHAPE, 2, 10**15, 10000.0, torch.zeros(()))
