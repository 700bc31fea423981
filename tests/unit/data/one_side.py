"""What can be guessed of examples without understanding them: classifiers of single words, and words in common."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np

from comt_cli.data.glue.settings import Example

Side = Callable[[Example], str]


def words(text):
    return re.findall(r"\w+", text.lower())


def counts(texts, vocabulary):
    found = np.zeros((len(texts), len(vocabulary)), dtype=np.float32)
    known = [(row, vocabulary[word]) for row, text in enumerate(texts) for word in words(text) if word in vocabulary]
    np.add.at(found, tuple(np.array(known).T), 1)
    return found


def guessed(train, test, side):
    """The classes that naive Bayes gives the test examples, from the words of one side."""
    often = Counter(word for each in train for word in words(side(each)))
    vocabulary = {word: number for number, (word, _) in enumerate(often.most_common(2000))}
    labels = np.array([each.label for each in train], dtype=np.int64)
    seen = counts([side(each) for each in train], vocabulary)
    totals = np.array([seen[labels == label].sum(0) for label in range(labels.max() + 1)]) + 1
    prior = np.log(np.bincount(labels) / len(labels))
    weights = np.log(totals / totals.sum(1, keepdims=True))
    return np.argmax(counts([side(each) for each in test], vocabulary) @ weights.T + prior, axis=1).astype(np.int64)


def accuracy(train, test, side):
    return float(np.mean(guessed(train, test, side) == np.array([each.label for each in test])))


def overlap(example):
    """The share of both texts' words that are in both."""
    one, other = {*words(example.first)}, {*words(example.second or "")}
    return len(one & other) / len(one | other)
