"""Pairs: where they are from, how they are divided, prepared and packed into buckets, and what is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds import fingerprint
from pyarrow import parquet

from comt_cli.data import hub
from comt_cli.data.order import sample_indices
from comt_cli.data.pairs.dataset import ROWS, PairBuckets, pack_buckets
from comt_cli.data.pairs.settings import (
    BYTE_VOCABULARY,
    Kind,
    PairCorpus,
    PairData,
    PairTexts,
    split_of_source,
)
from comt_cli.data.prepare import prepare
from comt_cli.data.split import IGNORE, TokenLists
from comt_cli.data.tokenizer import LONG_LINES_CUT, SpecialTokens
from comt_cli.errors import UserError
from comt_cli.recipe.problems import Document, validate

ALMANAC = PairData(target="vi", difficulty="easy", pairs=2000, validation_pairs=60, test_pairs=80, vocabulary_size=900,
                   max_length=128, batch_tokens=1024)  # fmt: skip
BYTES = {"tokenizer": "bytes", "max_length": 200, "batch_tokens": 400}
FAKE = PairData(corpus="pairs:a,b", tokenizer="bytes", max_length=64, batch_tokens=128)


class FakePairs(PairCorpus):
    """Pairs that are given."""

    def __init__(self, pairs):
        self.pairs = pairs

    def identity(self, progress=None):
        return ["fake", self.pairs]

    def decoded(self, progress=None):
        return {"validation": PairTexts(["v" * 100, "v"], ["w", "w" * 200]), "test": PairTexts(["t"], ["u"])}

    def train(self):
        return iter(self.pairs)


def prepared(pairs):
    return Kind(FAKE, FakePairs(pairs)).prepare()


def training_texts(dataset):
    """Every pair of every training bucket, decoded."""
    batch = dataset.train.batch(np.arange(len(dataset.train)))
    targets = np.where(batch.target_out == IGNORE, 0, batch.target_out)
    decode = dataset.tokenizer.decode
    return sorted((decode(source), decode(target)) for source, target in zip(batch.source, targets, strict=True))


def test_every_pair_is_in_one_bucket_and_texts_belong_to_theirs(cache):
    dataset = prepare(ALMANAC)
    assert training_texts(dataset) == sorted(ALMANAC.make_corpus().train())
    assert str(dataset.left_out) == ""
    assert sorted(dataset.texts) == ["test", "unseen", "validation"]
    for split, buckets in (("validation", dataset.validation), ("test", dataset.test), ("unseen", dataset.unseen)):
        texts, every = dataset.texts[split], np.arange(len(buckets))
        numbers = buckets.pairs(every).tolist()
        assert sorted(numbers) == list(range(len(texts)))
        for number, source in zip(numbers, buckets.batch(every).source, strict=True):
            assert dataset.tokenizer.decode(source) == texts.sources[number]
        assert all(slot in text for text, slots in zip(texts.references, texts.slots, strict=True) for slot in slots)


def test_pairs_over_the_limit_are_counted_and_named_but_none_that_is_decoded_is_left_out(cache):
    pairs = [("short", "kurz")] * 5 + [("x" * 64, "y"), ("", "leer"), ("a", "z" * 99), ("fits", "w" * 63)]
    dataset = prepared(pairs)
    assert len(training_texts(dataset)) == 6
    assert str(dataset.left_out) == (
        "training pairs left out: 2 too long (max_length), 1 without a text on one side; "
        f"first {'x' * 30!r} (65 tokens), 'leer', 'a' (100 tokens)"
    )
    every = np.arange(len(dataset.validation))
    assert dataset.validation.pairs(every).size == 2
    assert dataset.validation.batch(every).target_out.shape[1] == 201
    with pytest.raises(UserError, match="no pair to train on") as caught:
        prepared([("x" * 300, "y")])
    assert "1 too long" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"target": "en"}, "target"),
        ({"vocabulary_size": None}, "vocabulary_size"),
        ({"tokenizer": "bytes"}, "vocabulary_size"),
        ({"target": "ja", "batch_tokens": 50, "folder": "/f"}, "target folder batch_tokens"),
        ({"test_fraction": 0.1}, "test_fraction"),
        ({"corpus": "pairs:a,b", "difficulty": "easy"}, "difficulty"),
        ({"corpus": "gettext:x", "source": "fr", "target": "de"}, "source"),
        ({"corpus": "gettext:x", "test_files": "a,b"}, "test_files"),
        ({"corpus": "wmt14-en-de", "test_files": "a,b"}, "test_files"),
        ({"corpus": "wmt14-en-de", "target": "fr"}, "target"),
        ({"corpus": "pairs:a,b", "test_fraction": 0.5, "validation_fraction": 0.5}, "validation_fraction"),
        ({"corpus": "pairs:a,b", "test_fraction": 0.5, "test_files": "a,b"}, "test_fraction"),
        ({"corpus": "pairs:a"}, "corpus"),
        ({"corpus": "almanach"}, "corpus"),
    ],
)
def test_keys_that_make_no_sense_are_refused_all_at_once(keys, wrong):
    document = Document()
    assert validate(PairData, {"vocabulary_size": 500, **keys}, document, ("data",)) is None
    assert [problem.key for problem in document.problems] == [f"data.{key}" for key in wrong.split()]


def test_what_is_implied_is_stored_in_one_way():
    said = PairData(vocabulary_size=500)
    assert said == PairData(vocabulary_size=500, difficulty="full", pairs=20_000, validation_pairs=500, test_pairs=1000)
    assert PairData(tokenizer="bytes") == PairData(tokenizer="bytes", vocabulary_size=BYTE_VOCABULARY)
    own = PairData(corpus="pairs:a,b", vocabulary_size=500, test_files="c,d")
    assert (own.validation_fraction, own.test_fraction, own.pairs) == (0.02, None, None)
    assert PairData(**own.model_dump()) == own


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def two(tmp_path):
    """Two files of 300 lines; every tenth source comes twice."""
    sources = [f"sentence number {n - n % 10 // 9}" for n in range(300)]
    return write(tmp_path / "a.en", sources), write(tmp_path / "b.de", [f"Satz Nummer {n}" for n in range(300)])


def of_files(source, target, **keys):
    return PairData(**{"corpus": f"pairs:{source},{target}", **BYTES, **keys})


def test_lines_are_divided_by_the_hash_of_the_source(cache, two):
    data = of_files(*two, validation_fraction=0.1, test_fraction=0.2)
    corpus = data.make_corpus()
    decoded, train = corpus.decoded(), list(corpus.train())
    assert len(train) + sum(len(each) for each in decoded.values()) == 300
    assert 10 < len(decoded["validation"]) < 50 < len(decoded["test"]) < 90
    sides = [{source for source, _ in train}, *({*each.sources} for each in decoded.values())]
    assert sum(len(side) for side in sides) == len(set.union(*sides)) == 270
    assert all(split_of_source(source, data) == "test" for source in decoded["test"].sources)
    assert len(list(corpus.vocabulary_texts())) == 2 * len(train)
    assert prepare(data).texts == decoded


def test_validation_may_be_files_of_its_own_and_where_files_lie_does_not_count(cache, two, tmp_path):
    own = (write(tmp_path / "dev.en", ["one", "", "two"]), write(tmp_path / "dev.de", ["eins", "leer", "zwei"]))
    decoded = prepare(of_files(*two, validation_files=f"{own[0]},{own[1]}", test_fraction=0.1)).texts
    assert (decoded["validation"].sources, decoded["validation"].references) == (["one", "two"], ["eins", "zwei"])
    assert 10 < len(decoded["test"]) < 50
    elsewhere = tmp_path / "with [brackets]"
    elsewhere.mkdir()
    copies = [Path(shutil.copy(path, elsewhere)) for path in two]
    assert (
        fingerprint(of_files(*copies)) == fingerprint(of_files(*two)) != fingerprint(of_files(*two, test_fraction=0.3))
    )


def test_a_side_of_which_nothing_can_be_seen_is_empty(cache, tmp_path):
    unseen = ["\u200b", "\u00ad", "\ufeff\u2060", " \u200e\t"]
    two = write(tmp_path / "a", [*unseen, "seen\u00ad"]), write(tmp_path / "b", ["target"] * 5)
    corpus = of_files(*two, validation_fraction=0.001, test_fraction=0.001).make_corpus()
    assert [source for source, _ in corpus.train()] == [""] * 4 + ["seen\u00ad"]
    assert corpus.identity()[-1] == LONG_LINES_CUT


def test_files_that_do_not_fit_are_named(cache, two, tmp_path):
    wide = tmp_path / "wide.de"
    wide.write_text("Satz\n" * 300, encoding="utf-16")
    os.mkfifo(tmp_path / "pipe")
    for other, wrong in (
        (write(tmp_path / "short", ["eins"]), r"line 2 of .*a\.en has no counterpart in .*short"),
        (write(tmp_path / "long", ["Satz"] * 301), r"line 301 of .*long has no counterpart in .*a\.en"),
        (wide, r"wide\.de is not UTF-8 text \(line 1: "),
        (tmp_path / "absent", "cannot read .*absent"),
        (tmp_path / "pipe", "cannot read .*pipe: it is a pipe or a device, not a file"),
    ):
        with pytest.raises(UserError, match=wrong):
            prepare(of_files(two[0], other))


PO = """
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\nPlural-Forms: nplurals=2; plural=(n != 1);\\n"
msgid "Save the <b>file</b>"
msgstr "Die <b>Datei</b> speichern"
msgid "%(count)s page"
msgid_plural "%(count)s pages"
msgstr[0] "%(count)s Seite"
msgstr[1] "%(count)s Seiten"
#, fuzzy
msgid "Unsure"
msgstr "Unsicher"
msgid "Untranslated"
msgstr ""
msgid "Two\\n  lines"
msgstr "Zwei Zeilen"
"""


def test_catalogues_are_read_once_each_without_the_fuzzy_and_empty(cache, tmp_path, monkeypatch):
    from babel.messages.catalog import Catalog
    from babel.messages.mofile import write_mo

    folder = tmp_path / "translated_package" / "locale" / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (tmp_path / "translated_package" / "__init__.py").touch()
    (folder / "django.po").write_text(PO, encoding="utf-8")
    catalogue = Catalog("de")
    catalogue.add("Close", "Schließen")
    catalogue.add(("%d day", "%d days"), ("%d Tag", "%d Tage"))
    catalogue.add("Two lines", "Zwei Zeilen")
    for name in ("other.mo", "django.mo"):  # the latter is left alone: it has a .po
        with (folder / name).open("wb") as handle:
            write_mo(handle, catalogue)
    monkeypatch.syspath_prepend(tmp_path)
    data = PairData(corpus="gettext:translated_package", **BYTES)
    catalogues = data.make_corpus()
    pairs = dict(catalogues.train())
    for split in catalogues.decoded().values():
        pairs |= dict(zip(split.sources, split.references, strict=True))
    assert pairs == {
        "Save the <b>file</b>": "Die <b>Datei</b> speichern",
        "%(count)s pages": "%(count)s Seiten",
        "Two lines": "Zwei Zeilen",
        "Close": "Schließen",
        "%d days": "%d Tage",
    }
    before = fingerprint(data)
    (folder / "django.po").write_text(PO.replace("speichern", "sichern"), encoding="utf-8")
    assert fingerprint(data) != before


class Parquet:
    """Local parquet files in the form of the hub's."""

    def __init__(self, folder):
        self.folder = folder
        for split, count in (("train", 3), ("validation", 1), ("test", 1)):
            for file in range(count):
                rows = [{"translation": {"en": f"{split} {file} {n}", "de": f"D {file} {n} "}} for n in range(40)]
                rows[7]["translation"]["de"] = ""
                parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}-{file}.parquet")

    def __call__(self, repository, revision, pattern):
        assert (repository, revision) == ("wmt/wmt14", "main")
        return hub.stream_files(str(self.folder / Path(pattern).name))


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("de", "en")])
def test_the_hub_is_read_in_either_direction(cache, tmp_path, monkeypatch, source, target):
    data = PairData(corpus="wmt14-en-de", source=source, target=target, **BYTES)
    monkeypatch.setattr(hub, "open_files", Parquet(tmp_path))
    corpus = data.make_corpus()
    texts = list(corpus.vocabulary_texts())  # of all files in turn
    assert [text for text in texts if text.startswith("train")][:3] == ["train 0 0", "train 1 0", "train 2 0"]
    assert len(texts) == 240
    dataset = prepare(data)
    assert dataset.left_out.empty == 3
    assert dataset.train.plan.members.size == 117
    english = dataset.texts["test"].sources if source == "en" else dataset.texts["test"].references
    assert english == [f"test 0 {n}" for n in range(40) if n != 7]


