"""Pairs from text files, gettext catalogues and the hub: what is read, how it is divided, and what is refused."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import time
from pathlib import Path
from unittest.mock import patch

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from comt_cli.data import hub
from comt_cli.data.pairs.corpora import text_files
from comt_cli.data.pairs.corpora.gettext_catalogues import Catalogues
from comt_cli.data.pairs.corpora.published import PublishedPairs
from comt_cli.data.pairs.settings import Kind, PairData, corpus_for, split_of_source
from comt_cli.data.prepare import fingerprint, prepare
from comt_cli.data.vocabulary import LONG_LINES_CUT
from comt_cli.errors import UserError

BYTES = {"tokenizer": "bytes", "max_length": 200, "batch_tokens": 400}


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
    corpus = corpus_for(data)
    decoded, train = corpus.decoded(), list(corpus.train())
    assert len(train) + sum(len(each) for each in decoded.values()) == 300
    assert 10 < len(decoded["validation"]) < 50 < len(decoded["test"]) < 90
    sides = [{pair.source for pair in train}, *({*each.sources} for each in decoded.values())]
    assert sum(len(side) for side in sides) == len(set.union(*sides)) == 270
    assert all(split_of_source(source, data) == "test" for source in decoded["test"].sources)
    resumed = list(corpus.train(train[50].place))
    assert resumed == train[50:]
    assert len(list(corpus.vocabulary_texts())) == 2 * len(train)
    dataset = prepare(data)
    assert decoded == dataset.texts
    assert fingerprint(data) == dataset.fingerprint


def test_validation_and_test_may_be_files_of_their_own(cache, two, tmp_path):
    own = (write(tmp_path / "dev.en", ["one", "", "two"]), write(tmp_path / "dev.de", ["eins", "leer", "zwei"]))
    data = of_files(*two, validation_files=f"{own[0]},{own[1]}", test_fraction=0.1)
    decoded = prepare(data).texts
    assert decoded["validation"].sources == ["one", "two"]
    assert decoded["validation"].references == ["eins", "zwei"]
    assert 10 < len(decoded["test"]) < 50


def test_a_side_of_which_nothing_can_be_seen_is_empty(cache, tmp_path):
    unseen = ["\u200b", "\u00ad", "\ufeff\u2060", " \u200e\t"]
    two = write(tmp_path / "a", [*unseen, "seen\u00ad"]), write(tmp_path / "b", ["target"] * 5)
    data = of_files(*two, validation_fraction=0.001, test_fraction=0.001)
    assert [pair.source for pair in corpus_for(data).train()] == [""] * 4 + ["seen\u00ad"]
    assert list(corpus_for(data).vocabulary_texts()).count("target") == 5
    assert corpus_for(data).identity()[-1] == LONG_LINES_CUT
    for name in ("train", "tst2012", "tst2013"):
        for language in ("en", "vi"):
            (tmp_path / f"{name}.{language}").write_text("one\n\u200b\n")
    published = corpus_for(PairData(corpus="iwslt15-en-vi", target="vi", folder=str(tmp_path), tokenizer="bytes"))
    assert [pair.source for pair in published.train()] == ["one", "\u200b"]
    assert len(published.identity()) == 4  # what earlier versions have prepared is still known


def test_files_that_changed_are_never_prepared_as_what_they_were(cache, two, monkeypatch):
    data, later = of_files(*two), time.time_ns() + 10**12
    monkeypatch.setattr("time.time_ns", lambda: later)  # when hashes are remembered

    def corrected(number):
        """A letter for a letter, and the time is that of the archive."""
        two[1].write_text(two[1].read_text().replace("Satz Nummer 7", f"Satz Nummer {number}"))
        os.utime(two[1], (1577836800, 1577836800))

    corrected(7)
    before = fingerprint(data)
    corrected(8)
    assert prepare(data).fingerprint == fingerprint(data) != before
    monkeypatch.setattr("comt_cli.data.storage.state_of", lambda status: [0])  # of a system that tells no change
    fingerprint(data)
    write(two[1], [f"Satz Nr. {number}" for number in range(300)])
    shutil.rmtree(cache / "pairs")
    with pytest.raises(UserError, match=r"b\.de was changed while it was read"):
        prepare(data)
    assert prepare(data).fingerprint == fingerprint(data)


def test_all_that_is_wrong_with_files_is_said_at_once_before_they_are_prepared(cache, two, tmp_path):
    short, empty, latin = write(tmp_path / "s", ["eins"]), write(tmp_path / "e", []), tmp_path / "l"
    latin.write_bytes(b"a" * (1 << 20) + b"\n\xc3\n")  # behind the first block that is read
    data = of_files(two[0], short, validation_files=f"{latin},{empty}", test_files=f"{short},{tmp_path / 'absent'}")
    for _ in range(2):
        with pytest.raises(UserError) as caught:
            fingerprint(data)
        for wrong in ("line 2 of a.en has no counterpart", "line 2", f"{empty} is empty", f"{tmp_path / 'absent'}"):
            assert wrong in caught.value.message
    fine = of_files(*two)
    known = fingerprint(fine)
    write(two[1], ["a line"] * 299)
    with pytest.raises(UserError, match=r"line 300 of a\.en has no counterpart"):
        fingerprint(fine)
    write(two[1], [f"Satz Nummer {n}" for n in range(300)])
    assert fingerprint(fine) == known


def test_files_that_are_no_text_are_named(cache, two, tmp_path):
    wide = tmp_path / "wide.de"
    wide.write_text("Satz\n" * 300, encoding="utf-16")
    with pytest.raises(UserError, match=r"wide\.de is not UTF-8 text \(line 1: ") as caught:
        prepare(of_files(two[0], wide))
    assert "iconv -f utf-16 -t utf-8 wide.de" in str(caught.value)
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match=rf"cannot read {name}: it is a (pipe|device), not a file"):
            fingerprint(of_files(two[0], name))


@given(st.binary(max_size=40))
def test_lines_are_counted_as_they_are_read(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("counted") / "text"
    path.write_bytes(content)
    with patch.object(text_files, "_BLOCK_BYTES", 3):
        try:
            expected = len(list(text_files._lines(path)))
        except UserError:
            with pytest.raises(UserError, match="not UTF-8"):
                text_files._count(path)
            return
        if expected:
            assert text_files._count(path) == (expected, hashlib.sha256(content).hexdigest())
        else:
            with pytest.raises(UserError, match="is empty"):
                text_files._count(path)


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


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package with German catalogues: one as text, one compiled."""
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
    return tmp_path


