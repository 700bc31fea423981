"""Translation scores: sacreBLEU's metrics under their names in tables, the paired bootstrap between two systems, the
share of required values in translations, and files of translations with one sentence a line. Values of two names are
never comparable: tokens, case or smoothing differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.files import read_text

SAMPLES = 1000  # resampled test sets of the paired bootstrap, sacreBLEU's default
_COMPOUNDS = "de"


@dataclass(frozen=True)
class Score:
    """`value` is between 0 and 100. Values are comparable if their `signature` is equal."""

    value: float
    signature: str


@dataclass(frozen=True)
class TextMetric:
    """`options` are those of sacreBLEU's class `kind`; `compounds` splits German compounds first."""

    kind: str
    options: Mapping[str, Any]
    compounds: bool = False

    def sides(self, *texts: Sequence[str]) -> list[Sequence[str]]:
        """Texts as sacreBLEU's input."""
        if not self.compounds:
            return [*texts]
        from sacremoses import MosesTokenizer

        tokenizer = MosesTokenizer(lang=_COMPOUNDS)
        return [[split_compounds(tokenizer.tokenize(text, return_str=True)) for text in each] for each in texts]

    def scorer(self) -> Any:
        """The sacreBLEU object."""
        from sacrebleu import metrics

        return getattr(metrics, self.kind)(**self.options)

    def signature(self, signature: object) -> str:
        """sacreBLEU's signature, and the preprocessing."""
        moses = f"moses:{_COMPOUNDS}|compounds:split|sacremoses:{version('sacremoses')}|" if self.compounds else ""
        return f"{moses}{signature}"


def split_compounds(tokenised: str) -> str:
    """A tokenised line with its hyphens as tokens, as tensor2tensor's script splits German compounds: `rich-text` as
    `rich ##AT##-##AT## text`. Matches do not overlap: `a-b-c` is split once."""
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokenised)


_MULTI_BLEU = {"tokenize": "none", "smooth_method": "none", "force": True}
METRICS: Mapping[str, TextMetric] = {
    "bleu": TextMetric("BLEU", {}),  # of plain text, tokenised as mteval-13a
    "bleu_tokenised": TextMetric("BLEU", _MULTI_BLEU),  # of the files' tokens, as multi-bleu
    "bleu_intl": TextMetric("BLEU", {"tokenize": "intl"}),  # of plain text, tokenised as mteval-14
    "bleu_intl_lc": TextMetric("BLEU", {"tokenize": "intl", "lowercase": True}),
    # Of Moses' tokens with split compounds, as tensor2tensor's get_ende_bleu.
    "bleu_compound": TextMetric("BLEU", _MULTI_BLEU, compounds=True),
    "chrf": TextMetric("CHRF", {}),  # chrF2: F-score of character n-grams
}


def score(metric: str, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The score of a test set, with one reference for each hypothesis. Raises `ValueError`."""
    _check(hypotheses, references)
    of = METRICS[metric]
    (given, wanted), scorer = of.sides(hypotheses, references), of.scorer()
    value = float(scorer.corpus_score(given, [wanted]).score)
    return Score(value, of.signature(scorer.get_signature()))


def compare(
    metric: str, hypotheses: Sequence[str], baseline: Sequence[str], references: Sequence[str], samples: int = SAMPLES
) -> tuple[Score, Score, float]:
    """The scores of a system and of a baseline on the same references, and the p-value of their difference by
    sacreBLEU's paired bootstrap: the share of resampled test sets whose centred difference exceeds the measured one
    (Koehn 2004). Raises `ValueError`."""
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
    return values[1], values[0], float(results[1].p_value)


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")


def slot_accuracy(hypotheses: Sequence[str], slots: Sequence[Sequence[str]]) -> Score:
    """The percentage of the values that are in their hypotheses, anywhere, as whole words and whole numbers: `3` is
    neither in `13` nor in `3.5`, `-3` or `3 000`. A repeated value must occur as often, and none counts as part of a
    longer one. Raises `ValueError`."""
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
    """A value with borders that are not part of its first and last word."""
    before = r"(?<!\w)" if re.match(r"\w", value) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", value) else ""
    before += r"(?<!\d[.,:])(?<![-−])" if value[:1].isdigit() else ""
    # French groups digits by spaces: two adjacent three-digit numbers are read as one.
    before += r"(?<!\d )" if re.match(r"\d{3}(?!\d)", value) else ""
    after += r"(?![.,:]\d)(?! \d{3}(?!\d))" if value[-1:].isdigit() else ""
    return re.compile(before + re.escape(value) + after)


# ---- files


def read_aligned(paths: Sequence[Path]) -> list[list[str]]:
    r"""The lines of parallel files. As in sacreBLEU they end with `\n` only, without trailing blanks. Raises
    `UserError`."""
    texts = []
    for path in paths:
        try:
            texts.append([line.rstrip() for line in read_text(path).removesuffix("\n").split("\n")])
        except FileNotFoundError:
            raise UserError(f"there is no file {path}") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        if not any(texts[-1]):
            raise UserError(f"{path} is empty")
    if len(set(map(len, texts))) > 1:
        told = ", ".join(f"{path} has {len(text):,}" for path, text in zip(paths, texts, strict=True))
        raise UserError(f"the files must have equal numbers of lines, one sentence each: {told}")
    return texts
