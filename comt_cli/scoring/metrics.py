"""The metrics by their names in tables, each with sacreBLEU's signature, the paired bootstrap between two systems, and
whether a translation has the values that it must: dates, amounts, names, each as its language writes it.

Numbers of two names are never comparable: the tokens differ, or their case, or how what is 0 is smoothed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric

SAMPLES = 1000
"""Resampled test sets of the paired bootstrap: sacreBLEU's number."""


@dataclass(frozen=True)
class Score:
    """`value` goes from 0 to 100; `signature` is all that must be equal between two values that are compared."""

    value: float
    signature: str


@dataclass(frozen=True)
class Comparison:
    """A system beside a baseline, on the same references. `p_value` is the share of resampled test sets whose
    difference is, by chance alone, larger than the one found (Koehn 2004, as sacreBLEU has it: of two equal systems it
    is the smallest there is)."""

    score: Score
    baseline: Score
    p_value: float

    @property
    def difference(self) -> float:
        """How much more the system has."""
        return self.score.value - self.baseline.value


@dataclass(frozen=True)
class TextMetric:
    """`options` are those of sacreBLEU's class `kind`; `prepare` is done to both sides before. `is_of_tokens`: it takes
    tokens as they are, separated by spaces, where the others take plain text."""

    words: str
    kind: str
    options: Mapping[str, Any]
    prepare: Callable[[Sequence[str]], list[str]] | None = None
    is_of_tokens: bool = False

    def sides(self, *texts: Sequence[str]) -> list[Sequence[str]]:
        """Texts as sacreBLEU is given them."""
        return [self.prepare(each) if self.prepare else each for each in texts]

    def scorer(self) -> SacreMetric:
        """sacreBLEU's object."""
        from sacrebleu import metrics

        scorer: SacreMetric = getattr(metrics, self.kind)(**self.options)
        return scorer

    def signature(self, signature: object) -> str:
        """sacreBLEU's signature, and what was done before."""
        moses = f"moses:{_COMPOUNDS}|compounds:split|sacremoses:{version('sacremoses')}|" if self.prepare else ""
        return f"{moses}{signature}"


_COMPOUNDS = "de"


def split_compounds(tokenised: str) -> str:
    r"""A tokenised line with its hyphens as tokens: `rich-text` as `rich ##AT##-##AT## text`.

    German compounds are split so since GNMT, which raises BLEU by 0.7 to 1. tensor2tensor's script is a line of Perl,
    `s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g`, whose matches do not overlap: `a-b-c` is split once.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokenised)


def _with_split_compounds(texts: Sequence[str]) -> list[str]:
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=_COMPOUNDS)
    return [split_compounds(tokenizer.tokenize(text, return_str=True)) for text in texts]


_MULTI_BLEU = {"tokenize": "none", "smooth_method": "none", "force": True}
METRICS: Mapping[str, TextMetric] = {
    "bleu": TextMetric("BLEU of plain text, tokenised as mteval-13a", "BLEU", {}),
    "bleu_tokenised": TextMetric(
        "BLEU of the files' own tokens, as multi-bleu has it", "BLEU", _MULTI_BLEU, is_of_tokens=True
    ),
    "bleu_intl": TextMetric("BLEU of plain text, tokenised as mteval-14", "BLEU", {"tokenize": "intl"}),
    "bleu_intl_lc": TextMetric("the same, in lower case", "BLEU", {"tokenize": "intl", "lowercase": True}),
    "bleu_compound": TextMetric(
        "BLEU of Moses' tokens with split compounds, as tensor2tensor's get_ende_bleu has it",
        "BLEU",
        _MULTI_BLEU,
        _with_split_compounds,
    ),
    "chrf": TextMetric("chrF2: F-score of character n-grams", "CHRF", {}),
}


def score(metric: str, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The score of a test set, one reference for each hypothesis. Raises `ValueError` where there are none, or not as
    many of both."""
    _check(hypotheses, references)
    of = METRICS[metric]
    given, wanted = of.sides(hypotheses, references)
    scorer = of.scorer()
    value = float(scorer.corpus_score(given, [wanted]).score)
    return Score(value, of.signature(scorer.get_signature()))


def compare(
    metric: str, hypotheses: Sequence[str], baseline: Sequence[str], references: Sequence[str], samples: int = SAMPLES
) -> Comparison:
    """Both scores and the p-value of their difference, by sacreBLEU's paired bootstrap with its seed. Raises as
    `score`."""
    _check(hypotheses, references)
    _check(baseline, references)
    from sacrebleu.significance import PairedTest

    of = METRICS[metric]
    system, other, wanted = of.sides(hypotheses, baseline, references)
    named = [("baseline", other), ("system", system)]
    test = PairedTest(named, {metric: of.scorer()}, [wanted], test_type="bs", n_samples=samples)
    signatures, columns = test()
    ((name, sacre_signature),) = signatures.items()
    results: list[Any] = list(columns[name])
    values = [Score(float(result.score), of.signature(sacre_signature)) for result in results]
    return Comparison(values[1], values[0], float(results[1].p_value))


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")


def slot_accuracy(hypotheses: Sequence[str], slots: Sequence[Sequence[str]]) -> Score:
    """The percentage of the values that are in their hypotheses, letter by letter, anywhere in them.

    A value counts as whole words and whole numbers: `3` is neither in `13` nor in `3.5`, `-3` or `3 000`. One that is
    asked for twice must be there twice, and none counts as part of a longer one. Raises `ValueError` where there are
    not as many hypotheses as lists of values, or no values at all.
    """
    if len(hypotheses) != len(slots) or not any(slots):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(slots)} lists of values")
    total, found = sum(map(len, slots)), 0
    for text, values in zip(hypotheses, slots, strict=True):
        left = text
        for value in sorted(values, key=len, reverse=True):
            left, once = _whole(value).subn("\0", left, count=1)
            found += once
    return Score(100 * found / total, f"slots:{total}|match:exact")


def _whole(value: str) -> re.Pattern[str]:
    """A value between what is no part of its first and last word."""
    before = r"(?<!\w)" if re.match(r"\w", value) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", value) else ""
    before += r"(?<!\d[.,:])(?<![-−])" if value[:1].isdigit() else ""
    # French groups digits by spaces; two numbers of three digits side by side are taken for one.
    before += r"(?<!\d )" if re.match(r"\d{3}(?!\d)", value) else ""
    after += r"(?![.,:]\d)(?! \d{3}(?!\d))" if value[-1:].isdigit() else ""
    return re.compile(before + re.escape(value) + after)
