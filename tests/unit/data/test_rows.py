"""Text: rows in both layouts against naive ones, masked sequences, and shards, which are resumed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds import FakeCorpus, prepared, sentences
from same_bits import same_integers

from comt_cli.data.split import IGNORE
from comt_cli.data.text.rows import MaskedRows, PackedRows, PaddedRows, without_last
from comt_cli.data.text.settings import DataSettings, split_of
from comt_cli.data.tokenizer import PAD, ByteTokenizer
from comt_cli.errors import UserError

EOS = 1
documents = st.lists(
    st.lists(st.integers(2, 60_000), max_size=12).map(lambda ids: [*ids, EOS]), min_size=1, max_size=30
)


@st.composite
def sharded(draw, max_length=None):
    """Documents, and the same documents cut into shards."""
    texts = [text[:max_length] for text in draw(documents)]
    cuts = sorted(draw(st.sets(st.integers(1, len(texts)), max_size=4)) | {0, len(texts)})
    return texts, [texts[a:b] for a, b in itertools.pairwise(cuts)]


def arrays(shards):
    tokens = [np.array([i for text in shard for i in text], dtype=np.uint16) for shard in shards]
    return tokens, [np.cumsum([0, *map(len, shard)]).astype(np.uint32) for shard in shards]


@given(given_documents=sharded(), length=st.integers(2, 9))
def test_pack_is_the_stream_in_windows(given_documents, length):
    texts, shards = given_documents
    rows = PackedRows(arrays(shards)[0], length, len(texts), 0)
    stream = [i for text in texts for i in text]
    windows = [stream[i : i + length] for i in range(0, len(stream) - length + 1, length)]
    assert (len(rows), rows.tokens) == (len(windows), len(stream))
    batch = rows.batch(np.arange(len(rows)))
    assert batch.tokens.tolist() == windows
    assert batch.targets.tolist() == [[*window[1:], IGNORE] for window in windows]
    assert rows.target_counts(np.arange(len(rows))).sum() == batch.target_count


@given(given_documents=sharded(max_length=6), order_seed=st.integers(0, 99))
def test_pad_is_one_document_a_row(given_documents, order_seed):
    texts, shards = given_documents
    rows = PaddedRows(*arrays(shards), 6, 0)
    assert len(rows) == rows.documents == len(texts)
    indices = np.random.default_rng(order_seed).integers(0, len(rows), 2 * len(rows))
    batch = rows.batch(indices)
    for index, tokens, targets in zip(indices, batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        text = texts[index]
        assert tokens == text + [PAD] * (6 - len(text))
        assert targets == [*text[1:], *[IGNORE] * (7 - len(text))]
    assert rows.target_counts(indices).tolist() == (batch.targets != IGNORE).sum(axis=1).tolist()


def test_a_padding_id_within_a_text_is_a_target():
    """Lengths decide, not the id."""
    rows = PaddedRows([np.array([5, 0, 7, 1], np.uint16)], [np.array([0, 4], np.uint32)], 6, 0)
    assert rows.batch(np.array([0])).targets.tolist() == [[0, 7, 1, IGNORE, IGNORE, IGNORE]]


@given(st.integers(2, 60), st.floats(0.001, 0.999))
def test_two_parts_are_the_whole(rows, share):
    whole = PackedRows([np.arange(rows * 4, dtype=np.uint16)], 4, 1, rows * 9)
    first, last = without_last(whole, share)
    assert min(len(first), len(last)) > 0
    tokens = [part.batch(np.arange(len(part))).tokens for part in (first, last)]
    assert same_integers(np.concatenate(tokens), whole.batch(np.arange(rows)).tokens)
    assert abs(len(last) - share * rows) <= 1
    assert first.target_counts(np.arange(len(first))).tolist() == [3] * len(first)
    with pytest.raises(IndexError):
        first.batch(np.array([len(first)]))
    with pytest.raises(UserError, match="cannot be divided"):
        without_last(PackedRows([np.arange(4, dtype=np.uint16)], 4, 1, 9), 0.5)


TOKENIZER = ByteTokenizer(["begin", "mask", "separator"])
SPECIAL = TOKENIZER.special
T = 128


def masked(rows=900, length=T - 1):
    """Packed bytes with an end token now and then."""
    stream = np.random.default_rng(3).integers(2, 258, rows * length).astype(np.uint16)
    stream[::97] = SPECIAL.end
    return MaskedRows(PackedRows([stream], length, 1, len(stream)), SPECIAL, TOKENIZER.vocabulary_size, 0.15)


def test_fifteen_percent_are_chosen_and_eighty_ten_ten_of_these():
    split, indices = masked(), np.arange(900)
    batch, rows = split.train_batch(indices, 5, 0), split.rows.batch(indices).tokens
    text = np.concatenate([np.full((len(rows), 1), SPECIAL.begin), rows], axis=1)
    counted = batch.targets != IGNORE
    is_word = ~np.isin(text, list(SPECIAL.ids))
    assert abs(counted.sum() / is_word.sum() - 0.15) < 0.0015
    assert same_integers(counted.sum(1), split.target_counts(indices))
    rows = np.broadcast_to(np.arange(900)[:, None], batch.places.shape)[counted]
    places, targets = batch.places[counted], batch.targets[counted]
    assert len({*zip(rows.tolist(), places.tolist(), strict=True)}) == len(rows)  # no place twice
    assert same_integers(text[rows, places], targets)
    assert is_word[rows, places].all()
    seen = batch.tokens[rows, places]
    hidden, kept = seen == SPECIAL.mask, seen == targets
    # A random token is the own one once in 256. Of 17,000 the standard error is 0.3 points.
    for found, share in ((hidden, 0.8), (kept, 0.1 + 0.1 / 256), (~hidden & ~kept, 0.1)):
        assert abs(found.mean() - share) < 0.01
    others = np.bincount(seen[~hidden & ~kept], minlength=TOKENIZER.vocabulary_size)
    assert not others[list(SPECIAL.ids)].any()
    assert (others[2:258] > 0).mean() > 0.9  # any word may stand there
    unchanged = np.ones_like(text, dtype=bool)
    unchanged[rows, places] = False
    assert same_integers(batch.tokens[unchanged], text[unchanged])


@given(st.integers(0, 2**31), st.integers(0, 10**9), st.integers(1, 6))
def test_masks_follow_from_seed_and_position_and_in_evaluation_from_the_number(seed, first, cut):
    split, indices = masked(rows=8), np.arange(8)[::-1]
    whole = split.train_batch(indices, seed, first)
    parts = [split.train_batch(indices[:cut], seed, first), split.train_batch(indices[cut:], seed, first + cut)]
    for key in ("tokens", "places", "targets", "positions"):
        assert same_integers(getattr(whole, key), np.concatenate([getattr(part, key) for part in parts]))
    assert not same_integers(whole.places, split.train_batch(indices, seed + 1, first).places)
    assert not same_integers(whole.places, split.train_batch(indices, seed, first + 8).places)
    fixed = split.batch(np.array([2, 0, 2]))
    assert same_integers(fixed.tokens[0], fixed.tokens[2])
    assert same_integers(fixed.tokens[1:2], split.batch(np.array([0])).tokens)


def test_short_documents_and_rows_without_a_word():
    texts = [[5, 6, 7, SPECIAL.end], [SPECIAL.end], [9] * 30 + [SPECIAL.end]]
    rows = PaddedRows(*arrays([texts]), 40, 34)
    split = MaskedRows(rows, SPECIAL, TOKENIZER.vocabulary_size, 0.15)
    batch = split.batch(np.arange(3))
    counts = (batch.targets != IGNORE).sum(1)
    assert counts.tolist() == [1, 0, 5] == split.target_counts(np.arange(3)).tolist()  # 4.5 is rounded up
    assert (batch.tokens[0, 5:] == SPECIAL.pad).all()
    assert batch.tokens[1, :2].tolist() == [SPECIAL.begin, SPECIAL.end]


BYTES = DataSettings(tokenizer="bytes", sequence_length=32, validation_fraction=0.2)
PART = 2000
"""Bytes of a shard here: the corpora below fill a dozen."""


def shards(folder):
    """The prepared files, without what differs from run to run."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".tokens", ".offsets")}


