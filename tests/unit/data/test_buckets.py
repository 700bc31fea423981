"""Batches counted in tokens: packing as a property of lengths, and its batches through the loader of every task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from same_bits import same_integers

from comt_cli.data.order import sample_indices
from comt_cli.data.pairs.dataset import ROWS, PairBuckets, pack_buckets
from comt_cli.data.split import IGNORE, TokenLists
from comt_cli.data.tokenizer import SpecialTokens

PLAN = [[6], [9, 4], [0, 1, 7, 2], [11, 5], [10, 3, 8]]
SPECIAL = SpecialTokens(pad=0, end=1, begin=2)
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=120)


def arrays(pairs):
    source, target = np.array(pairs, dtype=np.int64).T
    return source, target


def corpus(pairs=60, seed=0):
    """Sources and targets of 0 to 12 tokens from 3 on; each token says its pair."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(0, 13, (pairs, 2)).tolist()
    return [[3 + i] * size for i, (size, _) in enumerate(sizes)], [[3 + i] * size for i, (_, size) in enumerate(sizes)]


@given(LENGTHS, st.integers(1, 200), st.integers(-3, 10**6))
def test_every_pair_is_in_one_bucket_within_the_bound(pairs, batch_tokens, seed):
    source, target = arrays(pairs)
    longest = np.maximum(source, target).max()
    if longest > batch_tokens:
        with pytest.raises(ValueError, match=f"a pair of {longest} tokens does not fit in {batch_tokens}"):
            pack_buckets(source, target, batch_tokens, seed)
        return
    plan = pack_buckets(source, target, batch_tokens, seed)
    assert sorted(plan.members.tolist()) == list(range(len(pairs)))
    for bucket in range(len(plan.offsets) - 1):
        inside = plan.pairs(bucket)
        assert len(inside)
        assert len(inside) * source[inside].max() <= batch_tokens
        assert len(inside) * target[inside].max() <= batch_tokens


@given(LENGTHS, st.integers(1, 200), st.integers(0, 9))
def test_packing_is_greedy_along_the_sorted_pairs(pairs, batch_tokens, seed):
    """Pair by pair, as the rule is said: the plan itself is faster."""
    source, target = arrays([each for each in pairs if max(each) <= batch_tokens] or [(1, 1)])
    drawn = sample_indices(seed, 0, len(source), len(source))
    longer, difference = np.maximum(source, target), source - target
    turning = np.where(longer % 2, difference, -difference)
    packed: list[list[int]] = [[]]
    for pair in np.lexsort((drawn, turning, longer)).tolist():
        if (len(packed[-1]) + 1) * longer[pair] > batch_tokens:
            packed.append([])
        packed[-1].append(pair)
    plan = pack_buckets(source, target, batch_tokens, seed)
    numbered = [packed[number] for number in sample_indices(seed, 0, len(packed), len(packed))]
    assert [plan.pairs(bucket).tolist() for bucket in range(len(numbered))] == numbered


def test_the_plan_never_changes():
    """A run resumed with a later version must see the buckets it would have seen."""
    plan = pack_buckets(*arrays([(n % 7 + 1, n % 5 + 1) for n in range(12)]), 14, 3)
    assert [plan.pairs(bucket).tolist() for bucket in range(len(plan.offsets) - 1)] == PLAN


def test_a_batch_by_hand():
    sources, targets = TokenLists.of([[5, 6], [7]]), TokenLists.of([[8], [9, 10, 11]])
    split = PairBuckets(sources, targets, SPECIAL, 8, 0)
    assert len(split) == 1
    assert split.pairs(np.array([0])).tolist() == [0, 1]
    batch = split.train_batch(np.array([0]), 0, 5)
    assert batch.source.tolist() == [[5, 6, 1], [7, 1, 0]]
    assert batch.target_in.tolist() == [[2, 8, 0, 0], [2, 9, 10, 11]]
    assert batch.target_out.tolist() == [[8, 1, IGNORE, IGNORE], [9, 10, 11, 1]]
    assert batch.positions.tolist() == [5 * ROWS, 5 * ROWS + 1]
    assert batch.target_count == split.target_counts(np.array([0])).sum() == 6
    assert batch.uncounted().target_count == 0
    assert same_integers(batch.uncounted().source, batch.source)


def test_misuse_is_named():
    lists = TokenLists.of([[3]])
    with pytest.raises(ValueError, match="no begin token"):
        PairBuckets(lists, lists, SpecialTokens(pad=0, end=1), 9, 0)
    begun = PairBuckets(lists, lists, replace(SpecialTokens(pad=0, end=1), begin=0), 9, 0)
    assert begun.batch(np.array([0])).target_in.tolist() == [[0, 3]]
    with pytest.raises(ValueError, match="lengths are of pairs"):
        PairBuckets(lists, TokenLists.of([[3], [4]]), SPECIAL, 9, 0)
    with pytest.raises(ValueError, match="may have more than"):
        PairBuckets(lists, lists, SPECIAL, ROWS + 1, 0)
    with pytest.raises(IndexError, match="from 0 to 0"):
        begun.batch(np.array([1]))
