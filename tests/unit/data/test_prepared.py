"""What every kind of prepared data has in common: made once, whole or not at all, damage told, identified by all that
decides it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from kinds import KINDS, fingerprint, known_content, settings_of

from comt_cli.data import prepare as prepared
from comt_cli.data import storage
from comt_cli.data.prepare import kind_of, prepare
from comt_cli.errors import StorageError, UserError

RECORDS = {"manifest.json"}


@pytest.fixture(params=KINDS)
def data(request, cache, tmp_path):
    return settings_of(request.param, tmp_path / "texts")


def module_of(data):
    """The module that writes and opens data of this kind."""
    return kind_of(data).dataset_module


def folder_of(data):
    folder: Path = kind_of(data).folder(fingerprint(data))
    return folder


def files(folder):
    """The prepared files, without what differs from machine to machine."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in RECORDS}


def test_it_is_made_once_and_the_same_anywhere(data, tmp_path, monkeypatch):
    assert known_content(data, fingerprint(data)) is None
    first = prepare(data)
    folder, name = folder_of(data), fingerprint(data)
    assert known_content(data, name) == first.content_hash
    assert folder.name == name
    manifest = json.loads((folder / "manifest.json").read_text())["manifest"]
    assert manifest["fingerprint"] == name
    assert {"comt", "numpy"} <= manifest["versions"].keys()
    monkeypatch.setattr(module_of(data), "write", None)  # nothing is made again
    assert prepare(data).content_hash == first.content_hash
    monkeypatch.undo()
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "elsewhere"))
    assert prepare(data).content_hash == first.content_hash
    assert files(folder_of(data)) == files(folder)


def test_what_was_killed_is_not_mistaken(data, monkeypatch):
    """Killed before the manifest was written, in the middle of some file."""
    kind, write = type(kind_of(data)), prepared.Manifest.write

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepared.Manifest, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(data)
    monkeypatch.setattr(prepared.Manifest, "write", write)
    folder = folder_of(data)
    (folder / ".half.json.1-2.tmp").write_bytes(b"half")
    (folder / "stray").write_bytes(b"of a part that was cut off")
    assert known_content(data, fingerprint(data)) is None
    resumed = prepare(data)
    names = {file.name for file in kind.manifest.read(folder, folder.name).all_files()}
    assert {path.name for path in folder.iterdir()} == names | RECORDS
    whole = files(folder)
    shutil.rmtree(folder)
    assert prepare(data).content_hash == resumed.content_hash
    assert files(folder) == whole


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-2])


DAMAGES = (flip, cut, lambda path: path.write_bytes(b""), Path.unlink)


def test_damage_is_named_and_the_advice_works(data):
    first = prepare(data)
    folder = folder_of(data)
    cases = [(name, DAMAGES[number % 4]) for number, name in enumerate(sorted(files(folder)))]
    for name, damage in [*cases, ("manifest.json", flip), ("manifest.json", cut)]:
        whole = (folder / name).read_bytes()
        damage(folder / name)
        with pytest.raises(UserError, match="prepared data is damaged") as caught:
            prepare(data)
        assert str(folder / name) in caught.value.message
        assert f"Delete the folder {folder}" in str(caught.value.hint)
        (folder / name).write_bytes(whole)
    shutil.rmtree(folder)
    assert prepare(data).content_hash == first.content_hash


def test_a_manifest_of_other_data_or_edited_by_hand_is_recognised(data):
    prepare(data)
    path = folder_of(data) / "manifest.json"
    stored = json.loads(path.read_text())
    edited = stored | {"manifest": stored["manifest"] | {"versions": {}}}
    path.write_text(json.dumps(edited))
    with pytest.raises(UserError, match="the hash differs"):
        prepare(data)
    path.write_text(json.dumps(stored))
    folder = path.parent.rename(path.parent.with_name("0" * 16))
    with pytest.raises(UserError, match="it belongs to other data"):
        type(kind_of(data)).manifest.read(folder, "0" * 16)


