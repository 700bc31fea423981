"""One page over everything that was written: what it was made on, and what agrees with the papers and what does not.

It is made from the files below the results folder alone, so that it can be made again in any clone, with equal bytes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from comt_cli.errors import UserError
from comt_cli.files import write_changed
from comt_cli.report import format
from comt_cli.report.markdown import escaped
from comt_cli.report.statistics import ALPHA, POWER, detectable
from comt_cli.report.verdict import Verdict, excludes_published, stands
from comt_cli.report.written import Line, Reader, Written, WrittenCell, scales_below, written_below
from comt_cli.tasks import Task, tasks
from comt_cli.tasks.base import DifferenceUnit

_SCALES = {
    "smoke": (
        "Networks and texts so small that a laptop trains them in minutes. This says that the programs work, and what "
        "a method does at the very beginning of training. It is no evidence about networks of the papers' sizes: an "
        "agreement here confirms nothing there, and a disagreement refutes nothing."
    ),
    "evening": (
        "The networks of scale smoke trained for longer (translators as long, with more seeds), so that seeds differ "
        "by one to two per cent and most differences are resolved. What is said here is said of this size and length "
        "alone."
    ),
    "small": (
        "Networks of the papers' smallest class on local text, with far fewer tokens than the papers'. What is said "
        "here is said of this size and this length alone."
    ),
    "paper": "The published sizes, texts and lengths.",
}
_OWN_SCALE = "A scale of one's own recipes. What is said here is said of that size and length alone."
SUPERSEDED = "superseded.csv"
"""Below the results: runs of one id that ended with several numbers, of which the tables keep one."""
NOT_ARCHIVED = "not-archived.csv"
"""Below a scale: the runs of its tables that no archive has."""
_DEFAULT = Path("runs/results")
"""The folder that the command line means where none is named."""

INTRODUCTION = (
    "A table compares each of its rows with its baseline, seed by seed. *Agrees* and *disagrees*: over several seeds, "
    "the 95 % interval of the difference lies wholly on the published side of zero, or wholly on the other. *Not "
    "resolved*: it spans zero; where it does not hold the published difference either, that is said. *One seed*: there "
    "is no interval, so the direction alone is given. Where the paper "
    "prints no value, *better* and *worse* say on which side of zero the interval lies. Each interval is taken by "
    "itself: of twenty differences that are not there, one would seem resolved. *Holm's p* is the p-value of the "
    "paired t-test after Holm's correction over all differences of the table from which verdicts are taken: where it "
    f"is below {ALPHA:g}, the difference is resolved after the correction, too. What as many seeds *would show* are "
    f"the smallest true differences that they resolve with probability {POWER:g}, if these spread as those that were "
    "measured. Differences in per cent are of the geometric mean of the seeds' ratios, with the interval of Student's "
    "t on their logarithms.",
    "",
)
"""What the verdicts mean: lines of Markdown."""

_GROUPS: tuple[tuple[str, str, tuple[Verdict, ...]], ...] = (
    ("agree", "Agrees with the paper", (Verdict.agrees,)),
    ("disagree", "Disagrees with the paper", (Verdict.disagrees,)),
    ("better", "Better than the baseline; the paper prints no value", (Verdict.better,)),
    ("worse", "Worse than the baseline; the paper prints no value", (Verdict.worse,)),
    ("not resolved", "Not resolved: the interval spans zero", (Verdict.not_resolved,)),
    (
        "one seed",
        "One seed, so nothing is claimed",
        (Verdict.one_seed_same, Verdict.one_seed_opposite, Verdict.one_seed_equal, Verdict.one_seed),
    ),
    (
        "diverged",
        "Diverged",
        (
            Verdict.diverged,
            Verdict.diverged_here,
            Verdict.diverged_in_both,
            Verdict.baseline_diverged,
            Verdict.baseline_diverged_here,
            Verdict.baseline_diverged_in_both,
        ),
    ),
    ("no result", "Without a result so far", (Verdict.no_result, Verdict.no_baseline, Verdict.no_common_seed)),
    (
        "no direction",
        "Without a published direction",
        (Verdict.no_baseline_in_paper, Verdict.equal_in_paper, Verdict.both_collapsed_in_paper),
    ),
)
"""Heading of the count, heading of the list, verdicts. Every verdict is in one, but that of the baseline itself."""


def all_written(results: Path, reader: Reader) -> dict[str, list[Written]]:
    """Every table and figure, by scale.

    Raises:
        UserError: there is none below `results`, or none that can be read.
    """
    written = {scale: found for scale in scales_below(results) if (found := written_below(results, scale, reader))}
    if not written:
        damaged = next(iter(reader.damaged.values()), None)
        raise UserError(
            damaged or f"there are no tables below {results}", "comt train-lm --recipe table3.yaml makes one."
        )
    return written


def write_overview(results: Path, reader: Reader | None = None) -> Path:
    """Write `<results>/README.md`; returns its path. A page that would be the same is left alone.

    Raises:
        UserError: there is no table below `results`.
        StorageError: the page cannot be written.
    """
    reader = reader or Reader()
    written = all_written(results, reader)
    page = results / "README.md"
    by = command(results, "--overview")
    made = f"Made by `{by}` from the files in this folder; every number below is in one of them."
    lines = ["# Results", "", made, "", *INTRODUCTION]
    for scale, found in written.items():
        lines += _scale(results, scale, found, reader)
    write_changed(page, "\n".join([*lines, *_others(results)]).rstrip() + "\n")
    return page


def command(results: Path, option: str) -> str:
    """The `comt report` that writes the page of this folder (`--overview`, `--html`), from the working directory."""
    whole, here = results.resolve(), Path.cwd()
    if whole == _DEFAULT.resolve():
        return f"comt report {option}"
    shown = whole.relative_to(here) if whole.is_relative_to(here) else results
    return f"comt report {option} --results {shlex.quote(str(shown))}"


def _scale(results: Path, scale: str, written: Sequence[Written], reader: Reader) -> Iterator[str]:
    yield from (f"## Scale {scale}", "", *summary(results, scale, written, reader))
    for one in written:
        yield from _table(results, one) if one.cells else ()
    for one in written:
        yield from () if one.cells else _figure(results, one)
    runs = sorted(path for path in (results / scale).glob("*/figures/*") if path.is_dir())
    if runs:
        yield from ("### What single networks do", "")
        for folder in runs:
            links = ", ".join(_link(results, path, path.stem) for path in sorted(folder.glob("*.png")))
            yield f"- {escaped(folder.name)}: {links}"
        yield ""


def summary(results: Path, scale: str, written: Sequence[Written], reader: Reader) -> Iterator[str]:
    """What a scale is, on what its runs were made, and how many verdicts of each kind there are: lines of Markdown,
    with addresses relative to `results`."""
    tables = [one for one in written if one.cells and not one.changed_settings]
    there = [task for task in tasks().values() if any(one.task is task for one in written)]
    about = [_SCALES.get(scale, _OWN_SCALE), *(task.at_scale[scale] for task in there if scale in task.at_scale)]
    yield from (" ".join(about), "")
    yield from (f"- {line}" for line in _provenance(results, written, reader))
    yield ""
    if tables:
        if any(cell.direction for one in tables for cell in one.cells):
            yield from (_tally(scale, tables), "")
        yield from (*_counts(results, tables), "")


def _provenance(results: Path, written: Sequence[Written], reader: Reader) -> Iterator[str]:
    """Devices, networks, data, how much of it, seeds, commits: of the runs that ended, each counted once."""
    ended = {run["id"]: (one.task, run) for one in written for run in one.runs if run["state"] in ("done", "diverged")}
    runs = [run for _, run in ended.values()]
    again = _trained_again(results, written[0].scale, ended, reader)
    yield f"{format.plural(len(runs), 'run')}; tables that ask for the same training share it.{again}"
    yield f"Devices: {_distinct(runs, 'device') or 'not recorded'}."
    for task in tasks().values():
        own = [run for of, run in ended.values() if of is task]
        for template in task.provenance if own else ():
            yield _filled(template, task, own)
    yield f"Seeds: {format.seeds(int(seed) for seed in _values(runs, 'seed')) or 'none'}."
    yield f"Commits: {_distinct(runs, 'git_commit') or 'not recorded'}."
    yield from _archives(results, results / written[0].scale, reader)


def _trained_again(results: Path, scale: str, shown: Container[str], reader: Reader) -> str:
    """Of the runs that are `shown`, those of which a table of this scale once had another number, as `superseded.csv`
    has it, and how far the two are apart. Nothing where there are none."""
    path = results / SUPERSEDED
    try:
        lines = [line for line in reader.lines(path) if line["id"] in shown and f" {scale}/" in f" {line['tables']}"]
        ends = [(float(line["before"]), float(line["after"])) for line in lines]
        apart = sorted(100 * (max(pair) / min(pair) - 1) for pair in ends)
    except (KeyError, ValueError, ZeroDivisionError) as error:
        reader.leave_out(path, error)
        return ""
    if not lines:
        return ""
    return (
        f" {len(lines)} of them had been trained twice, for tables that were made in separate clones, by code that "
        f"rounds otherwise, to [two numbers]({SUPERSEDED}) that are {median(apart):.2g} % apart in the middle and "
        f"{apart[-1]:.2g} % at most: all tables show that of the newer commit."
    )


def _archives(results: Path, folder: Path, reader: Reader) -> Iterator[str]:
    """The archives of run directories beside a scale's tables, and how many runs they lack, where there are any."""
    if archives := sorted(folder.glob("*.tar.xz")):
        links, path = format.listing(_link(results, each, each.name) for each in archives), folder / NOT_ARCHIVED
        lack = ""
        if count := len(reader.lines(path)):
            link = _link(results, path, path.name)
            lack = f"; {count} that tables or trials show are in none ({link})"
        yield f"Run directories, without weights: {links}{lack}."


