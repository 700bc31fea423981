"""Caption scores as COCO's evaluation computes them: BLEU-1 to 4, ROUGE-L and CIDEr-D without Java, and METEOR and
SPICE, Java programs that pycocoevalcap contains (extra `caption-metrics`).

On equal tokens they equal pycocoevalcap's to 1e-9, times 100, as papers print them; nothing is downloaded. CIDEr-D is
defined by Vedantam et al. (2015); as in COCO's code, the length of a text is its number of word pairs.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from comt_cli.data.captions.words import PUNCTUATION, treebank_tokens
from comt_cli.data.storage import first_line
from comt_cli.sums import added

CAPTION_METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider")
JAVA_METRICS = ("meteor", "spice")

_ORDERS = 4
_BETA = 1.2  # ROUGE-L: weight of recall relative to precision
_SIGMA = 6.0  # CIDEr-D: the difference in length that costs e^(-1/2)
_SMALL, _TINY = 1e-9, 1e-15  # COCO's BLEU adds it to numbers that may be 0
_HELD = 1 << 12  # images whose references are held as vectors
_CORENLP = "spice/lib/stanford-corenlp-3.6.0.jar"

Gram = tuple[str, ...]


def caption_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """The scores of one caption per image, given all references of each: `CAPTION_METRICS`, times 100. Raises
    `ValueError`."""
    if len(hypotheses) != len(references) or not hypotheses or not all(references):
        raise ValueError(f"{len(hypotheses)} captions for {len(references)} lists of references")
    candidates = [words_of(text) for text in hypotheses]
    truths = [[words_of(text) for text in texts] for texts in references]
    cider = Cider(references)
    found = dict(zip(CAPTION_METRICS, _bleu(candidates, truths), strict=False))
    found["rouge_l"] = added(map(_rouge_l, candidates, truths)) / len(candidates)
    of_single = added(cider.score(text, image) for image, text in enumerate(hypotheses)) / len(hypotheses)
    return {name: 100 * value for name, value in found.items()} | {"cider": of_single}


def words_of(text: str) -> list[str]:
    """The compared words: the text's tokens without punctuation."""
    return [token for token in treebank_tokens(text) if token not in PUNCTUATION]


def _grams(words: Sequence[str]) -> Counter[Gram]:
    orders = range(1, _ORDERS + 1)
    return Counter(tuple(words[at : at + order]) for order in orders for at in range(len(words) - order + 1))


# ---- BLEU and ROUGE-L


def _bleu(candidates: Sequence[list[str]], truths: Sequence[list[list[str]]]) -> list[float]:
    """BLEU-1 to 4 of the corpus, unsmoothed: clipped n-gram precisions, with the reference that is nearest in
    length."""
    right, said = [0] * _ORDERS, [0] * _ORDERS
    length, true_length = 0, 0
    for words, texts in zip(candidates, truths, strict=True):
        most: Counter[Gram] = Counter()
        for text in texts:
            most |= _grams(text)
        for gram, count in _grams(words).items():
            right[len(gram) - 1] += min(count, most[gram])
        for order in range(_ORDERS):
            said[order] += max(0, len(words) - order)
        length += len(words)
        true_length += min((abs(len(text) - len(words)), len(text)) for text in texts)[1]
    ratio = (length + _TINY) / (true_length + _SMALL)
    penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    product, found = 1.0, []
    for order in range(_ORDERS):
        product *= (right[order] + _TINY) / (said[order] + _SMALL)
        found.append(product ** (1 / (order + 1)) * penalty)
    return found


def _rouge_l(words: list[str], texts: list[list[str]]) -> float:
    common = [_longest_common(words, text) for text in texts]
    precision = max(common) / max(1, len(words))
    recall = max(each / max(1, len(text)) for each, text in zip(common, texts, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def _longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    row = [0] * (len(other) + 1)
    for word in one:
        left_above = 0
        for column, second in enumerate(other, 1):
            above = row[column]
            row[column] = left_above + 1 if word == second else max(above, row[column - 1])
            left_above = above
    return row[-1]


# ---- CIDEr-D


@dataclass(frozen=True)
class _Vector:
    """tf-idf weights of a text's n-grams, their Euclidean norm for each n, and the text's length."""

    weights: dict[Gram, float]
    norms: tuple[float, ...]
    length: int


class Cider:
    """CIDEr-D of single captions, times 100, with n-gram weights from the `references` of every image. The constructor
    counts all references once; a caption then takes a fraction of a millisecond."""

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        images: Counter[Gram] = Counter()
        for texts in references:
            images.update({gram for text in texts for gram in _grams(words_of(text))})
        # The logarithm of the inverse share of images with the n-gram; an unseen one counts as if it were in one image.
        self._unseen = math.log(len(references))
        self._idf = {gram: self._unseen - math.log(count) for gram, count in images.items()}
        self._truths: Callable[[int], list[_Vector]] = lru_cache(_HELD)(
            lambda image: [self._vector(text) for text in references[image]]
        )

    def score(self, hypothesis: str, image: int) -> float:
        """100 times CIDEr-D of a caption of the image with this number, usually between 0 and 1000."""
        own, truths = self._vector(hypothesis), self._truths(image)
        return 100 * 10 * added(_similarity(own, truth) for truth in truths) / len(truths)

    def _vector(self, text: str) -> _Vector:
        words = words_of(text)
        weights = {gram: count * self._idf.get(gram, self._unseen) for gram, count in _grams(words).items()}
        squares = [0.0] * _ORDERS
        for gram, weight in weights.items():
            squares[len(gram) - 1] += weight * weight
        return _Vector(weights, tuple(map(math.sqrt, squares)), max(0, len(words) - 1))


def _similarity(own: _Vector, truth: _Vector) -> float:
    """The mean over n of the cosine of two texts, with counts clipped at the reference's and a penalty for unequal
    lengths."""
    products = [0.0] * _ORDERS
    for gram, weight in own.weights.items():
        if other := truth.weights.get(gram):
            products[len(gram) - 1] += min(weight, other) * other
    cosines = [
        product / (one * other) if one and other else 0.0
        for product, one, other in zip(products, own.norms, truth.norms, strict=True)
    ]
    return added(cosines) / _ORDERS * math.exp(-((own.length - truth.length) ** 2) / (2 * _SIGMA**2))


# ---- METEOR and SPICE


def java_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float | str]:
    """`JAVA_METRICS` of one caption per image, times 100, or the reason why one is missing. METEOR gets a caption
    without words as a dot, since an empty line stops it."""
    found: dict[str, float | str] = {}
    captions = {number: [" ".join(words_of(text)) or "."] for number, text in enumerate(hypotheses)}
    truths = {number: [" ".join(words_of(text)) for text in texts] for number, texts in enumerate(references)}
    for name in JAVA_METRICS:
        if reason := why_missing(name):
            found[name] = reason
            continue
        try:
            scorer: Any = getattr(import_module(f"pycocoevalcap.{name}.{name}"), name.capitalize())()
            found[name] = 100 * float(scorer.compute_score(truths, captions)[0])
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            found[name] = f"{name} failed: {first_line(error)}"
    return found


def why_missing(name: str) -> str | None:
    """The missing requirement of a metric, in a few words for a table's cell; None if nothing is missing."""
    if shutil.which("java") is None:
        return "needs Java"
    package = find_spec("pycocoevalcap")
    if package is None or not package.submodule_search_locations:
        return "needs comt[caption-metrics]"
    if name == "spice" and not (Path(package.submodule_search_locations[0]) / _CORENLP).exists():
        return "needs Stanford CoreNLP 3.6"
    return None
