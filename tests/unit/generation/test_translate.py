"""Lines to translations: order, empty and long lines, attention; with a table, and with a Transformer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decided import search_without_rounding
from toy_decoder import ToyDecoder
from toy_translation import TOKENIZER, toy_model, toy_spec

from comt_cli.generation import translate
from comt_cli.generation.translate import Translator, batches
from comt_cli.layers.multi_head import MultiHead
from comt_cli.tasks.settings.translation import DecodeSettings

CPU = torch.device("cpu")
BEGIN, END = TOKENIZER.special.need("begin"), TOKENIZER.special.end
LINES = [f"line {number} {'of words ' * (number * 7 % 5)}".strip() for number in range(40)]
LINES[3] = LINES[17] = ""
LINES[39] = "  "


def toy(**options) -> Translator:
    return Translator(ToyDecoder(TOKENIZER.vocabulary_size, end_bias=4.0, sharpness=2.0), TOKENIZER, CPU, **options)


@pytest.fixture(scope="module")
def network() -> Translator:
    return Translator(toy_model(toy_spec()), TOKENIZER, CPU)


def test_lines_keep_their_order_and_empty_ones_stay_empty(monkeypatch):
    search_without_rounding(monkeypatch)
    monkeypatch.setattr(translate, "POOL", 16)
    monkeypatch.setattr(translate, "BATCH_TOKENS", 100)
    settings = DecodeSettings(max_extra=5)
    found = [each for pool in toy().pools(iter(LINES), settings, 2) for each in pool]
    assert len(found) == len(LINES)
    for line, each in zip(LINES, found, strict=True):
        alone = next(toy().pools([line], settings, 2))[0]
        assert each == alone
        assert len(each) == (2 if line.strip() else 1)
        assert (each[0].hypothesis is None) == (not line.strip())
    assert found[3][0].text == found[39][0].text == ""
    assert len({each[0].text for each in found}) > 8


def test_batches_have_at_most_so_many_tokens(monkeypatch):
    monkeypatch.setattr(translate, "BATCH_TOKENS", 64)
    draw = torch.Generator().manual_seed(0)
    sources = [[1] * int(length) for length in torch.randint(0, 30, (100,), generator=draw)]
    found = batches(sources)
    assert sorted(number for batch in found for number in batch) == [n for n, each in enumerate(sources) if each]
    widths = [max(len(sources[number]) for number in batch) for batch in found]
    assert all(width * len(batch) <= 64 for width, batch in zip(widths, found, strict=True))
    assert batches([[1] * 100, [1], []]) == [[0], [1]]


def test_attention_is_what_the_network_mixes(network, monkeypatch):
    """Against the weights that the last block's cross-attention would compute itself, caught where it does."""
    best = next(network.pools(["some words"], DecodeSettings()))[0][0]
    weights_TS, target, source = network.attention(best)
    assert weights_TS.shape == (len(best.hypothesis.tokens) + 1, len("some words") + 1)
    assert (len(target), len(source)) == weights_TS.shape
    assert source[-1] == target[-1] == "</s>"
    np.testing.assert_allclose(weights_TS.sum(1), 1, atol=1e-5)
    assert weights_TS.std() > 1e-3
    caught = []
    plain = MultiHead.attend

    def attend(self, q, k, v, mask, *, causal):
        if self is network.model.decoder[-1].cross:
            caught.append(torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1).mean(1)[0])
        return plain(self, q, k, v, mask, causal=causal)

    monkeypatch.setattr(MultiHead, "attend", attend)
    network.model(torch.tensor([best.source]), torch.tensor([[BEGIN, *best.hypothesis.tokens]]))
    torch.testing.assert_close(weights_TS, caught[0].detach(), atol=1e-5, rtol=1e-4)
