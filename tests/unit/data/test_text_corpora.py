"""The corpora of text: Python's own, local files, and the hub's, read offline from files that are injected."""

from __future__ import annotations

import functools
import os
import random
import time
from unittest.mock import Mock

import pytest
from kinds import fingerprint, prepared, sentences

from comt_cli.data import hub
from comt_cli.data.prepare import prepare
from comt_cli.data.text.corpora import hub_text, python_library
from comt_cli.data.text.corpora.hub_text import FILE_ORDER_SEED, articles
from comt_cli.data.text.corpora.local_files import LocalFiles
from comt_cli.data.text.corpora.python_library import PythonDocs, decoded
from comt_cli.data.text.settings import DataSettings, MaskedData, split_of, tokenizer_identity
from comt_cli.data.text.splits import train_texts
from comt_cli.data.tokenizer import LONG_LINES_CUT
from comt_cli.errors import UserError


# From `sha256sum`: the first digit is below 8 for validation.
def test_the_side_of_a_text_never_changes():
    assert {text: split_of(text, 0.5) for text in "abcdef"} == dict.fromkeys("bcdef", "validation") | {"a": "train"}


DOCS = PythonDocs(DataSettings(tokenizer="bytes"))


def test_python_docs_are_about_two_megabytes_of_prose(with_shared_cache, python_docs_pack):
    texts = [document.text for document in DOCS.documents()]
    assert len({*texts}) == len(texts) > 5000
    assert "Return the absolute value of the argument." in texts  # a function in C
    assert any('The "assert" statement' in text for text in texts)  # a topic
    assert any("PurePath subclass" in text for text in texts)  # a class
    assert python_docs_pack.train.documents + python_docs_pack.validation.documents == len(texts)
    assert [document.text for document in DOCS.documents((0, 7000))] == texts[7000:]


def test_only_docstrings_are_taken_and_in_order():
    source = b'''"""Module."""
x = "no docstring"
if x:
    class A:
        "Class."
        def f(self):
            """Function."""
            "no docstring"
try:
    pass
except ImportError:
    async def g():
        """Handler."""
'''
    assert list(python_library._docstrings(source)) == ["Module.", "Class.", "Function.", "Handler."]
    assert list(python_library._docstrings(b"print 'python 2'")) == []


def test_python_docs_are_extracted_once_and_a_damaged_extract_is_made_anew(cache, monkeypatch):
    calls = []
    texts = [f"document {number} of the library, which is a long one" for number in range(100)]
    monkeypatch.setattr(PythonDocs, "texts", lambda *_: calls.append(1) or iter(texts))
    data = DataSettings(tokenizer="bytes")
    name = fingerprint(data)
    assert fingerprint(data) == name
    assert len(calls) == 1
    python_library._extracted.clear()  # as in another process
    assert fingerprint(data) == name
    assert len(calls) == 1
    (path,) = (cache / "python-docs").rglob("*.json")
    path.write_text(path.read_text().replace("document 7 ", "document 8 "))
    python_library._extracted.clear()
    assert fingerprint(data) == name
    assert len(calls) == 2
    monkeypatch.setenv("COMT_CACHE", str(cache / "elsewhere"))
    monkeypatch.setattr(PythonDocs, "texts", lambda *_: iter(["short"]))
    with pytest.raises(UserError, match="this Python has no texts for python-docs"):
        fingerprint(data)


def test_a_source_is_read_in_the_encoding_that_it_declares():
    assert decoded(b"\nx = 1\r\ny = 2\n\n") == "x = 1\ny = 2"
    assert decoded("# coding: latin-1\nname = 'é'\n".encode("latin-1")) == "# coding: latin-1\nname = 'é'"
    assert decoded("\ufeffname = 'é'\n".encode()) == "name = 'é'"
    assert decoded(b"name = '\xe9'\n") == decoded(b"# coding: no-such-encoding\n") == ""


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    (folder / "b" / "c").mkdir(parents=True)
    for name in ("z.txt", "a.txt", "b/m.txt", "b/c/n.txt", "b/note.md", ".hidden.txt"):
        (folder / name).write_text(f"the text of {name}")
    return folder


def local(glob):
    return LocalFiles(DataSettings(corpus=f"files:{glob}", tokenizer="bytes"))


def read(glob, start=(0, 0)):
    return [document.text.removeprefix("the text of ") for document in local(glob).documents(start)]