def test_of_two_at_once_one_works(data, monkeypatch):
    module, written = module_of(data), []
    write = module.write
    monkeypatch.setattr(module, "write", lambda *arguments: written.append(1) or write(*arguments))
    workers = [threading.Thread(target=prepare, args=(data,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert written == [1]
    assert known_content(data, fingerprint(data)) is not None


def test_data_whose_source_changes_while_it_is_made_is_not_kept(data, monkeypatch):
    kind, module, folder = type(kind_of(data)), module_of(data), folder_of(data)
    identity, write, changed = kind.identity, module.write, []
    monkeypatch.setattr(module, "write", lambda *arguments: changed.append("changed") or write(*arguments))
    monkeypatch.setattr(kind, "identity", lambda *arguments: identity(*arguments) | dict.fromkeys(changed))
    with pytest.raises(UserError, match="was changed while it was being read"):
        prepare(data)
    assert not folder.exists()


CHANGES = {
    "text": [
        {"tokenizer": "t5"}, {"tokenizer": "sentencepiece", "vocabulary": 300}, {"rows": "pad"},
        {"sequence_length": 33}, {"validation_fraction": 0.06}, {"max_train_tokens": 1000},
    ],
    "pairs": [
        {"difficulty": "full"}, {"pairs": 2001}, {"test_pairs": 81}, {"target": "fr"}, {"max_length": 127},
        {"tokenizer": "sentencepiece", "vocabulary_size": 900}, {"tokenizer": "sentencepiece", "vocabulary_size": 901},
        {"batch_tokens": 1025}, {"source": "vi", "target": "en"},
    ],
    "captions": [
        {"images": 31}, {"difficulty": "easy"}, {"validation_images": 7}, {"test_images": 8}, {"max_length": 9},
    ],
    "glue": [
        {"task": "scene-similarity"}, {"sequence_length": 100}, {"validation_fraction": 0.2}, {"held_out": 0.2},
        {"train_examples": None}, {"tokenizer": "sentencepiece", "vocabulary": 300},
    ],
    "images": [{"size": 17}, {"images": "glyphs100"}, {"train_images": 51}, {"validation_images": None}],
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_everything_that_changes_the_data_changes_the_fingerprint(kind, cache, tmp_path):
    data = settings_of(kind, tmp_path / "texts")
    given = data.model_dump() | ({"vocabulary_size": None} if kind == "pairs" else {})
    made = [type(data)(**given | change) for change in CHANGES[kind]]
    assert len({fingerprint(each) for each in (data, *made)}) == 1 + len(made)


MADE_BY = {
    "images": "comt_cli.data.images.sets.glyphs.font_hash",
    "captions": "comt_cli.data.captions.corpora.scenes.font_hash",
    "pairs": "babel.core.get_cldr_version",
}


@pytest.mark.parametrize("kind", MADE_BY)
def test_what_draws_the_data_is_part_of_the_fingerprint(kind, cache, tmp_path, monkeypatch):
    data = settings_of(kind, tmp_path)
    before = fingerprint(data)
    monkeypatch.setattr(MADE_BY[kind], lambda *_: "another edition")
    assert fingerprint(data) != before


def test_a_plan_needs_neither_numpy_nor_torch(tmp_path):
    """Of the kinds that measure no fonts."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import pathlib, kinds;"
        "from kinds import fingerprint, known_content;"
        "given = [kinds.settings_of(kind, pathlib.Path(sys.argv[2])) for kind in ('text', 'pairs', 'glue')];"
        "[known_content(data, fingerprint(data)) for data in given];"
        "assert not {'numpy', 'torch', 'datasets', 'sentencepiece'} & sys.modules.keys()"
    )
    environment = {**os.environ, "COMT_CACHE": str(tmp_path / "cache")}
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path / "texts")]
    subprocess.run(arguments, check=True, env=environment)


def test_contents_are_read_once_and_again_when_a_file_was_touched(cache, tmp_path, monkeypatch):
    data = settings_of("text", tmp_path / "texts")
    later = time.time_ns() + 10**12
    monkeypatch.setattr("time.time_ns", lambda: later)  # when files are remembered
    prepare(data)
    read, hash_file = [], storage.hash_file
    monkeypatch.setattr(storage, "hash_file", lambda path: read.append(path) or hash_file(path))
    prepare(data)
    assert read == []
    touched = next(path for path in folder_of(data).iterdir() if path.name not in RECORDS)
    os.utime(touched, ns=(2, 2))
    monkeypatch.setattr("comt_cli.files.write_json", Mock(side_effect=StorageError("read-only file system")))
    for _ in range(2):  # a cache that may only be read is used, and checked every time
        prepare(data)
    assert read == [touched] * 2
