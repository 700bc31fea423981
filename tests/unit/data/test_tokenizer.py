from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_corpus import sentences
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.data import sentencepiece_tokenizer as room
from comt_cli.data.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece
from comt_cli.data.text import t5 as t5_room
from comt_cli.data.text.dataset import Dataset
from comt_cli.data.tokenizer import ByteTokenizer, Tokenizer
from comt_cli.data.tokenizers import load_tokenizer
from comt_cli.errors import UserError
from comt_cli.files import sha256

# U+2581 is SentencePiece's sign for a space; a lone surrogate has no UTF-8.
any_text = st.text(st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=60)


@pytest.fixture(scope="session")
def trained() -> SentencePieceTokenizer:
    return train_sentencepiece(sentences(300), 330)


@given(text=any_text)
def test_bytes_round_trip(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(2 <= i < tokenizer.vocabulary_size for i in ids)
    assert len(tokenizer.pieces(ids)) == len(ids)


@given(text=any_text)
def test_trained_pieces_spell_every_text(python_docs_pack: Dataset, text: str) -> None:
    """Byte fallback: nothing is unknown, and nothing is normalised away."""
    tokenizer = python_docs_pack.tokenizer
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert 2 not in ids
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode([*ids, tokenizer.eos_id, tokenizer.pad_id]) == text


def test_training_is_deterministic(trained: SentencePieceTokenizer) -> None:
    again = train_sentencepiece(iter(sentences(300)), 330)
    assert again.to_json() == trained.to_json()
    assert train_sentencepiece(sentences(301), 330).to_json() != trained.to_json()


def test_training_reads_up_to_its_limit(monkeypatch: pytest.MonkeyPatch, trained: SentencePieceTokenizer) -> None:
    texts = sentences(300)
    monkeypatch.setattr("comt_cli.data.sentencepiece_tokenizer.TRAINING_CHARACTERS", sum(map(len, texts)))
    assert train_sentencepiece([*texts, "never seen " * 50], 330).to_json() == trained.to_json()


def test_a_long_text_is_not_left_out() -> None:
    """By default SentencePiece skips in silence what is longer than 4192 bytes."""
    assert train_sentencepiece([" ".join(sentences(2000))], 330).vocabulary_size == 330  # one line
    assert "▁projection" in train_sentencepiece(["\n".join(sentences(2000))], 330).pieces(range(330))


_REPEATING = """
from fake_corpus import sentences
from comt_cli.data.sentencepiece_tokenizer import train_sentencepiece
passage = " ".join(sentences(100))
train_sentencepiece([*sentences(300), passage * (2_000_000 // len(passage))], 330)
"""


@pytest.mark.slow
def test_a_long_line_that_repeats_itself_takes_no_time() -> None:
    """Some seconds; where such a line is not cut, an hour."""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    subprocess.run([sys.executable, "-c", _REPEATING], env=environment, check=True, timeout=120)


def test_long_lines_alone_are_cut_at_spaces_if_there_are_any() -> None:
    longest = room._LONGEST_LINE
    texts = ["x" * longest + "\n\nshort line", "word " * longest, "y" * (longest + 1)]
    found = list(room._lines(texts, own=True))
    assert found[:2] == ["x" * longest, "short line"]
    assert found[-2:] == ["y" * longest, "y"]
    assert "".join(found[2:-2]) == texts[1]
    assert len(found) == 4 + 6
    assert all(len(each) <= longest and each.endswith(" ") for each in found[2:-2])
    assert list(room._lines(texts, own=False)) == ["x" * longest, "short line", *texts[1:]]  # of other corpora as ever


def test_what_a_corpus_raises_is_told_as_it_is() -> None:
    def broken() -> Iterator[str]:
        yield from sentences(300)
        raise UserError("the disk is gone")

    with pytest.raises(UserError, match="the disk is gone"):
        train_sentencepiece(broken(), 330)


def test_a_vocabulary_that_is_too_large_says_what_fits() -> None:
    with pytest.raises(UserError, match=r"set vocabulary to \d+ or less") as caught:
        train_sentencepiece(sentences(20), 5000)
    size = int(str(caught.value).split("set vocabulary to ")[1].split()[0])
    assert train_sentencepiece(sentences(20), size).vocabulary_size == size


@pytest.mark.parametrize("make", [ByteTokenizer, lambda: train_sentencepiece(sentences(300), 330)])
def test_a_saved_tokenizer_is_the_same(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    tokenizer, path = make(), tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = load_tokenizer(path)
    assert loaded.to_json() == tokenizer.to_json()
    text = "the gate — reads\nthe token"
    assert loaded.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "not a tokenizer"),
        ('{"format": 99, "kind": "bytes"}', "not a tokenizer of format 1"),
        ('{"format": 1, "kind": "magic"}', "unknown kind 'magic'"),
        ('{"format": 1, "kind": "sentencepiece", "model": "?"}', "not base64"),
        ('{"format": 1, "kind": "sentencepiece", "model": "AAAA", "sha256": "0"}', "hash differs"),
    ],
)
def test_a_damaged_file_is_named(content: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UserError, match=reason) as caught:
        load_tokenizer(path)
    assert str(path) in str(caught.value)


class TestT5:
    """The real file cannot be had here: another model stands in for it, under its own hash."""

    @pytest.fixture
    def stand_in(self, trained: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch) -> bytes:
        model = base64.b64decode(trained.to_json()["model"])
        monkeypatch.setattr(t5_room, "T5_SHA256", sha256(model))
        return model

    def test_from_a_local_file(
        self, stand_in: bytes, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "spiece.model"
        path.write_bytes(stand_in)
        monkeypatch.setenv("COMT_T5_SPM", str(path))
        assert t5_room.t5_tokenizer().vocabulary_size == 330

    def test_fetched_once_then_from_the_cache(
        self, stand_in: bytes, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "download"
        path.write_bytes(stand_in)
        fetched: list[tuple[str, str, str]] = []

        def download(repository: str, name: str, revision: str) -> str:
            fetched.append((repository, name, revision))
            return str(path)

        monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
        assert t5_room.t5_tokenizer().vocabulary_size == 330
        assert t5_room.t5_tokenizer().vocabulary_size == 330
        assert fetched == [("google-t5/t5-base", "spiece.model", t5_room.T5_REVISION)]

    def test_another_file_is_refused(
        self, stand_in: bytes, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "spiece.model"
        path.write_bytes(stand_in + b"x")
        monkeypatch.setenv("COMT_T5_SPM", str(path))
        with pytest.raises(UserError, match="is not the T5 vocabulary"):
            t5_room.t5_tokenizer()
        monkeypatch.delenv("COMT_T5_SPM")
        monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *names, revision: str(path))
        with pytest.raises(UserError, match="the download of google-t5/t5-base"):
            t5_room.t5_tokenizer()
        assert not t5_room.t5_path().exists()
