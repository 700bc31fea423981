"""How numbers look. Every table, line and file takes them from here, so that one number looks the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable

from comt_cli.report.statistics import Paired, Summary


def value(number: float) -> str:
    """A metric: two decimals, as the papers print it; none from 10000 up."""
    return f"{number:.2f}" if abs(number) < 10_000 else f"{number:.0f}"


def summary(ours: Summary) -> str:
    """`26.73 ± 0.12 (3)`: mean, standard error, n; one seed shows no error."""
    if ours.stderr is None:
        return f"{value(ours.mean)} ({ours.n})"
    error = "<0.01" if 0 < ours.stderr < 0.005 else value(ours.stderr)
    return f"{value(ours.mean)} ± {error} ({ours.n})"


def signed(number: float) -> str:
    """A difference with its sign: two decimals, one from 10 up, none from 100 up, `+2.3e+07` from a million up; without
    its unit."""
    if abs(number) >= 1e6:
        return f"{number:+.1e}"
    decimals = 2 if abs(number) < 10 else 1 if abs(number) < 100 else 0
    text = f"{number:+.{decimals}f}"
    return text if float(text) else f"{0:.{decimals}f}"


def difference(paired: Paired) -> str:
    """`-3.21 [-4.93, -1.49]`: mean and 95 % interval, without the unit; one seed has no interval."""
    if paired.low is None or paired.high is None:
        return signed(paired.mean)
    return f"{signed(paired.mean)} [{signed(paired.low)}, {signed(paired.high)}]"


def increase(number: float) -> str:
    """Parameters beyond a plain model's, in per cent: `+0.98 %`, `-0.01 %` where there are fewer."""
    return f"{number:+.2f} %".replace("-0.00", "+0.00")


def bits(number: float) -> str:
    """Bits per byte: three decimals, since differences of a per cent matter."""
    return f"{number:.3f}"


def one_line(text: str) -> str:
    """`text` without line ends and control letters, which could end a comment or begin a heading, in a written file."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def speed(per_second: float) -> str:
    """Tokens or images per second, `12,345`."""
    return f"{per_second:,.0f}"


def short_count(number: float) -> str:
    """`812`, `3.9 k`, `131 M`, `2.2 B`, `1.3 T`."""
    for limit, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= limit:
            scaled = number / limit
            return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{number:.0f}"


def size(count: float) -> str:
    """Bytes: `812 B`, `5.2 MB`, `131 GB`; a thousand of one unit are one of the next."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            scaled = count / limit
            return f"{scaled:.1f} {unit}" if scaled < 100 else f"{scaled:.0f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """`42 s`, `7 min`, `2 h 10 min`, `12 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def plural(number: int, noun: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def seeds(numbers: Iterable[int]) -> str:
    """Seeds as `--seeds` takes them: `1-3,7`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def listing(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    words = list(names)
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def machine(cell: object) -> str:
    """A CSV field: eight significant digits for fractions, whole numbers whole, nothing for None."""
    if cell is None:
        return ""
    return f"{cell:.8g}" if isinstance(cell, float) else str(cell)
