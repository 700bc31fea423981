"""Both layouts against naive re-implementations, over random documents cut into random shards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.data.special_tokens import PAD
from comt_cli.data.split import IGNORE
from comt_cli.data.text.dataset import Dataset
from comt_cli.data.text.rows import PackedRows, PaddedRows

EOS = 1
Documents = list[list[int]]
documents = st.lists(
    st.lists(st.integers(2, 60_000), max_size=12).map(lambda ids: [*ids, EOS]), min_size=1, max_size=30
)


@st.composite
def sharded(draw: st.DrawFn, max_length: int | None = None) -> tuple[Documents, list[Documents]]:
    """Documents, and the same documents cut into shards."""
    texts = [text[:max_length] for text in draw(documents)]
    cuts = sorted(draw(st.sets(st.integers(1, len(texts)), max_size=4)) | {0, len(texts)})
    return texts, [texts[a:b] for a, b in itertools.pairwise(cuts)]


def arrays(shards: list[Documents]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    tokens = [np.array([i for text in shard for i in text], dtype=np.uint16) for shard in shards]
    offsets = [np.cumsum([0, *map(len, shard)]).astype(np.uint32) for shard in shards]
    return tokens, offsets


@given(given_documents=sharded(), length=st.integers(2, 9))
def test_pack_is_the_stream_in_windows(given_documents: tuple[Documents, list[Documents]], length: int) -> None:
    texts, shards = given_documents
    rows = PackedRows(arrays(shards)[0], length, len(texts), 0)
    stream = [i for text in texts for i in text]
    windows = [stream[i : i + length] for i in range(0, len(stream) - length + 1, length)]
    assert len(rows) == len(windows)
    assert rows.tokens == len(stream)
    batch = rows.batch(np.arange(len(rows)))
    assert batch.tokens.tolist() == windows
    assert batch.targets.tolist() == [[*window[1:], IGNORE] for window in windows]
    assert rows.target_counts(np.arange(len(rows))).sum() == batch.target_count


@given(given_documents=sharded(max_length=6), order_seed=st.integers(0, 99))
def test_pad_is_one_document_a_row(given_documents: tuple[Documents, list[Documents]], order_seed: int) -> None:
    length = 6
    texts, shards = given_documents
    rows = PaddedRows(*arrays(shards), length, 0)
    assert len(rows) == rows.documents == len(texts)
    indices = np.random.default_rng(order_seed).integers(0, len(rows), 2 * len(rows))
    batch = rows.batch(indices)
    assert batch.tokens.shape == batch.targets.shape == (len(indices), length)
    assert batch.tokens.dtype == batch.targets.dtype == np.int64
    for index, tokens, targets in zip(indices, batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        text = texts[index]
        assert tokens == text + [PAD] * (length - len(text))
        assert targets == [*text[1:], *[IGNORE] * (length - len(text) + 1)]
    assert rows.target_counts(indices).tolist() == (batch.targets != IGNORE).sum(axis=1).tolist()


def test_a_padding_id_within_a_text_is_a_target() -> None:
    """Lengths decide, not the id."""
    rows = PaddedRows([np.array([5, 0, 7, 1], np.uint16)], [np.array([0, 4], np.uint32)], 6, 0)
    assert rows.batch(np.array([0])).targets.tolist() == [[0, 7, 1, IGNORE, IGNORE, IGNORE]]


def test_bytes_of_rows_give_bits_per_byte(python_docs_pack: Dataset, python_docs_pad: Dataset) -> None:
    """What truncation dropped is not counted, so tokens a byte agree between the layouts."""
    pack, pad = python_docs_pack.train, python_docs_pad.train
    assert pad.bytes < pack.bytes
    assert pad.tokens / pad.bytes == pytest.approx(pack.tokens / pack.bytes, rel=0.1)
    text = python_docs_pad.tokenizer.decode(pad.batch(np.array([0])).tokens[0].tolist())
    assert text.startswith('The "assert" statement')
