"""What translation without a network reaches: the target of the training sentence whose source is the most similar."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

_WORD = re.compile(r"\w+|[^\w\s]")


def nearest_translations(sources: Sequence[str], targets: Sequence[str], asked: Sequence[str]) -> list[str]:
    """For each text of `asked` the target of the training pair whose source has the largest cosine of tf-idf, the first
    of equals: words and punctuation marks are the terms, counted within a text, weighted by log(N / n) of the N
    `sources` of which n have the term. A trained model is expected to beat this by much."""
    counts = [Counter(_WORD.findall(text.lower())) for text in sources]
    frequency: Counter[str] = Counter(term for each in counts for term in each)
    weight = {term: np.log(len(sources) / n) for term, n in frequency.items()}
    postings: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for number, each in enumerate(counts):
        norm = float(np.sqrt(sum((count * weight[term]) ** 2 for term, count in each.items())))
        for term, count in each.items():
            postings[term][0].append(number)
            postings[term][1].append(count * weight[term] / max(1e-12, norm))
    arrays = {term: (np.array(numbers), np.array(values)) for term, (numbers, values) in postings.items()}
    found = []
    for text in asked:
        scores = np.zeros(len(sources))
        for term, count in Counter(_WORD.findall(text.lower())).items():
            if term in arrays:
                numbers, values = arrays[term]
                scores[numbers] += count * weight[term] * values
        found.append(targets[int(np.argmax(scores))])
    return found