def _filled(template: str, task: Task[Any], runs: Sequence[Line]) -> str:
    """A sentence of `Task.provenance`: what the runs have in every column that it names, as it asks for it."""

    def said(asked: re.Match[str]) -> str:
        key, kind = asked[1], asked[2]
        if key == "parameters":  # `1.2 M parameters, fp32`
            return ", ".join([f"{_span(runs, key)} parameters", *_values(runs, "precision")])
        if kind in ("span", "done"):
            return _span(runs, key, ("done",) if kind == "done" else ("done", "diverged"))
        if kind == "networks":
            sizes = _values(runs, key)
            return f"{task.networks(sizes)}, " if sizes else ""
        return _distinct(runs, key) or "not recorded"

    return re.sub(r"\{(\w+):?(\w*)\}", said, template)


def _values(runs: Iterable[Line], key: str) -> list[str]:
    return sorted({run[key] for run in runs if run.get(key)})


def _distinct(runs: Iterable[Line], key: str) -> str:
    return format.listing(map(escaped, _values(runs, key)))


def _span(runs: Iterable[Line], key: str, states: Iterable[str] = ("done", "diverged")) -> str:
    """`100 k`, `100 k to 1.2 M`."""
    numbers = [float(run[key]) for run in runs if run.get(key) and run["state"] in states]
    if not numbers:
        return "not recorded"
    low, high = format.short_count(min(numbers)), format.short_count(max(numbers))
    return low if low == high else f"{low} to {high}"