def test_a_broken_connection_is_told_with_what_helps(cache, monkeypatch):
    monkeypatch.setattr(hub, "open_files", Mock(side_effect=TimeoutError("the hub does not answer\nand more lines")))
    with pytest.raises(UserError, match=r"cannot read wmt14-en-de from .*wmt/wmt14: the hub does not answer") as caught:
        prepare(PairData(corpus="wmt14-en-de", **BYTES))
    assert "train.en, train.de, newstest2013.en" in str(caught.value.hint)


def test_a_folder_stands_in_for_the_hub(cache, tmp_path):
    data = PairData(corpus="iwslt15-en-vi", target="vi", folder=str(tmp_path), **BYTES)
    with pytest.raises(UserError, match=r"folder: cannot read .*train\.en"):
        fingerprint(data)
    for stem in ("train", "tst2012", "tst2013"):
        for language in ("en", "vi"):
            write(tmp_path / f"{stem}.{language}", [*(f"{stem} {language} {n}" for n in range(9)), "\u200b"])
    dataset = prepare(data)
    assert dataset.texts["validation"].sources[0] == "tst2012 en 0"
    assert dataset.texts["test"].references[8] == "tst2013 vi 8"
    assert dataset.train.plan.members.size == 10  # as it was published
    assert len(data.make_corpus().identity()) == 4  # what earlier versions have prepared is still known
    assert dataset.fingerprint != fingerprint(data.model_copy(update={"folder": None}))


