"""Preparation of pairs: splits, vocabulary, lengths, buckets; whole, once, resumable; and what identifies it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from comt_cli.data.pairs import dataset as preparation
from comt_cli.data.pairs.settings import BYTE_VOCABULARY, Kind, PairCorpus, PairData, PairTexts, TextPair
from comt_cli.data.prepare import fingerprint, known_content, prepare
from comt_cli.data.split import IGNORE
from comt_cli.errors import UserError
from comt_cli.recipe.problems import Problem
from comt_cli.recipe.validate import validate

ALMANAC = PairData(
    target="vi",
    difficulty="easy",
    pairs=2000,
    validation_pairs=60,
    test_pairs=80,
    vocabulary_size=900,
    max_length=128,
    batch_tokens=1024,
)
BYTES = PairData(corpus="pairs:a,b", tokenizer="bytes", max_length=64, batch_tokens=128)


class FakePairs(PairCorpus):
    """Pairs in two files; may fail in the middle, and notes what is read."""

    def __init__(self, count=200, fail_at=None, pairs=None):
        self.pairs = pairs or [(f"source text {n}", f"{n} target text" * (1 + n % 3)) for n in range(count)]
        self.fail_at = fail_at
        self.read: list[int] = []

    @classmethod
    def of(cls, data):
        return cls()

    def identity(self, progress=None):
        return ["fake", self.pairs]

    def decoded(self, progress=None):
        return {"validation": PairTexts(["v" * 100, "v"], ["w", "w" * 200]), "test": PairTexts(["t"], ["u"])}

    def train(self, start=(0, 0)):
        for number, (source, target) in enumerate(self.pairs):
            file, place = divmod(number, 70)
            if (file, place) < start:
                continue
            if number == self.fail_at:
                raise RuntimeError("the power went out")
            self.read.append(number)
            yield TextPair(source, target, (file, place))


def prepared(data, corpus):
    return Kind(data, corpus).prepare()


@pytest.fixture(scope="module")
def almanac(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return prepare(ALMANAC)


def files(dataset):
    """The prepared files, without what differs from machine to machine."""
    records = {"manifest.json", "verified.json"}
    return {path.name: path.read_bytes() for path in dataset.folder.iterdir() if path.name not in records}


def training_texts(dataset):
    """Every pair of every training bucket, decoded."""
    batch = dataset.train.batch(np.arange(len(dataset.train)))
    decode = dataset.tokenizer.decode
    targets = np.where(batch.target_out == IGNORE, dataset.tokenizer.special.pad, batch.target_out)
    return [(decode(source), decode(target)) for source, target in zip(batch.source, targets, strict=True)]


def test_every_training_pair_is_in_one_bucket(almanac):
    from comt_cli.data.pairs.corpora.almanac import Almanac

    expected = [(pair.source, pair.target) for pair in Almanac(ALMANAC).train()]
    assert sorted(training_texts(almanac)) == sorted(expected)
    assert almanac.train.plan.padding < 0.15  # measured: 4 %
    assert not almanac.train.plan.too_long.size
    assert str(almanac.left_out) == ""


def test_texts_belong_to_the_pairs_of_their_buckets(almanac):
    assert almanac.unseen is not None
    assert sorted(almanac.texts) == ["test", "unseen", "validation"]
    for split, buckets in (("validation", almanac.validation), ("test", almanac.test), ("unseen", almanac.unseen)):
        texts = almanac.texts[split]
        numbers = buckets.pairs(np.arange(len(buckets)))
        assert sorted(numbers.tolist()) == list(range(len(texts)))
        batch = buckets.batch(np.arange(len(buckets)))
        for number, source in zip(numbers.tolist(), batch.source, strict=True):
            assert almanac.tokenizer.decode(source) == texts.sources[number]
        assert texts.slots is not None
        assert all(slot in text for text, slots in zip(texts.references, texts.slots, strict=True) for slot in slots)


def test_what_decides_the_buckets_is_in_the_fingerprint(cache):
    changes: list[dict[str, object]] = [
        {"difficulty": "full"},
        {"pairs": 2001},
        {"test_pairs": 81},
        {"target": "fr"},
        {"vocabulary_size": 901},
        {"max_length": 127},
        {"batch_tokens": 1025},
        {"source": "vi", "target": "en"},
    ]
    known = {fingerprint(PairData(**ALMANAC.model_dump() | change)) for change in changes}
    assert len(known | {fingerprint(ALMANAC)}) == len(changes) + 1
    assert known_content(ALMANAC, fingerprint(ALMANAC)) is None


def test_pairs_over_the_limit_are_counted_and_named(cache):
    pairs = [("short", "kurz")] * 5 + [("x" * 64, "y"), ("", "leer"), ("a", "z" * 99), ("fits", "w" * 63)]
    dataset = prepared(BYTES, FakePairs(pairs=pairs))
    assert len(training_texts(dataset)) == 6
    assert str(dataset.left_out) == (
        "training pairs left out: 2 too long (max_length), 1 without a text on one side; "
        "first pair 6 (65 tokens), pair 7 (empty), pair 8 (100 tokens)"
    )


def test_without_a_pair_to_train_on_there_is_an_error(cache):
    with pytest.raises(UserError, match="no pair to train on") as caught:
        prepared(BYTES, FakePairs(pairs=[("x" * 300, "y")]))
    assert "1 too long" in str(caught.value.hint)


@pytest.mark.parametrize("fail_at", [69, 199])
def test_a_killed_preparation_resumes_and_ends_with_the_same_bytes(tmp_path, monkeypatch, fail_at):
    monkeypatch.setattr(preparation, "_CHUNK_PAIRS", 10)
    monkeypatch.setattr(preparation, "_BLOCK_PAIRS", 20)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "whole"))
    whole = prepared(BYTES, FakePairs())
    expected = files(whole)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "killed"))
    with pytest.raises(RuntimeError, match="the power went out"):
        prepared(BYTES, FakePairs(fail_at=fail_at))
    with (tmp_path / "killed/pairs" / whole.fingerprint / "train.target.tokens").open(
        "ab"
    ) as handle:  # killed in the middle of a block
        handle.write(b"half a block")
    corpus = FakePairs()
    resumed = prepared(BYTES, corpus)
    assert files(resumed) == expected
    assert resumed.content_hash == whole.content_hash
    if fail_at >= 69:
        assert corpus.read[0] == fail_at // 20 * 20  # it did not start again


def test_files_that_were_cut_after_a_kill_are_made_anew(cache, monkeypatch):
    monkeypatch.setattr(preparation, "_CHUNK_PAIRS", 10)
    monkeypatch.setattr(preparation, "_BLOCK_PAIRS", 20)
    with pytest.raises(RuntimeError, match="the power went out"):
        prepared(BYTES, FakePairs(fail_at=150))
    kind = Kind(BYTES, FakePairs())
    folder = kind.folder(kind.fingerprint())
    os.truncate(folder / "train.source.offsets", 24)
    assert sorted(training_texts(prepared(BYTES, FakePairs()))) == sorted(FakePairs().pairs)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"target": "ja"}, "target"),
        ({"target": "en"}, "target"),
        ({"vocabulary_size": None}, "vocabulary_size"),
        ({"tokenizer": "bytes"}, "vocabulary_size"),
        ({"batch_tokens": 100}, "batch_tokens"),
        ({"test_fraction": 0.1}, "test_fraction"),
        ({"folder": "/f"}, "folder"),
        ({"corpus": "pairs:a,b", "difficulty": "easy"}, "difficulty"),
        ({"corpus": "gettext:x", "source": "fr", "target": "de"}, "source"),
        ({"corpus": "gettext:x", "test_files": "a,b"}, "test_files"),
        ({"corpus": "wmt14-en-de", "target": "fr"}, "target"),
        ({"corpus": "wmt14-en-de", "test_pairs": 5}, "test_pairs"),
        ({"corpus": "pairs:a,b", "test_fraction": 0.5, "validation_fraction": 0.5}, "validation_fraction"),
        ({"corpus": "pairs:a,b", "test_fraction": 0.5, "test_files": "a,b"}, "test_fraction"),
        ({"corpus": "pairs:a"}, "corpus"),
        ({"corpus": "almanach"}, "corpus"),
    ],
)
def test_keys_that_make_no_sense_are_refused(keys, key):
    problems: list[Problem] = []
    assert validate(PairData, {"vocabulary_size": 500, **keys}, ("data",), len, problems) is None
    assert [problem.key for problem in problems] == [f"data.{key}"]


def test_what_is_implied_is_stored_in_one_way():
    said = PairData(vocabulary_size=500)
    assert said == PairData(vocabulary_size=500, difficulty="full", pairs=20_000, validation_pairs=500, test_pairs=1000)
    assert PairData(tokenizer="bytes") == PairData(tokenizer="bytes", vocabulary_size=BYTE_VOCABULARY)
    shares = PairData(corpus="pairs:a,b", vocabulary_size=500)
    assert (shares.validation_fraction, shares.test_fraction, shares.pairs) == (0.02, 0.02, None)
    own = PairData(corpus="pairs:a,b", vocabulary_size=500, test_files="c,d")
    assert (own.validation_fraction, own.test_fraction) == (0.02, None)
    assert PairData(**own.model_dump()) == own