def _tally(scale: str, tables: Sequence[Written]) -> str:
    judged = [cell for one in tables for cell in one.cells if cell.direction]
    counts = [(word, sum(cell.verdict in verdicts for cell in judged)) for word, _, verdicts in _GROUPS]
    phrase = ", ".join(f"{word} {count}" for word, count in counts if count)
    distinct = len({cell.comparison for cell in judged})
    shared = (
        f" They rest on {format.plural(distinct, 'comparison')} of runs: where several tables have the same row, or "
        "print different values for it, one comparison is judged against each."
        if distinct < len(judged)
        else ""
    )
    resolved = [cell for cell in judged if cell.verdict.is_resolved]
    left = (
        f" Holm's correction over each table leaves {sum(stands(cell.adjusted) for cell in resolved) or 'none'} of the "
        f"{len(resolved)} resolved."
        if resolved
        else ""
    )
    excluding = sum(excludes_published(cell.verdict, cell.difference, cell.paper_difference) for cell in judged)
    excluded = (
        f" Of the intervals of those not resolved {excluding or 'none'} {'does' if excluding == 1 else 'do'} not hold "
        "the published difference."
        if any(cell.verdict is Verdict.not_resolved for cell in judged)
        else ""
    )
    directions = format.plural(len(judged), "published direction")
    return f"**Of {directions} at scale {scale}: {phrase or 'none to judge'}.**{left}{excluded}{shared}"


