from __future__ import annotations

import io
from collections.abc import Callable
from itertools import combinations
from typing import get_args

import pytest
import sentencepiece
from fake_corpus import sentences

from comt_cli.data.sentencepiece_tokenizer import TRAINER, SentencePieceTokenizer, train_sentencepiece
from comt_cli.data.special_tokens import EXTRA_PIECES, PAD, Extra, SpecialTokens
from comt_cli.data.tokenizer import ByteTokenizer, Tokenizer
from comt_cli.data.tokenizers import tokenizer_from_json

ALL = tuple(EXTRA_PIECES)
LOOKALIKES = "<s> a <mask> b <sep> c <pad> d </s> <unk>"


@pytest.fixture(scope="module")
def plain() -> SentencePieceTokenizer:
    return train_sentencepiece(sentences(300), 330)


@pytest.fixture(scope="module")
def full() -> SentencePieceTokenizer:
    return train_sentencepiece(sentences(300), 333, ALL)


def test_what_there_was_has_the_ids_it_had(plain: SentencePieceTokenizer) -> None:
    assert ByteTokenizer().special == SpecialTokens(pad=0, end=1)
    assert ByteTokenizer().to_json() == {"format": 1, "kind": "bytes"}
    assert ByteTokenizer().vocabulary_size == 258
    assert plain.special == SpecialTokens(pad=0, end=1, unknown=2)
    assert {PAD, TRAINER["pad_id"], ByteTokenizer.pad_id} == {0}
    assert plain.pieces([0, 1, 2, 3]) == ["<pad>", "</s>", "<unk>", "\\n"]


def test_without_extras_a_vocabulary_is_trained_as_it_always_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in the cache stay valid: their name says the options."""
    asked, train = [], sentencepiece.SentencePieceTrainer.train
    monkeypatch.setattr(
        sentencepiece.SentencePieceTrainer, "train", lambda **options: (asked.append(options), train(**options))
    )
    train_sentencepiece(sentences(100), 300)
    beside = {"sentence_iterator", "model_writer", "vocab_size", "minloglevel"}
    assert {name: value for name, value in asked[0].items() if name not in beside} == TRAINER


def test_extras_lie_behind_the_others(full: SentencePieceTokenizer) -> None:
    assert full.special == SpecialTokens(pad=0, end=1, unknown=2, begin=3, mask=4, separator=5)
    assert full.pieces(range(7)) == ["<pad>", "</s>", "<unk>", "<s>", "<mask>", "<sep>", "\\n"]
    tokenizer = ByteTokenizer(ALL)
    assert tokenizer.special == SpecialTokens(pad=0, end=1, begin=258, mask=259, separator=260)
    assert tokenizer.vocabulary_size == 261
    assert tokenizer.pieces([258, 259, 260, 2 + ord("A")]) == ["<s>", "<mask>", "<sep>", "A"]
    assert tokenizer.special.ids == {0, 1, 258, 259, 260}


@pytest.mark.parametrize("extras", [each for count in range(4) for each in combinations(ALL, count)], ids=str)
def test_any_of_them_in_any_order(extras: tuple[Extra, ...]) -> None:
    for tokenizer in (ByteTokenizer(extras), train_sentencepiece(sentences(100), 300, extras)):
        special = tokenizer.special
        assert {extra for extra in ALL if getattr(special, extra) is not None} == set(extras)
        assert tokenizer.pieces([special.need(extra) for extra in extras]) == [EXTRA_PIECES[extra] for extra in extras]
    assert ByteTokenizer(extras[::-1]).to_json() == ByteTokenizer(extras).to_json()


@pytest.mark.parametrize("make", [lambda: ByteTokenizer(ALL), lambda: train_sentencepiece(sentences(300), 333, ALL)])
def test_no_text_becomes_one_and_none_becomes_text(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    ids = tokenizer.encode(LOOKALIKES)
    assert not tokenizer.special.ids & set(ids)
    assert tokenizer.decode(ids) == LOOKALIKES
    assert tokenizer.decode([*tokenizer.special.ids - {tokenizer.special.unknown}, *ids]) == LOOKALIKES


def test_a_piece_of_text_of_the_same_name_is_no_special_token() -> None:
    """Some models of others have '<mask>' as a piece that text is encoded to."""
    model = io.BytesIO()
    options = {**TRAINER, "user_defined_symbols": ["<mask>"], "vocab_size": 300, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences(100)), model_writer=model, **options)
    tokenizer = SentencePieceTokenizer(model.getvalue())
    assert "<mask>" in tokenizer.pieces(range(300))
    assert tokenizer.special == SpecialTokens(pad=0, end=1, unknown=2)


def test_what_is_missing_or_unknown_is_named() -> None:
    with pytest.raises(ValueError, match="has no mask token"):
        ByteTokenizer().special.need("mask")
    with pytest.raises(ValueError, match="no special token 'cls', but begin, mask, separator"):
        ByteTokenizer(["cls"])
    with pytest.raises(ValueError, match="no special token 'cls'"):
        tokenizer_from_json({"format": 1, "kind": "bytes", "extras": ["cls"]})
    with pytest.raises(ValueError, match="not a list of names"):
        tokenizer_from_json({"format": 1, "kind": "bytes", "extras": "begin"})
    assert set(get_args(Extra)) == set(ALL)