PLAN = [[6], [9, 4], [0, 1, 7, 2], [11, 5], [10, 3, 8]]
SPECIAL = SpecialTokens(pad=0, end=1, begin=2)
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=120)


def arrays(pairs):
    source, target = np.array(pairs, dtype=np.int64).T
    return source, target


@given(LENGTHS, st.integers(1, 200), st.integers(-3, 10**6))
def test_every_pair_is_in_one_bucket_within_the_bound(pairs, batch_tokens, seed):
    source, target = arrays(pairs)
    longest = np.maximum(source, target).max()
    if longest > batch_tokens:
        with pytest.raises(ValueError, match=f"a pair of {longest} tokens does not fit in {batch_tokens}"):
            pack_buckets(source, target, batch_tokens, seed)
        return
    plan = pack_buckets(source, target, batch_tokens, seed)
    assert sorted(plan.members.tolist()) == list(range(len(pairs)))
    for bucket in range(len(plan.offsets) - 1):
        inside = plan.pairs(bucket)
        assert len(inside)
        assert len(inside) * source[inside].max() <= batch_tokens
        assert len(inside) * target[inside].max() <= batch_tokens


@given(LENGTHS, st.integers(1, 200), st.integers(0, 9))
def test_packing_is_greedy_along_the_sorted_pairs(pairs, batch_tokens, seed):
    """Pair by pair, as the rule is said: the plan itself is faster."""
    source, target = arrays([each for each in pairs if max(each) <= batch_tokens] or [(1, 1)])
    drawn = sample_indices(seed, 0, len(source), len(source))
    longer, difference = np.maximum(source, target), source - target
    turning = np.where(longer % 2, difference, -difference)
    packed: list[list[int]] = [[]]
    for pair in np.lexsort((drawn, turning, longer)).tolist():
        if (len(packed[-1]) + 1) * longer[pair] > batch_tokens:
            packed.append([])
        packed[-1].append(pair)
    plan = pack_buckets(source, target, batch_tokens, seed)
    numbered = [packed[number] for number in sample_indices(seed, 0, len(packed), len(packed))]
    assert [plan.pairs(bucket).tolist() for bucket in range(len(numbered))] == numbered


