"""The format of numbers in tables, text and files."""

from __future__ import annotations

from collections.abc import Iterable

from comt_cli import words
from comt_cli.report.statistics import Paired, Summary
from comt_cli.tasks.base import DifferenceUnit


def value(number: float, decimals: int = 2) -> str:
    """A metric: two decimals, as the papers print it, unless it defines others; none from 10000 up."""
    text = f"{number:.{decimals}f}"
    return text if abs(float(text)) < 10_000 else f"{number:.0f}"


def summary(ours: Summary, decimals: int = 2) -> str:
    """`26.73 ± 0.12 (3)`: mean, standard error, n; one seed shows no error."""
    if ours.stderr is None:
        return f"{value(ours.mean, decimals)} ({ours.n})"
    least = 10**-decimals
    error = f"<{least:.{decimals}f}" if 0 < ours.stderr < least / 2 else value(ours.stderr, decimals)
    return f"{value(ours.mean, decimals)} ± {error} ({ours.n})"


def signed(number: float) -> str:
    """A difference with its sign and without unit: two decimals, one from 10 up, none from 100 up, `+2.3e+07` from a
    million up."""
    for decimals, limit in ((2, 10), (1, 100), (0, 1e6)):
        text = f"{number:+.{decimals}f}"
        if abs(float(text)) < limit:
            return text if float(text) else f"{0:.{decimals}f}"
    return f"{number:+.1e}"


def difference(paired: Paired) -> str:
    """`-3.21 [-4.93, -1.49]`: mean and 95 % interval, without the unit; one seed has no interval."""
    if paired.low is None or paired.high is None:
        return signed(paired.mean)
    return f"{signed(paired.mean)} [{signed(paired.low)}, {signed(paired.high)}]"


def detectable(found: tuple[float, float], unit: DifferenceUnit) -> str:
    """`4.88 % lower or 5.13 % higher`, `0.25 points either way`: the effect that n seeds can detect."""
    lower, higher = (f"{signed(number).lstrip('+-')} {unit.spoken}" for number in found)
    return f"{lower} lower or {higher} higher" if unit.is_relative else f"{higher} either way"


def probability(number: float) -> str:
    """A p-value: `0.23`, `0.049`, `0.0012`, `<0.0001`."""
    return "<0.0001" if number < 1e-4 else f"{number:#.2g}"


def increase(number: float) -> str:
    """Additional parameters relative to a plain model, in per cent: `+0.98 %`, or `-0.01 %` if there are fewer."""
    return f"{number:+.2f} %".replace("-0.00", "+0.00")


def one_line(text: str) -> str:
    """`text` without line ends and control letters, which could end a comment or begin a heading in a written file."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def speed(per_second: float) -> str:
    """Tokens or images per second, `12,345`."""
    return f"{per_second:,.0f}"


def size(count: float) -> str:
    """Bytes: `812 B`, `5.2 MB`, `131 GB`; units are powers of a thousand."""
    return words.in_units(count, ("B", "kB", "MB", "GB", "TB"))


duration, plural, listing, short_count = words.duration, words.plural, words.listing, words.short_count
"""Shared with all other output."""


def seeds(numbers: Iterable[int]) -> str:
    """Seeds in the form of `--seeds`: `1-3,7`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def machine(cell: object, digits: int = 8) -> str:
    """A CSV field: fractions with this number of significant digits, whole numbers whole, empty for None."""
    if cell is None:
        return ""
    return f"{cell:.{digits}g}" if isinstance(cell, float) else str(cell)