def test_catalogues_are_read_once_each_without_the_fuzzy_and_empty(cache, package):
    data = PairData(corpus="gettext:translated_package", **BYTES)
    catalogues = Catalogues(data)
    pairs = {pair.source: pair.target for pair in catalogues.train()}
    for split in catalogues.decoded().values():
        pairs |= dict(zip(split.sources, split.references, strict=True))
    assert pairs == {
        "Save the <b>file</b>": "Die <b>Datei</b> speichern",
        "%(count)s pages": "%(count)s Seiten",
        "Two lines": "Zwei Zeilen",
        "Close": "Schließen",
        "%d days": "%d Tage",
    }
    assert catalogues.total == 5
    before = fingerprint(data)
    path = package / "translated_package/locale/de/LC_MESSAGES/django.po"
    path.write_text(PO.replace("speichern", "sichern"), encoding="utf-8")
    assert fingerprint(data) != before


class Parquet:
    """Local parquet files in the form of the hub's; the network may break at a row of training."""

    def __init__(self, folder, breaks_at=None):
        self.folder, self.breaks_at, self.opened = folder, breaks_at, []
        for split, files in (("train", 3), ("validation", 1), ("test", 1)):
            for file in range(files):
                rows = [{"translation": {"en": f"{split} {file} {n}", "de": f"D {file} {n} "}} for n in range(40)]
                rows[7]["translation"]["de"] = ""
                parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}-{file}.parquet")

    def __call__(self, repository, revision, pattern):
        name = Path(pattern).name
        found = hub.stream_files(str(self.folder / name))
        return [functools.partial(self.rows, name, file, rows) for file, rows in enumerate(found)]

    def rows(self, name, file, rows):
        for number, row in enumerate(rows()):
            if self.breaks_at == 40 * file + number and name.startswith("train"):
                raise TimeoutError("the hub does not answer\nand more lines")
            if number == 0:
                self.opened.append(f"{name}:{file}")
            yield row


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("de", "en")])
def test_the_hub_is_read_in_either_direction(cache, tmp_path, source, target):
    data = PairData(corpus="wmt14-en-de", source=source, target=target, **BYTES)
    corpus = PublishedPairs(data, Parquet(tmp_path))
    texts = list(corpus.vocabulary_texts())  # of all files in turn
    assert [text for text in texts if text.startswith("train")][:3] == ["train 0 0", "train 1 0", "train 2 0"]
    assert len(texts) == 240
    dataset = Kind(data, corpus).prepare()
    assert dataset.left_out.empty == 3
    assert dataset.train.plan.members.size == 117
    english = dataset.texts["test"].sources if source == "en" else dataset.texts["test"].references
    assert english == [f"test 0 {n}" for n in range(40) if n != 7]


def test_a_broken_connection_keeps_what_was_prepared(cache, tmp_path, monkeypatch):
    monkeypatch.setattr("comt_cli.data.pairs.dataset._CHUNK_PAIRS", 10)
    monkeypatch.setattr("comt_cli.data.pairs.dataset._BLOCK_PAIRS", 20)
    data = PairData(corpus="wmt14-en-de", **BYTES)
    with pytest.raises(UserError, match=r"cannot read wmt14-en-de from .*wmt/wmt14: the hub does not answer") as caught:
        Kind(data, PublishedPairs(data, Parquet(tmp_path, breaks_at=110))).prepare()
    assert "train.en, train.de, newstest2013.en" in str(caught.value.hint)
    files = Parquet(tmp_path)
    dataset = Kind(data, PublishedPairs(data, files)).prepare()
    assert files.opened == ["train-*.parquet:2"]
    assert dataset.train.plan.members.size == 117


def test_a_folder_stands_in_for_the_hub(cache, tmp_path):
    data = PairData(corpus="iwslt15-en-vi", target="vi", folder=str(tmp_path), **BYTES)
    with pytest.raises(UserError, match=r"folder: cannot read .*train\.en") as found:
        fingerprint(data)
    assert "train.en, train.vi, tst2012.en, tst2012.vi, tst2013.en, tst2013.vi" in str(found.value.hint)
    for stem in ("train", "tst2012", "tst2013"):
        for language in ("en", "vi"):
            write(tmp_path / f"{stem}.{language}", [f"{stem} {language} {n}" for n in range(9)])
    dataset = prepare(data)
    assert dataset.texts["validation"].sources[0] == "tst2012 en 0"
    assert dataset.texts["test"].references[8] == "tst2013 vi 8"
    assert dataset.train.plan.members.size == 9
    assert dataset.fingerprint != fingerprint(data.model_copy(update={"folder": None}))
