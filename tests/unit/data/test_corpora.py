"""The embedded corpus, local files, and the side of the split that a document falls on."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.data.prepare import fingerprint, prepare
from comt_cli.data.sentencepiece_tokenizer import LONG_LINES_CUT
from comt_cli.data.text.corpora import python_library
from comt_cli.data.text.corpora.local_files import LocalFiles
from comt_cli.data.text.corpora.python_library import PythonDocs, PythonSource, decoded
from comt_cli.data.text.corpus import corpus_for, split_of, train_texts
from comt_cli.data.text.dataset import Dataset
from comt_cli.data.text.settings import DataSettings
from comt_cli.data.text.vocabulary import tokenizer_identity
from comt_cli.errors import UserError


def written_once(path: Path, text: str) -> None:
    """Write a file whose time is always the same."""
    path.write_text(text)
    os.utime(path, (1577836800, 1577836800))


class TestSplit:
    @given(text=st.text(st.characters(codec="utf-8")), low=st.floats(0, 1), high=st.floats(0, 1))
    def test_a_larger_share_keeps_what_a_smaller_one_had(self, text: str, low: float, high: float) -> None:
        low, high = sorted((low, high))
        if split_of(text, low) == "validation":
            assert split_of(text, high) == "validation"
        assert split_of(text, 0) == "train"
        assert split_of(text, 1) == "validation"

    def test_the_side_of_a_text_never_changes(self) -> None:
        assert [split_of(text, 0.5) for text in "abcdef"] == [SIDES[text] for text in "abcdef"]


# From `sha256sum`: the first digit is below 8 for validation.
SIDES = {"a": "train", "b": "validation", "c": "validation", "d": "validation", "e": "validation", "f": "validation"}


class TestPythonDocs:
    def test_it_is_about_two_megabytes_of_prose(self, with_shared_cache: Path, python_docs_pack: Dataset) -> None:
        texts = [document.text for document in PythonDocs().documents()]
        assert 1_800_000 < sum(len(text.encode()) for text in texts) < 4_000_000
        assert len(texts) > 5000
        assert len(set(texts)) == len(texts)
        assert min(map(len, texts)) >= 40
        assert all(text == text.strip("\n") for text in texts)
        some = "\n".join(texts)
        assert 'The "assert" statement' in some  # a topic
        assert "Return the absolute value of the argument." in texts  # a function in C
        assert "PurePath subclass" in some  # a class
        assert python_docs_pack.train.documents + python_docs_pack.validation.documents == len(texts)

    def test_documents_can_be_read_from_any_place(self, with_shared_cache: Path) -> None:
        corpus = PythonDocs()
        everything = list(corpus.documents())
        assert list(corpus.documents((0, 7000))) == everything[7000:]
        assert list(corpus.documents((1, 0))) == []
        assert corpus.total == len(everything)

    def test_tests_and_installed_packages_are_left_out(self) -> None:
        root = Path(os.__file__).parent
        names = {path.relative_to(root).as_posix() for path in python_library.source_files(root)}
        assert {"argparse.py", "json/decoder.py"} <= names
        assert not any(part in ("test", "tests", "site-packages") for name in names for part in name.split("/"))

    def test_only_docstrings_are_taken_and_in_order(self) -> None:
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
        assert list(python_library._docstrings(b'"""Old escape \\d."""')) == ["Old escape \\d."]

    def test_a_replaced_builtin_does_not_change_the_corpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = list(python_library._c_docstrings("builtins"))

        def hook() -> None:
            """A hook of some debugger that has nothing to do with the corpus."""

        monkeypatch.setattr("builtins.hook_of_a_debugger", hook, raising=False)
        assert list(python_library._c_docstrings("builtins")) == before
        assert list(python_library._c_docstrings("no_such_module")) == []

    def test_it_is_extracted_once_and_a_damaged_extract_is_made_anew(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[int] = []

        def extract(progress: object) -> tuple[str, ...]:
            calls.append(1)
            return tuple(f"document {number} of the library" for number in range(100))

        monkeypatch.setattr(PythonDocs, "extract", staticmethod(extract))
        data = DataSettings(tokenizer="bytes")
        name = fingerprint(data)
        assert fingerprint(data) == name
        assert len(calls) == 1
        path = next((cache / "python-docs").glob("*.json"))
        path.write_text(path.read_text().replace("document 7 ", "document 8 "))
        assert fingerprint(data) == name
        assert len(calls) == 2


class TestPythonSource:
    def test_a_document_is_a_file_of_the_library(self, cache: Path) -> None:
        texts = [document.text for document in PythonSource().documents()]
        assert Path(os.__file__).read_text(encoding="utf-8").strip("\n") in texts
        assert 5_000_000 < sum(len(text.encode()) for text in texts) < 20_000_000
        assert len(set(texts)) == len(texts) == PythonSource().total
        assert PythonSource().identity() != PythonDocs().identity()
        assert len(list((cache / "python-source").glob("*.json"))) == 1

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            (b"\nx = 1\r\ny = 2\n\n", "x = 1\ny = 2"),
            ("# coding: latin-1\nname = 'é'\n".encode("latin-1"), "# coding: latin-1\nname = 'é'"),
            ("\ufeffname = 'é'\n".encode(), "name = 'é'"),
            (b"name = '\xe9'\n", ""),
            (b"# coding: no-such-encoding\n", ""),
        ],
    )
    def test_it_is_read_in_the_encoding_that_it_declares(self, source: bytes, text: str) -> None:
        assert decoded(source) == text


class TestLocalFiles:
    @pytest.fixture
    def texts(self, tmp_path: Path) -> Path:
        folder = tmp_path / "texts"
        (folder / "b" / "c").mkdir(parents=True)
        for name in ("z.txt", "a.txt", "b/m.txt", "b/c/n.txt", "b/note.md", ".hidden.txt"):
            (folder / name).write_text(f"the text of {name}")
        return folder

    def test_one_document_a_file_sorted_by_name(self, texts: Path, cache: Path) -> None:
        corpus = LocalFiles(f"{texts}/**/*.txt")
        expected = ["a.txt", "b/c/n.txt", "b/m.txt", "z.txt"]
        assert [document.text for document in corpus.documents()] == [f"the text of {name}" for name in expected]
        assert [document.text for document in corpus.documents((2, 0))] == ["the text of b/m.txt", "the text of z.txt"]
        assert corpus.total == 4

    def test_one_file_and_relative_patterns(self, texts: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(texts)
        assert [document.text for document in LocalFiles("b/m.txt").documents()] == ["the text of b/m.txt"]
        assert [document.text for document in LocalFiles("?.txt").documents()] == [
            "the text of a.txt",
            "the text of z.txt",
        ]
        assert [document.text for document in LocalFiles(".h*").documents()] == ["the text of .hidden.txt"]

    def test_the_identity_is_that_of_the_content(self, texts: Path, cache: Path, tmp_path: Path) -> None:
        identity = LocalFiles(f"{texts}/*.txt").identity()
        moved = texts.rename(tmp_path / "moved")
        assert LocalFiles(f"{moved}/*.txt").identity() == identity
        (moved / "a.txt").write_text("another text")
        changed = LocalFiles(f"{moved}/*.txt").identity()
        (moved / "a.txt").rename(moved / "a2.txt")
        renamed = LocalFiles(f"{moved}/*.txt").identity()
        assert len({str(one) for one in (identity, changed, renamed)}) == 3

    def test_unchanged_files_are_not_read_again(
        self, texts: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = time.time() + 3600
        monkeypatch.setattr("time.time_ns", lambda: int(now * 1e9))
        hashed: list[str] = []

        def hash_file(path: Path) -> str:
            hashed.append(path.name)
            return "0" * 64

        monkeypatch.setattr("comt_cli.data.known_hashes.hash_file", hash_file)
        (texts / "new.txt").write_text("written this moment: it may still change within the clock's step")
        os.utime(texts / "new.txt", (now, now))
        LocalFiles(f"{texts}/*.txt").identity()
        LocalFiles(f"{texts}/*.txt").identity()
        assert hashed == ["a.txt", "new.txt", "z.txt", "new.txt"]
        for path in (cache / "file-hashes").iterdir():
            path.write_text("{ damaged")
        LocalFiles(f"{texts}/*.txt").identity()
        assert hashed[4:] == ["a.txt", "new.txt", "z.txt"]

    def test_a_change_that_keeps_size_and_time_is_seen(
        self, texts: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As of an archive whose files are all of one day, unpacked over an older one."""
        data = DataSettings(corpus=f"files:{texts}/**/*.txt", tokenizer="bytes", validation_fraction=0.3, rows="pad")
        later = time.time_ns() + 10**12
        monkeypatch.setattr("time.time_ns", lambda: later)  # when files are remembered
        written_once(texts / "a.txt", "one two")
        before = prepare(data).fingerprint
        written_once(texts / "a.txt", "one too")
        after = fingerprint(data)
        assert after != before
        assert prepare(data).fingerprint == after
        monkeypatch.setattr("comt_cli.data.known_hashes.state_of", lambda status: [0])  # a system that tells no change
        LocalFiles(f"{texts}/a.txt").identity()
        written_once(texts / "a.txt", "one six")
        with pytest.raises(UserError, match=r"a\.txt was changed while it was read"):
            list(LocalFiles(f"{texts}/a.txt").documents())
        found = [document.text for document in LocalFiles(f"{texts}/a.txt").documents()]
        assert found == ["one six"]

    def test_marks_and_line_ends_are_not_text(self, texts: Path, cache: Path) -> None:
        (texts / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
        (texts / "z.txt").write_bytes(b" \n")
        assert [document.text for document in LocalFiles(f"{texts}/*.txt").documents()] == ["one\ntwo\n"]

    def test_utf16_is_told_by_its_mark(self, texts: Path, cache: Path) -> None:
        (texts / "a b.txt").write_text("wide", encoding="utf-16")
        with pytest.raises(UserError, match=r"iconv -f utf-16 -t utf-8 'a b\.txt'"):
            list(LocalFiles(f"{texts}/*.txt").documents())

    @pytest.mark.parametrize("rows", ["pack", "pad"])
    def test_few_files_are_told_which_share_holds_one_out(self, texts: Path, cache: Path, rows: str) -> None:
        keys = {"corpus": f"files:{texts}/**/*.txt", "tokenizer": "bytes", "sequence_length": 16, "rows": rows}
        with pytest.raises(UserError, match="is in the validation split") as refused:
            prepare(DataSettings(**keys, validation_fraction=0.0001))
        (share,) = re.findall(r"--set data\.validation_fraction=(0\.\d+),", str(refused.value.hint))
        assert prepare(DataSettings(**keys, validation_fraction=float(share))).validation.documents >= 1

    def test_how_long_lines_are_cut_is_told_by_the_fingerprint_of_own_text_alone(self, texts: Path) -> None:
        def mark(**keys: Any) -> bool:
            return LONG_LINES_CUT in tokenizer_identity(DataSettings(**keys))

        assert mark(corpus=f"files:{texts}/*.txt", vocabulary=300)
        assert not mark(corpus=f"files:{texts}/*.txt", tokenizer="bytes")
        assert not any(mark(corpus=name, vocabulary=300) for name in ("python-docs", "python-source", "wikitext-103"))

    def test_a_file_changed_meanwhile_is_named(self, texts: Path, cache: Path) -> None:
        corpus = LocalFiles(f"{texts}/*.txt")
        corpus.identity()
        (texts / "z.txt").write_text("changed")
        with pytest.raises(UserError, match=r"z\.txt was changed"):
            list(corpus.documents())
        (texts / "z.txt").unlink()
        with pytest.raises(UserError, match=r"cannot read .*z\.txt"):
            list(corpus.documents())


def test_a_tokenizer_sees_the_train_side_only(with_shared_cache: Path) -> None:
    corpus = corpus_for(DataSettings(vocabulary=2048))
    texts = set(train_texts(corpus, 0.3))
    everything = {document.text for stream in corpus.streams() for document in stream.documents()}
    assert texts == {text for text in everything if split_of(text, 0.3) == "train"}
    assert len(texts) < len(everything)
