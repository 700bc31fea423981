"""How few documents are divided: in blocks of each, by their content alone; and that more documents never are."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kinds import FakeCorpus, sentences

from comt_cli.data.prepare import kind_of, prepare
from comt_cli.data.text import splits
from comt_cli.data.text.settings import SHARED, DataSettings, split_of
from comt_cli.data.text.splits import FEW, source_of, split_in, streams_of, train_texts
from comt_cli.errors import UserError


class OwnCorpus(FakeCorpus):
    is_own_text = True


def on_one_side(count, share=0.05):
    """Texts that hashes put into training."""
    return [text for text in sentences(2 * count) if split_of(text, share) == "train"][:count]


def prose(characters, seed=0):
    """Lines of words, all different."""
    generator = random.Random(seed)
    words = (
        str(generator.getrandbits(30)) + (" " if generator.random() < 0.9 else "\n") for _ in range(characters // 9)
    )
    return "".join(words)[:characters]


def divided(corpus, share=None):
    """The texts of training and of validation, in order; None if documents are whole."""
    (stream,) = streams_of(corpus, share)
    if not stream.in_blocks:
        return None
    found = {"train": [], "validation": []}
    for document in stream.documents((0, 0)):
        found[split_in(stream, document, share)].append(document.text)
    return found["train"], found["validation"]


@pytest.mark.parametrize(("lengths", "share"), [([1_000_000], None), ([2000] * 10, 0.2), ([9000, 300, 50_000], 0.3)])
def test_each_document_is_in_blocks_and_nothing_is_lost(lengths, share):
    texts = [prose(length, seed) for seed, length in enumerate(lengths)]
    texts = [text for text in texts if split_of(text, share or 0.05) == "train"]
    corpus = OwnCorpus([[text] for text in texts])
    train, validation = divided(corpus, share)
    (stream,) = streams_of(corpus, share)
    pieces = list(stream.documents((0, 0)))
    assert "".join(piece.text for piece in pieces) == "".join(texts)
    assert {piece.split for piece in pieces} == {"train", "validation"}
    total, held = sum(map(len, texts)), sum(map(len, validation))
    largest = 1.5 * max(1000, total / 200)
    assert (share or 0.05) * total <= held < (share or 0.05) * total + largest
    assert list(train_texts(corpus, share)) == train
    for number in range(len(pieces) + 1):  # from any piece on
        assert list(stream.documents((0, number))) == pieces[number:]


def test_only_the_content_decides():
    texts = on_one_side(10)
    texts = [text * 300 for text in texts]
    assert {split_of(text, 0.05) for text in texts} == {"train"}, "repeated, they might be held out whole"
    some, others = (divided(OwnCorpus(files)) for files in ([[text] for text in texts], [texts[::-1]]))
    assert sorted(some[1]) == sorted(others[1])


@example([250, 1250], "\n", 1000)
@given(st.lists(st.integers(0, 900), max_size=20), st.sampled_from("\n "), st.integers(8, 300))
def test_blocks_have_one_to_seven_quarters_of_their_size(words, mark, size):
    text = mark.join("x" * length for length in words)
    blocks = list(splits._blocks(text, size))
    assert "".join(blocks) == text
    if len(blocks) == 1:
        assert len(text) <= 1.5 * size
    else:
        assert all(size / 4 - 1 <= len(block) <= 7 * size / 4 + 1 for block in blocks)  # ends are rounded


def test_blocks_end_at_lines_or_spaces():
    text = prose(30_000)
    blocks = list(splits._blocks(text, 1000))
    assert "".join(blocks) == text
    assert all(block[-1] in " \n" for block in blocks[:-1])
    assert sum(block[-1] == "\n" for block in blocks) > 0.8 * len(blocks)
    assert all(400 < len(block) < 1600 for block in blocks)
    assert [len(block) for block in splits._blocks("x" * 3000, 1000)] == [1000] * 3
    assert list(splits._blocks("short", 1000)) == ["short"]


@pytest.mark.parametrize("files", [sentences(60), on_one_side(FEW)])
def test_documents_stay_whole(files):
    """Where both splits have one, and where there are many."""
    assert divided(OwnCorpus([files])) is None
    assert source_of(OwnCorpus([files]), None) == {}


def test_corpora_that_are_not_the_users_stay_whole():
    assert divided(FakeCorpus([on_one_side(10)])) is None
    assert divided(OwnCorpus([on_one_side(FEW - 1)])) is not None


def test_equal_blocks_are_in_one_split():
    block = "".join(f"{number:099d}\n" for number in range(10))
    corpus = OwnCorpus([[block * 7 + prose(3000)]])
    train, validation = divided(corpus)
    assert not (block in "".join(train) and block in "".join(validation))


@pytest.fixture
def one_file(tmp_path, cache):
    (tmp_path / "book.txt").write_text(prose(40_000))
    return DataSettings(corpus=f"files:{tmp_path}/book.txt", tokenizer="bytes", sequence_length=64)


def test_a_single_file_is_enough_and_the_data_says_so(one_file, monkeypatch, cache):
    data = prepare(one_file)
    assert data.facts == {"data_note": SHARED}
    assert len(data.validation) > 20
    assert len(data.train) > 500
    monkeypatch.setenv("COMT_CACHE", str(cache / "second"))
    assert prepare(one_file).content_hash == data.content_hash


def test_what_an_older_version_left_is_prepared_anew(one_file, monkeypatch):
    """It had refused the text after it had written the documents as they are."""
    with monkeypatch.context() as patch:
        patch.setattr(splits, "FEW", 1)
        with pytest.raises(UserError, match=r"the validation split of files:.* has 0 tokens"):
            prepare(one_file)
    folder = kind_of(one_file).folder(kind_of(one_file).fingerprint())
    assert (folder / "part-00000.json").exists()
    assert prepare(one_file).facts == {"data_note": SHARED}
    assert {path.suffix for path in folder.iterdir()} == {".json", ".tokens", ".offsets"}
    assert not (folder / "source.json").exists()


def test_a_text_of_one_block_is_refused(tmp_path, cache):
    (tmp_path / "note.txt").write_text(prose(900))
    with pytest.raises(UserError, match=r"validation split of files:.*note\.txt has 0 tokens") as caught:
        prepare(DataSettings(corpus=f"files:{tmp_path}/note.txt", tokenizer="bytes", sequence_length=64))
    assert "Use more" in str(caught.value.hint)
