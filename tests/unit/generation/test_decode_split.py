"""A split that is decoded once: by any number of processes, killed at any moment, with the same bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from threading import Barrier, Thread

import pytest
import torch
from toy_decoder import ToyDecoder
from toy_translation import TOKENIZER

from comt_cli.errors import StorageError
from comt_cli.generation.decode_split import decode_split
from comt_cli.generation.part_file import PartFile
from comt_cli.generation.translate import Options, Translator
from comt_cli.tasks.settings.decoding import DecodeSettings

TEXTS = [f"text {'with words ' * (number * 5 % 7)}{number}" for number in range(30)] + [""]
OPTIONS = Options(DecodeSettings(max_extra=4), batch_tokens=200)


def new_translator() -> Translator:
    model = ToyDecoder(TOKENIZER.vocabulary_size, end_bias=4.0, sharpness=2.0)
    return Translator(model, TOKENIZER, torch.device("cpu"))


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return [best.text for best, *_ in new_translator().translate(TEXTS, OPTIONS)]


class Killed(BaseException):
    """As a signal would, but that the test goes on."""


class Dying(Translator):
    """Is killed at its `left`-th batch."""

    def __init__(self, left: int) -> None:
        other = new_translator()
        super().__init__(other.model, other.tokenizer, other.device)
        self.left = left

    def search(self, sources, options):
        self.left -= 1
        if self.left < 0:
            raise Killed
        return super().search(sources, options)


def test_the_order_is_that_of_the_texts(tmp_path, expected):
    path = tmp_path / "hypotheses-test-100.txt"
    assert decode_split(new_translator(), TEXTS, OPTIONS, path) == expected
    assert path.read_text() == "".join(f"{line}\n" for line in expected)
    assert list(tmp_path.iterdir()) == [path]
    assert decode_split(Dying(0), TEXTS, OPTIONS, path) == expected  # a finished one is not done twice


def test_a_killed_call_is_continued(tmp_path, expected):
    path, calls = tmp_path / "hypotheses.txt", 0
    while not path.exists():
        calls += 1
        try:
            decode_split(Dying(2), TEXTS, OPTIONS, path)
        except Killed:
            assert not path.exists()
    assert calls > 3
    assert path.read_text() == "".join(f"{line}\n" for line in expected)


@pytest.mark.parametrize("left", ["{", "[]", '{"key": "another", "hypotheses": ["a"]}'])
def test_what_was_left_of_something_else_is_not_used(tmp_path, expected, left):
    path = tmp_path / "hypotheses.txt"
    with pytest.raises(Killed):
        decode_split(Dying(2), TEXTS, OPTIONS, path, weights="step 3")
    parts = sorted((tmp_path / ".hypotheses.txt.parts").iterdir())
    assert len(parts) == 2
    before = json.loads(parts[0].read_text())
    parts[1].write_text(left)
    with pytest.raises(Killed):
        decode_split(Dying(0), TEXTS, OPTIONS, path, weights="step 4")
    done = Dying(100)
    assert decode_split(done, TEXTS, OPTIONS, path, weights="step 3") == expected
    assert before["hypotheses"][0] in expected
    path.write_text("cut sho")
    assert decode_split(new_translator(), TEXTS, OPTIONS, path) == expected


@dataclass
class Threaded:
    """Threads for processes."""

    rank: int
    size: int
    meeting: Barrier
    box: list

    def barrier(self):
        self.meeting.wait()

    def broadcast(self, value):
        if self.rank == 0:
            self.box[0] = value
        self.meeting.wait()
        told = self.box[0]
        self.meeting.wait()
        return told


@pytest.mark.parametrize("size", [2, 3])
def test_processes_share_the_batches(tmp_path, expected, size):
    path, found, box, meeting = tmp_path / "hypotheses.txt", {}, [None], Barrier(size, timeout=60)
    with pytest.raises(Killed):
        decode_split(Dying(2), TEXTS, OPTIONS, path)  # alone, at first
    translators = [new_translator() for _ in range(size)]

    def work(rank: int) -> None:
        processes = Threaded(rank, size, meeting, box)
        found[rank] = decode_split(translators[rank], TEXTS, OPTIONS, path, processes=processes)

    threads = [Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[rank] for rank in range(size)] == [expected] * size
    assert path.read_text() == "".join(f"{line}\n" for line in expected)
    steps = [each.model.steps for each in translators]
    assert all(step > 0 for step in steps)


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot make"):
        decode_split(new_translator(), TEXTS, OPTIONS, tmp_path / "file" / "hypotheses.txt")


def test_a_part_is_continued_at_whole_pieces_of_its_own(tmp_path):
    path = tmp_path / "out"
    one = PartFile(path, "key")
    assert one.resume(2) == 0
    one.add(["a", "b"])
    one.add(["c", "d"])
    with one.part.open("a") as handle:
        handle.write("e\nf, which is cut sho")
    two = PartFile(path, "key")
    assert two.resume(2) == 4
    assert one.part.read_text() == "key\na\nb\nc\nd\n"
    two.add(["e"])
    two.finish()
    assert path.read_text() == "a\nb\nc\nd\ne\n"
    assert list(tmp_path.iterdir()) == [path]
    one.resume(1)
    one.add(["x"])
    assert PartFile(path, "another").resume(1) == 0
    assert one.part.read_text() == "another\n"
    assert path.read_text() == "a\nb\nc\nd\ne\n"