def test_the_plan_never_changes():
    """A run resumed with a later version must see the buckets it would have seen."""
    plan = pack_buckets(*arrays([(n % 7 + 1, n % 5 + 1) for n in range(12)]), 14, 3)
    assert [plan.pairs(bucket).tolist() for bucket in range(len(plan.offsets) - 1)] == PLAN


def test_a_batch_by_hand():
    sources, targets = TokenLists.of([[5, 6], [7]]), TokenLists.of([[8], [9, 10, 11]])
    split = PairBuckets(sources, targets, SPECIAL, 8, 0)
    assert len(split) == 1
    assert split.pairs(np.array([0])).tolist() == [0, 1]
    batch = split.train_batch(np.array([0]), 0, 5)
    assert batch.source.tolist() == [[5, 6, 1], [7, 1, 0]]
    assert batch.target_in.tolist() == [[2, 8, 0, 0], [2, 9, 10, 11]]
    assert batch.target_out.tolist() == [[8, 1, IGNORE, IGNORE], [9, 10, 11, 1]]
    assert batch.positions.tolist() == [5 * ROWS, 5 * ROWS + 1]
    assert batch.target_count == split.target_counts(np.array([0])).sum() == 6


def test_misuse_is_named():
    lists = TokenLists.of([[3]])
    with pytest.raises(ValueError, match="no begin token"):
        PairBuckets(lists, lists, SpecialTokens(pad=0, end=1), 9, 0)
    with pytest.raises(ValueError, match="with lengths of 1 or more"):
        PairBuckets(lists, TokenLists.of([[3], [4]]), SPECIAL, 9, 0)
