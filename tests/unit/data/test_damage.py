"""Damaged and foreign files in a prepared folder: found, named, with what to do; and opening stays quick."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_corpus import FakeCorpus, sentences

from comt_cli.data import manifest
from comt_cli.data.dataset import Dataset
from comt_cli.data.prepare import prepare_corpus
from comt_cli.data.settings import DataSettings
from comt_cli.errors import StorageError, UserError

DATA = DataSettings(tokenizer="bytes", rows="pad", sequence_length=64, validation_fraction=0.2)


@pytest.fixture
def dataset(cache: Path) -> Dataset:
    return prepare_corpus(DATA, FakeCorpus([sentences(100)]))


def open_again(count: int = 100) -> Dataset:
    return prepare_corpus(DATA, FakeCorpus([sentences(count)]))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


FILES = [
    "manifest.json",
    "tokenizer.json",
    "train-00000.tokens",
    "train-00000.offsets",
    "validation-00000.tokens",
    "validation-00000.offsets",
]


# A folder without its manifest is not damaged but unfinished: see the next test.
CASES = [(name, damage) for name in FILES for damage in (flip, cut, empty, Path.unlink)]
CASES.remove(("manifest.json", Path.unlink))


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_damage_is_named(dataset: Dataset, name: str, damage: Callable[[Path], None]) -> None:
    damage(dataset.folder / name)
    with pytest.raises(UserError, match="prepared data is damaged") as caught:
        open_again()
    assert str(dataset.folder / name) in caught.value.message
    assert f"Delete the folder {dataset.folder}" in str(caught.value.hint)
    shutil.rmtree(dataset.folder)
    assert open_again().content_hash == dataset.content_hash  # the advice works


def test_a_lost_manifest_is_written_again(dataset: Dataset) -> None:
    (dataset.folder / "manifest.json").unlink()
    assert open_again().content_hash == dataset.content_hash


def test_a_foreign_folder_is_recognised(dataset: Dataset) -> None:
    other = open_again(101)
    shutil.rmtree(other.folder)
    shutil.copytree(dataset.folder, other.folder)
    with pytest.raises(UserError, match="it belongs to other data"):
        open_again(101)


def test_a_foreign_shard_is_recognised(dataset: Dataset) -> None:
    other = open_again(101)
    shutil.copy(other.folder / "train-00000.tokens", dataset.folder / "train-00000.tokens")
    with pytest.raises(UserError, match=r"train-00000\.tokens"):
        open_again()


def test_a_manifest_edited_by_hand_is_recognised(dataset: Dataset) -> None:
    path = dataset.folder / "manifest.json"
    stored = json.loads(path.read_text())
    stored["manifest"]["vocabulary_size"] = 300
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match="not what was written"):
        open_again()


class TestStamp:
    @pytest.fixture
    def hashed(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The names of the files whose content is read to check it."""
        names: list[str] = []
        original = manifest.hash_file

        def hash_file(path: Path) -> str:
            names.append(path.name)
            return original(path)

        monkeypatch.setattr(manifest, "hash_file", hash_file)
        return names

    def test_contents_are_read_once_per_machine(
        self, dataset: Dataset, hashed: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        open_again()
        assert hashed == []
        monkeypatch.setattr("platform.node", lambda: "another machine")
        open_again()
        assert sorted(hashed) == sorted(FILES[1:])
        open_again()
        assert len(hashed) == len(FILES) - 1

    def test_contents_are_read_again_when_a_file_was_touched(self, dataset: Dataset, hashed: list[str]) -> None:
        os.utime(dataset.folder / "train-00000.tokens", ns=(1, 1))
        open_again()
        assert "train-00000.tokens" in hashed

    @pytest.mark.parametrize("content", ["", "[]", '{"machine": 1}'])
    def test_a_damaged_stamp_only_costs_time(self, dataset: Dataset, hashed: list[str], content: str) -> None:
        (dataset.folder / "verified.json").write_text(content)
        open_again()
        assert hashed

    def test_a_cache_that_may_only_be_read_is_used(
        self, dataset: Dataset, hashed: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def write_json(path: Path, value: object) -> None:
            raise StorageError(f"cannot write {path}: Read-only file system")

        monkeypatch.setattr(manifest, "write_json", write_json)
        (dataset.folder / "verified.json").unlink()
        open_again()
        open_again()
        assert len(hashed) == 2 * (len(FILES) - 1)
