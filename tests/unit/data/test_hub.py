"""The hub's corpora, offline: with injected files, with local files read by `datasets`, and without network."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_corpus import prepared, sentences

from comt_cli.data.hub import RowFiles
from comt_cli.data.prepare import prepare
from comt_cli.data.text.corpora import hub_text
from comt_cli.data.text.corpora.hub_text import FILE_ORDER_SEED, HubSource, HubText, OpenWebText
from comt_cli.data.text.corpus import train_texts
from comt_cli.data.text.settings import DataSettings
from comt_cli.errors import StorageError, UserError


class FakeFiles:
    """Some files of texts, of which it is known which were opened; the network may break at one of them."""

    def __init__(self, name: str, files: int, each: int, breaks_at: int | None = None) -> None:
        self.name, self.files, self.each, self.breaks_at = name, files, each, breaks_at
        self.opened: list[int] = []

    def __len__(self) -> int:
        return self.files

    def rows(self, file: int) -> Iterator[dict[str, str]]:
        self.opened.append(file)
        if len(self.opened) - 1 == self.breaks_at:
            raise TimeoutError("the hub does not answer\nand here are forty more lines")
        for number, sentence in enumerate(sentences(self.each)):
            yield {"text": f"{self.name} {file}.{number}: {sentence}"}


def fake_hub(name: str, **files: FakeFiles) -> HubText:
    def open_source(source: HubSource) -> RowFiles:
        return files[str(source.split)]

    return {"c4": hub_text.C4, "openwebtext": OpenWebText}[name](open_source)


C4 = DataSettings(corpus="c4", tokenizer="bytes", rows="pad", sequence_length=64, max_train_tokens=20_000)


def seeded_order(count: int) -> list[int]:
    order = list(range(count))
    random.Random(FILE_ORDER_SEED).shuffle(order)
    return order


def test_c4_has_its_own_split_and_stops_at_the_limits(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubText, "validation_tokens", 3000)
    train, validation = FakeFiles("t", 50, 40), FakeFiles("v", 8, 40)
    dataset = prepared(C4, fake_hub("c4", train=train, validation=validation))
    assert dataset.train.tokens == 20_000
    assert dataset.validation.tokens == 3000
    first = dataset.tokenizer.decode(dataset.train.batch([0]).tokens[0].tolist())
    order = seeded_order(50)
    assert first.startswith(f"t {order[0]}.0: ")
    assert dataset.tokenizer.decode(dataset.validation.batch([0]).tokens[0].tolist()).startswith("v ")
    assert train.opened == order[: len(train.opened)]
    assert len(train.opened) < 20  # only what was needed


def test_a_tokenizer_for_c4_is_trained_on_its_train_files() -> None:
    validation = FakeFiles("v", 8, 40)
    texts = train_texts(fake_hub("c4", train=FakeFiles("t", 3, 5), validation=validation), 0.5)
    assert all(text.startswith("t ") for text in texts)
    assert not validation.opened


def test_a_broken_connection_keeps_what_was_prepared_and_goes_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubText, "validation_tokens", 500)
    undisturbed = prepared(C4, fake_hub("c4", train=FakeFiles("t", 50, 40), validation=FakeFiles("v", 8, 40)))

    monkeypatch.setenv("COMT_CACHE", str(cache.with_name("second")))
    monkeypatch.setattr("comt_cli.data.text.tokenise._CHUNK_DOCUMENTS", 16)
    broken = fake_hub("c4", train=FakeFiles("t", 50, 40, breaks_at=6), validation=FakeFiles("v", 8, 40))
    with pytest.raises(UserError, match=r"the hub does not answer\n  c4 needs") as caught:
        prepared(C4, broken, part_bytes=4000)
    assert "what was prepared so far is kept" in str(caught.value.hint)
    assert "python-docs" in str(caught.value.hint)
    train = FakeFiles("t", 50, 40)
    dataset = prepared(C4, fake_hub("c4", train=train, validation=FakeFiles("v", 8, 40)), part_bytes=4000)
    assert train.opened[0] in seeded_order(50)[3:7]  # earlier files are not fetched again
    rows = range(len(dataset.train))
    assert dataset.train.batch([*rows]).tokens.tolist() == undisturbed.train.batch([*rows]).tokens.tolist()


def test_without_network_the_error_says_what_works(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    for corpus in ("c4", "openwebtext"):
        data = DataSettings(corpus=corpus, tokenizer="bytes", max_train_tokens=1000)
        with pytest.raises(UserError, match=rf"cannot read {corpus} from .*: Name or service not known") as caught:
            prepare(data)
        assert "files:GLOB" in str(caught.value.hint)


def test_a_disk_that_cannot_hold_the_corpus_is_refused_at_once(cache: Path) -> None:
    data = C4.model_copy(update={"max_train_tokens": 10**16})
    train = FakeFiles("t", 5, 5)
    with pytest.raises(StorageError, match=r"need 20000000\.0 GB"):
        prepared(data, fake_hub("c4", train=train, validation=FakeFiles("v", 1, 5)))
    assert not train.opened
