"""Tokenizers: what they spell and keep, their special tokens, how they are trained, and files that are damaged."""

from __future__ import annotations

import base64
from itertools import combinations
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds import sentences

from comt_cli.data import published
from comt_cli.data import tokenizer as vocabulary
from comt_cli.data.tokenizer import (
    EXTRA_PIECES,
    PAD,
    TRAINER,
    ByteTokenizer,
    SpecialTokens,
    WordTokenizer,
    load_tokenizer,
    train_sentencepiece,
)
from comt_cli.errors import UserError
from comt_cli.files import sha256

ALL = tuple(EXTRA_PIECES)
LOOKALIKES = "<s> a <mask> b <sep> c <pad> d </s> <unk>"
# U+2581 is SentencePiece's sign for a space; a lone surrogate has no UTF-8.
any_text = st.text(st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=60)


@pytest.fixture(scope="module")
def trained():
    return train_sentencepiece(sentences(300), 330)


@given(text=any_text)
def test_every_text_is_spelled(python_docs_pack, text):
    """Byte fallback: nothing is unknown, and nothing is normalised away."""
    ids = ByteTokenizer().encode(text)
    assert ByteTokenizer().decode(ids) == text
    assert all(2 <= i < 258 for i in ids)
    tokenizer = python_docs_pack.tokenizer
    ids = tokenizer.encode(text)
    assert tokenizer.decode([*ids, tokenizer.special.end, tokenizer.special.pad]) == text
    assert not {2, tokenizer.special.end} & {*ids}


def test_words_are_tokens():
    tokenizer = WordTokenizer(["a", "dog", "<b>"])
    assert tokenizer.encode("a  cat a dog") == [4, 3, 4, 5]
    assert tokenizer.decode([2, 4, 3, 5, 1, 0]) == "a <unk> dog"
    assert tokenizer.pieces([0, 1, 2, 3, 6]) == ["<pad>", "</s>", "<s>", "<unk>", "<b>"]


def test_training_is_deterministic_and_reads_up_to_its_limit(trained, monkeypatch):
    texts = sentences(300)
    assert train_sentencepiece(iter(texts), 330).to_json() == trained.to_json()
    assert train_sentencepiece(sentences(301), 330).to_json() != trained.to_json()
    monkeypatch.setattr(vocabulary, "TRAINING_CHARACTERS", sum(map(len, texts)))
    assert train_sentencepiece([*texts, "never seen " * 50], 330).to_json() == trained.to_json()


def test_long_lines_of_own_text_alone_are_cut_at_spaces_if_there_are_any():
    longest = vocabulary._LONGEST_LINE
    texts = ["x" * longest + "\n\nshort line", "word " * longest, "y" * (longest + 1)]
    found = list(vocabulary._lines(texts, own=True))
    assert found[:2] == ["x" * longest, "short line"]
    assert found[-2:] == ["y" * longest, "y"]
    assert "".join(found[2:-2]) == texts[1]
    assert all(len(each) <= longest and each.endswith(" ") for each in found[2:-2])
    assert list(vocabulary._lines(texts, own=False)) == ["x" * longest, "short line", *texts[1:]]


def test_a_vocabulary_that_is_too_large_says_what_fits():
    with pytest.raises(UserError, match=r"set data.vocabulary to \d+ or less") as caught:
        train_sentencepiece(sentences(20), 5000)
    size = int(str(caught.value).split("set data.vocabulary to ")[1].split()[0])
    assert train_sentencepiece(sentences(20), size).vocabulary_size == size


def test_extras_lie_behind_the_others(trained):
    assert ByteTokenizer().special == SpecialTokens(pad=0, end=1)
    assert trained.special == SpecialTokens(pad=0, end=1, unknown=2)
    assert {PAD, TRAINER["pad_id"], ByteTokenizer().special.pad} == {0}
    full = train_sentencepiece(sentences(300), 333, ALL)
    assert full.special == SpecialTokens(pad=0, end=1, unknown=2, begin=3, mask=4, separator=5)
    assert full.pieces(range(7)) == ["<pad>", "</s>", "<unk>", "<s>", "<mask>", "<sep>", "\\n"]
    tokenizer = ByteTokenizer(ALL[::-1])
    assert tokenizer.special == SpecialTokens(pad=0, end=1, begin=258, mask=259, separator=260)
    assert tokenizer.pieces([258, 259, 260, 2 + ord("A")]) == ["<s>", "<mask>", "<sep>", "A"]
    assert tokenizer.special.ids == {0, 1, 258, 259, 260}
    for each in (full, tokenizer):  # no text becomes one
        ids = each.encode(LOOKALIKES)
        assert not each.special.ids & set(ids)
        assert each.decode([*each.special.ids - {each.special.unknown}, *ids]) == LOOKALIKES


@pytest.mark.parametrize("extras", [each for count in range(4) for each in combinations(ALL, count)], ids=str)
def test_any_of_them(extras):
    for tokenizer in (ByteTokenizer(extras), train_sentencepiece(sentences(100), 300, extras)):
        assert {extra for extra in ALL if getattr(tokenizer.special, extra) is not None} == set(extras)
        pieces = tokenizer.pieces([tokenizer.special.need(extra) for extra in extras])
        assert pieces == [EXTRA_PIECES[extra] for extra in extras]


@pytest.mark.parametrize("make", [ByteTokenizer, lambda: WordTokenizer(["gate"]), lambda: ByteTokenizer(ALL), None])
def test_a_saved_tokenizer_is_the_same(make, trained, tmp_path):
    tokenizer, path = make() if make else trained, tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = load_tokenizer(path)
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.encode("the gate — reads\nthe token") == tokenizer.encode("the gate — reads\nthe token")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ('{"format": 99, "kind": "bytes"}', "not a tokenizer of format 1"),
        ('{"format": 1, "kind": "magic"}', "kind 'magic' are unknown"),
        ('{"format": 1, "kind": "words"}', "is damaged"),
        ('{"format": 1, "kind": "sentencepiece", "model": "?"}', "is damaged"),
        ('{"format": 1, "kind": "sentencepiece", "model": "AAAA", "sha256": "0"}', "hash differs"),
    ],
)
def test_a_damaged_file_is_named(content, reason, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UserError, match=reason) as caught:
        load_tokenizer(path)
    assert str(path) in str(caught.value)


def test_the_vocabulary_of_t5_is_fetched_and_checked(trained, tmp_path, monkeypatch):
    """The real file cannot be had here: another model stands in for it, under its own hash."""
    model, path = base64.b64decode(trained.to_json()["model"]), tmp_path / "spiece.model"
    monkeypatch.setattr(published, "T5_SHA256", sha256(model))
    with monkeypatch.context() as alone:
        alone.setattr("huggingface_hub.snapshot_download", Mock(side_effect=OSError("no network")))
        with pytest.raises(UserError, match="google-t5/t5-base, and fetching it from the Hugging Face hub failed"):
            published.t5_tokenizer()
    download = Mock(return_value=str(tmp_path))
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    path.write_bytes(model + b"x")
    with pytest.raises(UserError, match="is not the T5 vocabulary"):
        published.t5_tokenizer()
    path.write_bytes(model)
    assert published.t5_tokenizer().vocabulary_size == 330
    assert download.call_args.kwargs["revision"] == published.T5_REVISION


@pytest.mark.parametrize("texts", [[], ["", "\n \n"]])
def test_no_text_is_said(texts: list[str]) -> None:
    with pytest.raises(UserError, match="it has no text"):
        train_sentencepiece(texts, 330)
