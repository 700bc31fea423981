"""Masked sequences: how many tokens are hidden and how, and that it follows from (seed, position) alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from same_bits import same_integers

from comt_cli.data.loader import TrainBatches
from comt_cli.data.split import IGNORE
from comt_cli.data.text.masking import MaskedBatch, MaskedRows
from comt_cli.data.text.rows import PackedRows, PaddedRows
from comt_cli.data.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer(["begin", "mask", "separator"])
SPECIAL = TOKENIZER.special
T = 128


def masked(rows: int = 900, length: int = T - 1, share: float = 0.15) -> MaskedRows:
    """Packed bytes with an end token now and then."""
    stream = np.random.default_rng(3).integers(2, 258, rows * length).astype(np.uint16)
    stream[::97] = SPECIAL.end
    return MaskedRows(PackedRows([stream], length, 1, len(stream)), SPECIAL, TOKENIZER.vocabulary_size, share)


def original(split: MaskedRows, indices: np.ndarray) -> np.ndarray:
    text = split.rows.batch(indices).tokens
    return np.concatenate([np.full((len(text), 1), SPECIAL.begin), text], axis=1)


def same(one: MaskedBatch, other: MaskedBatch) -> bool:
    return all(same_integers(getattr(one, key), getattr(other, key)) for key in ("tokens", "places", "targets"))


def test_fifteen_percent_are_chosen_and_eighty_ten_ten_of_these():
    split, indices = masked(), np.arange(900)
    batch, text = split.train_batch(indices, 5, 0), original(split, indices)
    counted = batch.targets != IGNORE
    is_word = ~np.isin(text, list(SPECIAL.ids))
    assert is_word.sum() > 100_000
    assert abs(counted.sum() / is_word.sum() - 0.15) < 0.0015
    assert same_integers(counted.sum(1), split.target_counts(indices))
    rows = np.broadcast_to(np.arange(900)[:, None], batch.places.shape)[counted]
    places, targets = batch.places[counted], batch.targets[counted]
    assert len({*zip(rows.tolist(), places.tolist(), strict=True)}) == len(rows)  # no place twice
    assert same_integers(text[rows, places], targets)
    assert is_word[rows, places].all()
    seen = batch.tokens[rows, places]
    hidden, kept = seen == SPECIAL.mask, seen == targets
    # A random token is the own one once in 256. Of 17,000 the standard error is 0.3 points.
    for found, share in ((hidden, 0.8), (kept, 0.1 + 0.1 / 256), (~hidden & ~kept, 0.1)):
        assert abs(found.mean() - share) < 0.01
    others = np.bincount(seen[~hidden & ~kept], minlength=TOKENIZER.vocabulary_size)
    assert not others[list(SPECIAL.ids)].any()
    assert (others[2:258] > 0).mean() > 0.9  # any word may stand there
    unchanged = np.ones_like(text, dtype=bool)
    unchanged[rows, places] = False
    assert same_integers(batch.tokens[unchanged], text[unchanged])
    assert (batch.tokens[:, 0] == SPECIAL.begin).all()


@given(st.integers(0, 2**31), st.integers(0, 10**9), st.integers(1, 6))
def test_masks_follow_from_seed_and_position(seed, first, cut):
    split, indices = masked(rows=8), np.arange(8)[::-1]
    whole = split.train_batch(indices, seed, first)
    parts = [split.train_batch(indices[:cut], seed, first), split.train_batch(indices[cut:], seed, first + cut)]
    assert all(
        same_integers(getattr(whole, key), np.concatenate([getattr(part, key) for part in parts]))
        for key in ("tokens", "places", "targets", "positions")
    )
    assert not same_integers(whole.places, split.train_batch(indices, seed + 1, first).places)
    assert not same_integers(whole.places, split.train_batch(indices, seed, first + 8).places)


def test_a_row_that_is_seen_again_is_masked_anew_and_evaluation_never_changes():
    split = masked(rows=4)
    with TrainBatches(split, seed=1, batch_size=4, last_step=2) as batches:
        once, again = ((each[0].places, each[0].positions) for each in batches)
    assert {*once[1], *again[1]} == {*range(8)}
    assert not same_integers(np.sort(once[0], 0), np.sort(again[0], 0))
    fixed = split.batch(np.array([2, 0, 2]))
    assert same(fixed, split.batch(np.array([2, 0, 2])))
    assert same_integers(fixed.tokens[0], fixed.tokens[2])
    assert same_integers(fixed.tokens[1:2], split.batch(np.array([0])).tokens)
    assert not fixed.uncounted().target_count
    assert fixed.target_count == split.target_counts(np.array([2, 0, 2])).sum()


def test_short_documents_and_rows_without_a_word():
    texts = [[5, 6, 7, SPECIAL.end], [SPECIAL.end], [9] * 30 + [SPECIAL.end]]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.uint64)
    rows = PaddedRows([np.concatenate(texts).astype(np.uint16)], [offsets], 40, 34)
    split = MaskedRows(rows, SPECIAL, TOKENIZER.vocabulary_size, 0.15)
    batch = split.batch(np.arange(3))
    counts = (batch.targets != IGNORE).sum(1)
    assert counts.tolist() == [1, 0, 5] == split.target_counts(np.arange(3)).tolist()  # 4.5 is rounded up
    assert (batch.tokens[0, 5:] == SPECIAL.pad).all()
    assert batch.tokens[1, :2].tolist() == [SPECIAL.begin, SPECIAL.end]