def _counts(results: Path, tables: Sequence[Written]) -> Iterator[str]:
    """Into which groups the cells of each table fall, all but those of its baseline; and how many are resolved after
    Holm's correction."""
    yield f"| table | compared | {' | '.join(word for word, _, _ in _GROUPS)} | resolved after Holm |"
    yield "| :--- | ---: |" + " ---: |" * (len(_GROUPS) + 1)
    for one in tables:
        compared = [cell for cell in one.cells if cell.verdict is not Verdict.baseline]
        counts = [len(compared), *(sum(cell.verdict in verdicts for cell in compared) for _, _, verdicts in _GROUPS)]
        counts.append(sum(stands(cell.adjusted) for cell in compared))
        yield f"| {_name(results, one)} | {' | '.join(str(count) for count in counts)} |"


def _table(results: Path, one: Written) -> Iterator[str]:
    baseline = one.cells[0].baseline
    columns = dict.fromkeys(cell.column for cell in one.cells)
    at = "" if len(columns) > 1 else f" at {next(iter(columns))}"
    yield from (*_heading(results, one), "")
    if one.changed_settings:
        arguments = " ".join(f"--set {shlex.quote(argument)}" for argument in one.changed_settings)
        yield from (f"Trained with `{arguments}`, not with the recipe's settings: not counted above.", "")
    metrics = dict.fromkeys(cell.metric for cell in one.cells)
    better = "; ".join(f"{metric.words}, {metric.better} is better" for metric in metrics)
    yield from (f"Differences to {escaped(baseline + at)} with their 95 % intervals; {better}.", "")
    for _, heading, verdicts in _GROUPS:
        cells = [cell for cell in one.cells if cell.verdict in verdicts]
        if cells:
            yield from (f"{heading}:", "", *(f"- {_sentence(cell, len(columns) > 1)}" for cell in cells), "")
    for path in one.pictures:
        yield from (f"![{escaped(path.stem)}]({_address(results, path)})", "")


def _figure(results: Path, one: Written) -> Iterator[str]:
    yield from (*_heading(results, one), "")
    if one.caption:
        yield from (escaped(one.caption), "")
    drawn: dict[str, list[str]] = {}
    for run in one.runs:
        drawn.setdefault(f"{escaped(run['column'])}, seed {run['seed']}", []).append(escaped(run["row"]))
    phrase = format.listing(f"{format.listing(rows)}, {where}" for where, rows in drawn.items())
    yield from (f"Drawn from {phrase}.", "")
    for path in one.pictures:
        yield from (f"![{escaped(path.stem)}]({_address(results, path)})", "")


def _heading(results: Path, one: Written) -> Iterator[str]:
    """Name, title, and links to the files."""
    yield f"### {escaped(one.paper)}, {escaped(one.name)}"
    yield ""
    links = ", ".join(_link(results, path, path.name) for path in one.files)
    yield f"{one.title}. {links}" if one.title else links


