"""A transcript keeps what was decoded before a stop, whoever wrote it and wherever the stop was."""

from __future__ import annotations

import errno
import json

import pytest

from comt_cli.errors import StorageError
from comt_cli.generation.transcript import Transcript

TEXTS = {4: "Chuyến tàu", 0: "", 7: "a line of its own", 2: "two spaces too"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "outputs" / "final"


def test_what_was_written_is_there_at_the_next_start(folder):
    first = Transcript(folder, "test")
    assert first.done == {}
    first.add({4: TEXTS[4], 0: TEXTS[0]})
    first.add({7: TEXTS[7]})
    assert Transcript(folder, "test").done == {number: TEXTS[number] for number in (4, 0, 7)}
    again = Transcript(folder, "test")
    again.add({2: TEXTS[2]})
    assert again.done == TEXTS
    assert again.texts([0, 2, 4, 7]) == [TEXTS[number] for number in (0, 2, 4, 7)]


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
    first, second = Transcript(folder, "test", 0), Transcript(folder, "test", 1)
    first.add({0: "zero", 2: "two"})
    second.add({1: "one"})
    assert (first.done, second.done) == ({0: "zero", 2: "two"}, {1: "one"})
    for each in (first, second):
        assert each.texts(range(3)) == ["zero", "one", "two"]
    assert Transcript(folder, "test", 1).done == {0: "zero", 1: "one", 2: "two"}
    assert Transcript(folder, "test", 5).done == {0: "zero", 1: "one", 2: "two"}, "any number may continue"
    assert sorted(path.name for path in folder.iterdir()) == ["test.part-0.jsonl", "test.part-1.jsonl"]


def test_splits_do_not_mix(folder):
    Transcript(folder, "test").add({0: "of test"})
    assert Transcript(folder, "unseen").done == {}
    assert Transcript(folder, "tes").done == {}


@pytest.mark.parametrize(
    "damage", [b"\xff\xfe not text\n", b"\0" * 40, b'{"a": 1}\n', b"7\n", b'["x", "y"]\n', b"[]\n"]
)
def test_a_damaged_file_is_translated_again(folder, damage):
    Transcript(folder, "test").add({0: "zero"})
    part = folder / "test.part-0.jsonl"
    part.write_bytes(damage + part.read_bytes())
    resumed = Transcript(folder, "test", 1)
    resumed.add({0: "again", 1: "one"})
    assert resumed.texts([0, 1]) == ["again", "one"]


@pytest.mark.parametrize(
    ("wrong", "right"), [("zero", "a hero"), ('[0, "', '[3, "'), ("]", ', "more"]'), ("zero", "z\\u00e9ro")]
)
def test_a_line_that_does_not_fit_its_checksum_is_decoded_again(folder, wrong, right):
    Transcript(folder, "test", weights="a run, step 4").add({0: "zero", 1: "one"})
    part = folder / "test.part-0.jsonl"
    part.write_text(part.read_text().replace(wrong, right, 1))
    assert Transcript(folder, "test", weights="a run, step 4").done == {1: "one"}


def test_the_texts_of_other_weights_and_of_older_versions_are_decoded_again(folder):
    Transcript(folder, "test", weights="a run, step 4").add({0: "zero"})
    part = folder / "test.part-0.jsonl"
    for weights, done in (("a run, step 4", {0: "zero"}), ("a run, step 8", {}), ("another, step 4", {})):
        assert Transcript(folder, "test", weights=weights).done == done
    part.rename(folder / "unseen.part-0.jsonl")
    assert Transcript(folder, "unseen", weights="a run, step 4").done == {}
    part.write_text(json.dumps([0, "zero"]) + "\n")  # as once without a checksum
    assert Transcript(folder, "test").done == {}


def test_a_full_disk_says_what_is_kept(folder, monkeypatch):
    transcript = Transcript(folder, "test")
    transcript.add({0: "zero"})

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"cannot write .*test\.part-0\.jsonl: No space left") as refused:
        transcript.add({1: "one"})
    assert "What was translated before is kept" in str(refused.value.hint)
    assert transcript.done == {0: "zero"}