def test_every_document_is_on_its_side_and_on_one_only(cache):
    texts = [*sentences(200), "x" * 350, *sentences(50)]  # the last 50 come twice; one is larger than the rest
    data = BYTES.model_copy(update={"rows": "pad", "sequence_length": 400})
    dataset = prepared(data, FakeCorpus([texts]), part_bytes=600)
    for side, rows in (("train", dataset.train), ("validation", dataset.validation)):
        expected = [text for text in texts if split_of(text, 0.2) == side]
        assert [dataset.tokenizer.decode(row) for row in rows.batch(np.arange(len(rows))).tokens] == expected
        assert (rows.documents, rows.bytes) == (len(expected), sum(len(text.encode()) for text in expected))
        assert rows.tokens == rows.bytes + len(expected)  # an end-of-text token each
    assert len(list(dataset.folder.glob("train-*.tokens"))) > 3


@pytest.mark.parametrize("rows", ["pack", "pad"])
def test_the_limit_of_train_tokens_is_met_and_leaves_validation_alone(cache, rows):
    data = BYTES.model_copy(update={"rows": rows})
    corpus = FakeCorpus([sentences(300)])
    full = prepared(data, corpus)
    limited = prepared(data.model_copy(update={"max_train_tokens": 1501}), corpus, part_bytes=PART)
    assert limited.train.tokens == 1501
    assert limited.validation.tokens == full.validation.tokens
    count = 1501 // 32 - 1
    some = np.arange(count if rows == "pack" else 10)
    assert limited.train.batch(some).tokens.tolist() == full.train.batch(some).tokens.tolist()


