"""The printed claims of the chapter on residual connections (Brenndoerfer, "Residual Connections: The Gradient Highways
Enabling Deep Transformers", 2025), each beside our number and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import pandas as pd

_ROUNDING = 1e-5
"""Relative difference that fp32 sums taken in another order may make in what the chapter prints to more digits."""


class Verdict(StrEnum):
    """The verdict on a claim."""

    digits = "reproduces"
    in_kind = "reproduces in kind"
    its_loss = "reproduces only with its loss"
    no = "does not reproduce"


@dataclass(frozen=True)
class Claim:
    """`name` for reference, what is claimed, the chapter's number and ours as text, the verdict and why it is that."""

    name: str
    claim: str
    chapter: str
    ours: str
    verdict: Verdict
    why: str


def same_digits(number: float, printed: str) -> bool:
    """Whether `number` is what was printed: equal when rounded as it is, or but for the rounding of fp32 sums."""
    digits = printed.replace(",", "")
    decimals = len(digits.partition(".")[2])
    value = float(digits)
    return f"{number:.{decimals}f}" == digits or abs(number - value) <= _ROUNDING * abs(value)


def printed_claim(
    name: str, claim: str, printed: Sequence[str], ours: Sequence[float], why: str, *, in_kind: bool = False
) -> Claim:
    """A claim that is a list of printed numbers: it reproduces if ours are those. If not, `in_kind` says whether what
    they are to show is so all the same."""
    equal = all(same_digits(number, text) for number, text in zip(ours, printed, strict=True))
    verdict = Verdict.digits if equal else Verdict.in_kind if in_kind else Verdict.no
    shown = (f"{number:.{len(text.partition('.')[2])}f}" for number, text in zip(ours, printed, strict=True))
    return Claim(name, claim, "; ".join(printed), "; ".join(shown), verdict, why)


def kind(holds: bool) -> Verdict:
    """The verdict on a claim without printed digits."""
    return Verdict.in_kind if holds else Verdict.no


def claims_frame(claims: Sequence[Claim]) -> pd.DataFrame:
    """One row a claim."""
    return pd.DataFrame([{**asdict(claim), "verdict": claim.verdict.value} for claim in claims])
