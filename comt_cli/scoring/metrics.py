"""The metrics by their names in tables, each with sacreBLEU's signature, and the paired bootstrap between two systems.

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
    """A system beside a baseline, on the same references.

    `p_value` is the share of resampled test sets whose difference is, by chance alone, larger than the one found (Koehn
    2004, as sacreBLEU has it: of two equal systems it is not 1, but the smallest there is).
    """

    score: Score
    baseline: Score
    p_value: float

    @property
    def difference(self) -> float:
        """How much more the system has."""
        return self.score.value - self.baseline.value


@dataclass(frozen=True)
class TextMetric:
    """`options` are those of sacreBLEU's class `kind`; `prepare` is done to both sides before.

    `is_of_tokens`: it takes tokens as they are, separated by spaces, where the others take plain text.
    """

    words: str
    kind: str
    options: Mapping[str, Any]
    prepare: Callable[[Sequence[str]], list[str]] | None = None
    is_of_tokens: bool = False

    def sides(self, *texts: Sequence[str]) -> list[Sequence[str]]:
        """Texts as sacreBLEU is given them."""
        return [self.prepare(each) if self.prepare else each for each in texts]

    def scorer(self) -> SacreMetric:
        """sacreBLEU's object. Imports sacreBLEU."""
        from sacrebleu import metrics

        scorer: SacreMetric = getattr(metrics, self.kind)(**self.options)
        return scorer

    def signature(self, signature: object) -> str:
        """sacreBLEU's signature, and what was done before."""
        moses = f"moses:{_COMPOUNDS}|compounds:split|sacremoses:{version('sacremoses')}|" if self.prepare else ""
        return f"{moses}{signature}"


_COMPOUNDS = "de"
_HYPHEN = re.compile(r"(\S)-(\S)")


def split_compounds(tokenised: str) -> str:
    r"""A tokenised line with its hyphens as tokens: `rich-text` as `rich ##AT##-##AT## text`.

    German compounds are split so since GNMT, which raises BLEU by 0.7 to 1: it is shown under a name of its own.
    tensor2tensor's script is a line of Perl, `s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g`, whose matches do not overlap:
    `a-b-c` is split once.
    """
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokenised)


def with_split_compounds(texts: Sequence[str]) -> list[str]:
    """Plain texts as Moses' tokens with split compounds."""
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
        with_split_compounds,
    ),
    "chrf": TextMetric("chrF2: F-score of character n-grams", "CHRF", {}),
}


def score(metric: str, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The score of a test set, one reference for each hypothesis.

    Raises:
        ValueError: there are none, or not as many of both.
    """
    _check(hypotheses, references)
    of = METRICS[metric]
    given, wanted = of.sides(hypotheses, references)
    scorer = of.scorer()
    value = float(scorer.corpus_score(given, [wanted]).score)
    return Score(value, of.signature(scorer.get_signature()))


def compare(
    metric: str, hypotheses: Sequence[str], baseline: Sequence[str], references: Sequence[str], samples: int = SAMPLES
) -> Comparison:
    """Both scores and the p-value of their difference, by sacreBLEU's paired bootstrap with its seed.

    Raises as `score` does.
    """
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
