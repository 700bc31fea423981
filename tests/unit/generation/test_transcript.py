"""A transcript keeps what was decoded before a stop, whoever wrote it and wherever the stop was."""

from __future__ import annotations

import errno

import pytest

from comt_cli.errors import StorageError
from comt_cli.generation.transcript import Transcript

TEXTS = {4: "Chuyến tàu", 0: "", 7: "a line of its own", 2: "two spaces too"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "outputs" / "final"


def test_a_line_that_was_cut_off_anywhere_is_lost_alone(folder):
    Transcript(folder, "test").add(TEXTS)
    (part,) = folder.iterdir()
    whole = part.read_bytes()
    last = len(whole.splitlines()[-1]) + 1
    for lost in range(1, last + 1):
        part.write_bytes(whole[:-lost])
        resumed = Transcript(folder, "test")
        expected = {number: text for number, text in TEXTS.items() if number != 2 or lost == 1}
        assert resumed.done == expected, lost
        resumed.add({9: "next"})
        assert Transcript(folder, "test").done == {**expected, 9: "next"}, lost


def test_processes_write_parts_of_their_own_and_read_all(folder):
    first, second = Transcript(folder, "test"), Transcript(folder, "test", "part-1.jsonl")
    first.add({0: "zero", 2: "two"})
    second.add({1: "one"})
    assert (first.done, second.done) == ({0: "zero", 2: "two"}, {1: "one"})
    for each in (first, second):
        assert each.texts(range(3)) == ["zero", "one", "two"]
    assert Transcript(folder, "test", "part-5.jsonl").done == {0: "zero", 1: "one", 2: "two"}, "any number may continue"


@pytest.mark.parametrize("damage", [b"\xff\xfe not text\n", b'{"a": 1}\n', b"7\n", b'["x", "y"]\n'])
def test_a_damaged_file_is_translated_again(folder, damage):
    Transcript(folder, "test").add({0: "zero"})
    part = folder / "test.part-0.jsonl"
    part.write_bytes(damage + part.read_bytes())
    resumed = Transcript(folder, "test", "part-1.jsonl")
    resumed.add({0: "again", 1: "one"})
    assert resumed.texts([0, 1]) == ["again", "one"]


@pytest.mark.parametrize(("wrong", "right"), [("zero", "a hero"), ('[0, "', '[3, "'), ("]", ', "more"]')])
def test_a_line_that_does_not_fit_its_checksum_is_decoded_again(folder, wrong, right):
    Transcript(folder, "test").add({0: "zero", 1: "one"})
    part = folder / "test.part-0.jsonl"
    part.write_text(part.read_text().replace(wrong, right, 1))
    assert Transcript(folder, "test").done == {1: "one"}


def test_the_texts_of_other_weights_are_decoded_again(folder):
    Transcript(folder, "test", key="a run, step 4").add({0: "zero"})
    assert Transcript(folder, "test", key="a run, step 8").done == {}


def test_a_full_disk_says_what_is_kept(folder, monkeypatch):
    transcript = Transcript(folder, "test")
    transcript.add({0: "zero"})

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"cannot write .*test\.part-0\.jsonl: No space left"):
        transcript.add({1: "one"})
    assert transcript.done == {0: "zero"}
