"""Preparation: whole, once, resumable, exclusive - and what it is identified by."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from fake_corpus import FakeCorpus, prepared, sentences

from comt_cli.data.text.settings import DataSettings, Kind, split_of
from comt_cli.errors import StorageError, UserError

BYTES = DataSettings(tokenizer="bytes", sequence_length=32, validation_fraction=0.2)
PART = 2000
"""Bytes of a shard here: the corpora below fill a dozen."""


def shards(folder):
    """The prepared files, without what differs from run to run."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".tokens", ".offsets")}


def test_every_document_is_on_its_side_and_on_one_only(cache):
    texts = [*sentences(200), "x" * 350, *sentences(50)]  # the last 50 come twice; one is larger than the rest
    data = BYTES.model_copy(update={"rows": "pad", "sequence_length": 400})
    dataset = prepared(data, FakeCorpus([texts]), part_bytes=600)
    for side, rows in (("train", dataset.train), ("validation", dataset.validation)):
        expected = [text for text in texts if split_of(text, 0.2) == side]
        assert [dataset.tokenizer.decode(row) for row in rows.batch(np.arange(len(rows))).tokens] == expected
        assert (rows.documents, rows.bytes) == (len(expected), sum(len(text.encode()) for text in expected))
        assert rows.tokens == rows.bytes + len(expected)  # an end-of-text token each
    assert len(list(dataset.folder.glob("train-*.tokens"))) > 3


@pytest.mark.parametrize("rows", ["pack", "pad"])
def test_the_limit_of_train_tokens_is_met_and_leaves_validation_alone(cache, rows):
    data = BYTES.model_copy(update={"rows": rows})
    corpus = FakeCorpus([sentences(300)])
    full = prepared(data, corpus)
    limited = prepared(data.model_copy(update={"max_train_tokens": 1501}), corpus, part_bytes=PART)
    assert limited.train.tokens == 1501
    assert limited.validation.tokens == full.validation.tokens
    count = 1501 // 32 - 1
    some = np.arange(count if rows == "pack" else 10)
    assert limited.train.batch(some).tokens.tolist() == full.train.batch(some).tokens.tolist()


@pytest.mark.parametrize("fail_at", [(0, 120), (1, 99)])
@pytest.mark.parametrize("rows", ["pack", "pad"])
def test_going_on_after_a_failure_gives_the_same_files(tmp_path, monkeypatch, fail_at, rows):
    data = BYTES.model_copy(update={"rows": rows})
    files = [sentences(150), sentences(100, seed=5)]
    monkeypatch.setattr("comt_cli.data.text.dataset._CHUNK_DOCUMENTS", 7)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "undisturbed"))
    undisturbed = prepared(data, FakeCorpus(files), part_bytes=PART)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "failing"))
    with pytest.raises(RuntimeError, match="the power went out"):
        prepared(data, FakeCorpus(files, fail_at=fail_at), part_bytes=PART)
    corpus = FakeCorpus(files)
    resumed = prepared(data, corpus, part_bytes=PART)
    assert shards(resumed.folder) == shards(undisturbed.folder)
    assert resumed.content_hash == undisturbed.content_hash
    if fail_at == (1, 99):
        assert corpus.read[0] > (0, 100)  # it did not start again
    assert {path.suffix for path in resumed.folder.iterdir()} == {".json", ".tokens", ".offsets"}
    assert not list(resumed.folder.glob("part-*"))