def test_one_document_a_file_sorted_by_name(texts, cache, monkeypatch):
    assert read(f"{texts}/**/*.txt") == ["a.txt", "b/c/n.txt", "b/m.txt", "z.txt"]
    assert read(f"{texts}/**/*.txt", (2, 0)) == ["b/m.txt", "z.txt"]
    monkeypatch.chdir(texts)
    assert (read("b/m.txt"), read(".h*")) == (["b/m.txt"], [".hidden.txt"])
    (texts / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (texts / "z.txt").write_bytes(b" \n")
    assert read("?.txt") == ["one\ntwo\n"]
    (texts / "a.txt").write_text("wide", encoding="utf-16")
    with pytest.raises(UserError, match=r"a\.txt: it is not UTF-8 text \(line 1\)"):
        read("*.txt")


def test_the_identity_is_that_of_the_content(texts, cache, tmp_path):
    identity = local(f"{texts}/*.txt").identity()
    moved = texts.rename(tmp_path / "moved")
    assert local(f"{moved}/*.txt").identity() == identity
    (moved / "a.txt").write_text("another text")
    changed = local(f"{moved}/*.txt").identity()
    (moved / "a.txt").rename(moved / "a2.txt")
    assert len({str(one) for one in (identity, changed, local(f"{moved}/*.txt").identity())}) == 3


def test_unchanged_files_are_not_read_again(texts, cache, monkeypatch):
    now, hashed = time.time() + 3600, []
    monkeypatch.setattr("time.time_ns", lambda: int(now * 1e9))
    monkeypatch.setattr("comt_cli.data.storage.hash_file", lambda path: hashed.append(path.name) or "0" * 64)
    (texts / "new.txt").write_text("written this moment: it may still change within the clock's step")
    os.utime(texts / "new.txt", (now, now))
    for _ in range(2):
        local(f"{texts}/*.txt").identity()
    assert hashed == ["a.txt", "new.txt", "z.txt", "new.txt"]
    for path in (cache / "file-hashes").rglob("*.json"):
        path.write_text("{ damaged")
    local(f"{texts}/*.txt").identity()
    assert hashed[4:] == ["a.txt", "new.txt", "z.txt"]


def test_a_change_that_keeps_size_and_time_is_seen(texts, cache, monkeypatch):
    """As of an archive whose files are all of one day, unpacked over an older one."""

    def written(text):
        (texts / "a.txt").write_text(text)
        os.utime(texts / "a.txt", (1577836800, 1577836800))

    data = DataSettings(corpus=f"files:{texts}/**/*.txt", tokenizer="bytes", validation_fraction=0.3, rows="pad")
    later = time.time_ns() + 10**12
    monkeypatch.setattr("time.time_ns", lambda: later)  # when files are remembered
    written("one two")
    before = prepare(data).fingerprint
    written("one too")
    assert prepare(data).fingerprint == fingerprint(data) != before


def test_how_long_lines_are_cut_is_told_by_the_fingerprint_of_own_text_alone(texts):
    def mark(**keys):
        return LONG_LINES_CUT in tokenizer_identity(DataSettings(**keys))

    assert mark(corpus=f"files:{texts}/*.txt", vocabulary=300)
    assert not mark(corpus=f"files:{texts}/*.txt", tokenizer="bytes")
    assert not any(mark(corpus=name, vocabulary=300) for name in ("python-docs", "python-source", "wikitext-103"))


class FakeFiles(list):
    """Some files of texts, of which it is known which were opened; the network may break at one of them."""

    def __init__(self, name, files, each, breaks_at=None):
        super().__init__(functools.partial(self.rows, file) for file in range(files))
        self.name, self.each, self.breaks_at, self.opened = name, each, breaks_at, []

    def rows(self, file):
        self.opened.append(file)
        if len(self.opened) - 1 == self.breaks_at:
            raise TimeoutError("the hub does not answer\nand here are forty more lines")
        for number, sentence in enumerate(sentences(self.each)):
            yield {"text": f"{self.name} {file}.{number}: {sentence}"}


C4 = DataSettings(corpus="c4", tokenizer="bytes", rows="pad", sequence_length=64, max_train_tokens=20_000)
ORDER = list(range(50))
random.Random(FILE_ORDER_SEED).shuffle(ORDER)


@pytest.fixture
def open_c4(monkeypatch):
    monkeypatch.setattr(hub_text.HubText, "validation_tokens", 3000)

    def opened(train, validation):
        monkeypatch.setattr(hub, "open_files", lambda *where: train if "train" in where[2] else validation)
        return C4.make_corpus()

    return opened


def test_c4_has_its_own_split_and_stops_at_the_limits(cache, open_c4):
    train, validation = FakeFiles("t", 50, 40), FakeFiles("v", 8, 40)
    dataset = prepared(C4, open_c4(train, validation))
    assert (dataset.train.tokens, dataset.validation.tokens) == (20_000, 3000)
    assert dataset.tokenizer.decode(dataset.train.batch([0]).tokens[0].tolist()).startswith(f"t {ORDER[0]}.0: ")
    assert dataset.tokenizer.decode(dataset.validation.batch([0]).tokens[0].tolist()).startswith("v ")
    assert train.opened == ORDER[: len(train.opened)]
    assert len(train.opened) < 20  # only what was needed
    validation = FakeFiles("v", 8, 40)
    assert all(text.startswith("t ") for text in train_texts(open_c4(FakeFiles("t", 3, 5), validation), 0.5))
    assert not validation.opened


def test_a_broken_connection_keeps_what_was_prepared_and_goes_on(cache, monkeypatch, open_c4):
    undisturbed = prepared(C4, open_c4(FakeFiles("t", 50, 40), FakeFiles("v", 8, 40)))
    monkeypatch.setenv("COMT_CACHE", str(cache.with_name("second")))
    monkeypatch.setattr("comt_cli.data.text.dataset._CHUNK_DOCUMENTS", 16)
    with pytest.raises(UserError, match=r"the hub does not answer\n  c4 needs") as caught:
        prepared(C4, open_c4(FakeFiles("t", 50, 40, breaks_at=6), FakeFiles("v", 8, 40)), part_bytes=4000)
    assert "python-docs" in str(caught.value.hint)
    train = FakeFiles("t", 50, 40)
    dataset = prepared(C4, open_c4(train, FakeFiles("v", 8, 40)), part_bytes=4000)
    assert train.opened[0] in ORDER[3:7]  # earlier files are not fetched again
    rows = range(len(dataset.train))
    assert dataset.train.batch([*rows]).tokens.tolist() == undisturbed.train.batch([*rows]).tokens.tolist()


def test_without_network_the_error_says_what_works(cache, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", Mock(side_effect=ConnectionError("Name or service not known")))
    data = DataSettings(corpus="openwebtext", tokenizer="bytes", max_train_tokens=1000)
    with pytest.raises(UserError, match=r"cannot read openwebtext from .*: Name or service not known") as caught:
        prepare(data)
    assert "files:GLOB" in str(caught.value.hint)


LINES = ["", " = A = ", "", " of a ", "", " = = Part = = ", "", " more ", " = 2 = ", "", " = Bee Hive = ", "", " of b "]


def test_a_title_behind_an_empty_line_begins_an_article():
    assert [*articles(LINES)] == ["= A =\nof a\n= = Part = =\nmore\n= 2 =", "= Bee Hive =\nof b"]
    assert next(articles(LINES[3:])).startswith("of a")
    assert [*articles([])] == []


def lines(split):
    """Twenty articles."""
    return [line for n, each in enumerate(sentences(20)) for line in ("", f" = {split} {n} = ", "", f" {each} ")]


def test_the_hub_and_a_folder_have_one_content(cache, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    for split, name in hub_text.IN_FOLDER.items():
        (tmp_path / name).write_text("\n".join(lines(split)) + "\n", encoding="utf-8")
        rows = [{"text": f"{line}\n" if line else ""} for line in lines(split)]
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / f"{split}-0.parquet")
    data = DataSettings(corpus="wikitext-103", tokenizer="bytes", sequence_length=16)
    monkeypatch.setattr(hub, "open_files", lambda *where: hub.stream_files(str(tmp_path / where[2].rpartition("/")[2])))
    published = prepare(data)
    folder = data.model_copy(update={"folder": str(tmp_path)})
    own = prepare(folder)
    assert published.content_hash == own.content_hash
    assert (own.train.documents, own.validation.documents) == (20, 20)
    assert fingerprint(data) != fingerprint(folder)
    (tmp_path / "wiki.train.raw").unlink()
    with pytest.raises(UserError, match=r"folder: cannot read .*wiki\.train\.raw"):
        fingerprint(folder)


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ValueError, match="folder: applies to wikitext-103"):
        DataSettings(tokenizer="bytes", folder="here")
    with pytest.raises(ValueError, match="validation_fraction: applies to python-docs"):
        DataSettings(corpus="wikitext-103", tokenizer="bytes", validation_fraction=0.1)
    with pytest.raises(ValueError, match="tokenizer"):
        MaskedData(tokenizer="t5")