@pytest.mark.parametrize("fail_at", [(0, 120), (1, 99)])
@pytest.mark.parametrize("rows", ["pack", "pad"])
def test_going_on_after_a_failure_gives_the_same_files(tmp_path, monkeypatch, fail_at, rows):
    data = BYTES.model_copy(update={"rows": rows})
    files = [sentences(150), sentences(100, seed=5)]
    monkeypatch.setattr("comt_cli.data.text.dataset._CHUNK_DOCUMENTS", 7)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "undisturbed"))
    undisturbed = prepared(data, FakeCorpus(files), part_bytes=PART)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "failing"))
    with pytest.raises(RuntimeError, match="the power went out"):
        prepared(data, FakeCorpus(files, fail_at=fail_at), part_bytes=PART)
    corpus = FakeCorpus(files)
    resumed = prepared(data, corpus, part_bytes=PART)
    assert shards(resumed.folder) == shards(undisturbed.folder)
    assert resumed.content_hash == undisturbed.content_hash
    if fail_at == (1, 99):
        assert corpus.read[0] > (0, 100)  # it did not start again
    assert {path.suffix for path in resumed.folder.iterdir()} == {".json", ".tokens", ".offsets"}
    assert not list(resumed.folder.glob("part-*"))


@pytest.mark.parametrize("limit", [5003, 9001])
def test_an_endless_corpus_ends_at_the_same_document_after_a_failure(tmp_path, monkeypatch, limit):
    """Where its train split is full, within a chunk of documents, of which some would be held out."""
    data = BYTES.model_copy(update={"max_train_tokens": limit})
    monkeypatch.setattr(FakeCorpus, "endless", True)
    contents = set()
    for chunk, fail_at in ((1, None), (7, None), (512, None), (23, (0, 30)), (40, (0, 50)), (40, (0, 81))):
        monkeypatch.setattr("comt_cli.data.text.dataset._CHUNK_DOCUMENTS", chunk)
        monkeypatch.setenv("COMT_CACHE", str(tmp_path / f"{chunk}-{fail_at}"))
        if fail_at is not None:
            with pytest.raises(RuntimeError, match="the power went out"):
                prepared(data, FakeCorpus([sentences(300)], fail_at), part_bytes=PART)
        corpus = FakeCorpus([sentences(300)])
        dataset = prepared(data, corpus, part_bytes=PART)
        assert corpus.read[-1] < (0, 299) or chunk > 7
        assert dataset.train.tokens == limit
        contents.add((dataset.validation.tokens, dataset.content_hash))
    assert len(contents) == 1


def test_a_part_damaged_while_preparation_rested_is_made_anew(cache):
    files = [sentences(150)]
    with pytest.raises(RuntimeError):
        prepared(BYTES, FakeCorpus(files, fail_at=(0, 140)), part_bytes=PART)
    folder = next(path for path in (cache / "corpora").iterdir() if path.is_dir())
    (folder / "train-00001.tokens").write_bytes(b"zzzz")
    dataset = prepared(BYTES, FakeCorpus(files), part_bytes=PART)
    expected = [i for text in files[0] if split_of(text, 0.2) == "train" for i in (*(2 + b for b in text.encode()), 1)]
    tokens = dataset.train.batch(np.arange(len(dataset.train))).tokens.ravel().tolist()
    assert tokens == expected[: len(expected) // 32 * 32]


def test_one_sided_and_tiny_corpora_are_refused(cache):
    with pytest.raises(UserError, match="corpus: the validation split of python-docs has 0 tokens"):
        prepared(BYTES, FakeCorpus([[text for text in sentences(50) if split_of(text, 0.2) == "train"]]))
    few = r"the validation split of python-docs has \d+ tokens, less than a row of 4000"
    with pytest.raises(UserError, match=few):
        prepared(BYTES.model_copy(update={"sequence_length": 4000}), FakeCorpus([sentences(100)]))