def test_a_part_damaged_while_preparation_rested_is_made_anew(cache):
    files = [sentences(150)]
    with pytest.raises(RuntimeError):
        prepared(BYTES, FakeCorpus(files, fail_at=(0, 140)), part_bytes=PART)
    folder = next(path for path in (cache / "corpora").iterdir() if path.is_dir())
    (folder / "train-00001.tokens").write_bytes(b"zzzz")
    (folder / "stray.tmp").write_text("of a killed process")
    dataset = prepared(BYTES, FakeCorpus(files), part_bytes=PART)
    expected = [i for text in files[0] if split_of(text, 0.2) == "train" for i in (*(2 + b for b in text.encode()), 1)]
    tokens = dataset.train.batch(np.arange(len(dataset.train))).tokens.ravel().tolist()
    assert tokens == expected[: len(expected) // 32 * 32]
    assert not (folder / "stray.tmp").exists()


SLOW_PREPARATION = textwrap.dedent(
    """
    import sys, time
    sys.path.insert(0, sys.argv[1])
    from fake_corpus import FakeCorpus, prepared, sentences
    from comt_cli.data.text import dataset
    from comt_cli.data.text.settings import DataSettings

    class SlowCorpus(FakeCorpus):
        def documents(self, start=(0, 0)):
            for document in super().documents(start):
                time.sleep(float(sys.argv[2]))
                yield document

    dataset._CHUNK_DOCUMENTS = 4
    data = DataSettings(tokenizer="bytes", sequence_length=32, validation_fraction=0.2)
    prepared(data, SlowCorpus([sentences(300)]), print, part_bytes=2000)
    assert "torch" not in sys.modules
    """
)


def slow_preparation(folder, pause=0.002):
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_PREPARATION, str(Path(__file__).parent), str(pause)],
        env={**os.environ, "COMT_CACHE": str(folder)},
        stdout=subprocess.DEVNULL,
    )


def test_a_killed_preparation_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "undisturbed"))
    files = [sentences(300)]
    undisturbed = prepared(BYTES, FakeCorpus(files), part_bytes=PART)
    folder = tmp_path / "killed" / "corpora" / undisturbed.fingerprint
    process = slow_preparation(tmp_path / "killed")
    deadline = time.monotonic() + 30
    while not (folder / "part-00002.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "manifest.json").exists()

    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "killed"))
    corpus = FakeCorpus(files)
    resumed = prepared(BYTES, corpus, part_bytes=PART)
    assert corpus.read[0] > (0, 20)
    assert shards(resumed.folder) == shards(undisturbed.folder)


def test_a_full_disk_is_a_storage_error_and_loses_nothing(cache):
    files = [[*sentences(60), *(text * 40 for text in sentences(20, seed=9))]]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (6000, limits[1])
    )  # a file cannot grow beyond: EFBIG stands in for ENOSPC
    try:
        with pytest.raises(StorageError, match=r"cannot write .*train-0000\d\.tokens"):
            prepared(BYTES, FakeCorpus(files), part_bytes=PART)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    corpus = FakeCorpus(files)
    prepared(BYTES, corpus, part_bytes=PART)
    assert corpus.read[0] > (0, 0)


def test_one_sided_and_tiny_corpora_are_refused(cache):
    with pytest.raises(UserError, match="no document of python-docs is in the validation split"):
        prepared(BYTES, FakeCorpus([[text for text in sentences(50) if split_of(text, 0.2) == "train"]]))
    with pytest.raises(
        UserError, match=r"the validation split of python-docs has \d+ tokens, less than one row of 4000"
    ):
        prepared(BYTES.model_copy(update={"sequence_length": 4000}), FakeCorpus([sentences(100)]))


def test_everything_that_changes_rows_changes_the_fingerprint(cache):
    base = DataSettings(vocabulary=300, sequence_length=32)
    changes = [
        {"tokenizer": "bytes", "vocabulary": None},
        {"tokenizer": "t5", "vocabulary": None},
        {"vocabulary": 301},
        {"rows": "pad"},
        {"sequence_length": 33},
        {"validation_fraction": 0.06},
        {"max_train_tokens": 1000},
    ]
    corpus = FakeCorpus([sentences(10)])
    names = [Kind(base.model_copy(update=change), corpus).fingerprint() for change in [{}, *changes]]
    names.append(Kind(base, FakeCorpus([sentences(11)])).fingerprint())
    assert len(set(names)) == len(names)
    changed = {field for change in changes for field in change}
    assert changed | {"corpus", "folder"} == set(DataSettings.model_fields), "where files lie does not count"