def _sentence(cell: WrittenCell, several_columns: bool) -> str:
    """`pre-ln+comt at tiny: 5.07 % lower [-5.95, -4.20], Holm's p 0.004; in the paper 11.1 % lower (c4/130m).`"""
    who = f"{cell.row} at {cell.column}" if several_columns else cell.row
    return escaped(f"{who}: {'; '.join([_ours(cell), *_paper(cell)])}.")


def _ours(cell: WrittenCell) -> str:
    if cell.difference is None:
        return cell.verdict.value if cell.state == "done" else cell.state
    apart = cell.difference
    phrase = _apart(apart.mean, cell.unit)
    if apart.low is not None and apart.high is not None:
        phrase += f" [{format.signed(apart.low)}, {format.signed(apart.high)}]"
    if cell.verdict.is_resolved and cell.adjusted is not None:
        phrase += f", Holm's p {format.probability(cell.adjusted)}"
    least = detectable(apart, cell.unit)
    if cell.verdict is Verdict.not_resolved and least is not None:
        phrase += f"; {apart.n} seeds would show {format.detectable(least, cell.unit)}"
    return f"{phrase}, {_REMARKS[cell.verdict]}" if cell.verdict in _REMARKS else phrase


_REMARKS = {
    Verdict.one_seed_same: "the paper's direction",
    Verdict.one_seed_opposite: "against the paper's direction",
    **{verdict: verdict.value for word, _, verdicts in _GROUPS if word == "diverged" for verdict in verdicts},
}
"""What verdicts say beyond the heading that they stand under."""


def _paper(cell: WrittenCell) -> Iterator[str]:
    """What the paper has beside it: a difference, or which of the two collapsed."""
    if cell.paper is None:
        return
    where = f"({cell.paper_column})" if cell.paper_column != cell.column else ""
    if cell.metric.collapsed(cell.paper):
        phrase = f"in the paper collapsed, {format.value(cell.paper)}"
    elif cell.metric.collapsed(cell.paper_baseline):
        phrase = f"in the paper {format.value(cell.paper)} where {cell.baseline} collapsed"
    elif cell.paper_difference is not None:
        phrase = f"in the paper {_apart(cell.paper_difference, cell.unit)}"
    else:
        return
    outside = excludes_published(cell.verdict, cell.difference, cell.paper_difference)
    yield f"{phrase} {where}".rstrip() + (", outside of the interval" if outside else "")


def _apart(difference: float, unit: DifferenceUnit) -> str:
    """`5.07 % lower`, `0.25 points higher`, `equal`."""
    number = format.signed(difference).lstrip("+-")
    return f"{number} {unit.spoken} {'lower' if difference < 0 else 'higher'}" if float(number) else "equal"


def _others(results: Path) -> Iterator[str]:
    """What has no scale: residual connections before any training, figures of other models, and measured speeds."""
    diagnosis = results / "diagnose" / "diagnose.md"
    pictures = sorted((results / "figures").glob("*/*.png"))
    speeds = sorted((results / "bench").glob("*/*.md"))
    named = [(diagnosis, "residual connections at the start of training")] if diagnosis.is_file() else []
    named += [(path, f"{path.parent.name}, {path.stem}") for path in [*pictures, *speeds]]
    if named:
        yield from ("## Besides", "")
        yield from (f"- {_link(results, path, text)}" for path, text in named)


def _name(results: Path, one: Written) -> str:
    page = next((path for path in one.files if path.suffix == ".md"), one.files[0])
    return _link(results, page, f"{one.paper}, {one.name}")


def _link(results: Path, path: Path, text: str) -> str:
    return f"[{escaped(text)}]({_address(results, path)})"


def _address(results: Path, path: Path) -> str:
    """The relative address, with signs that end a link spelled out."""
    return quote(path.relative_to(results).as_posix(), safe="/+-._")
