"""Lines to translations: order, empty and long lines, attention; with a table, and with a Transformer."""

from __future__ import annotations

import pytest
import torch
from decided import search_without_rounding
from toy_decoder import ToyDecoder
from toy_translation import TOKENIZER, toy_model, toy_spec

from comt_cli.generation import translate
from comt_cli.generation.translate import Translator, batches
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
