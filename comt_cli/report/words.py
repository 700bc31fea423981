"""What a table says in sentences: how it was made, and which directions hold. All computed from the table."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from comt_cli.report import format
from comt_cli.report.costs import Costs
from comt_cli.report.entry import Entry
from comt_cli.report.layout import STANDS, UNSETTLED, Key
from comt_cli.report.statistics import POWER
from comt_cli.report.table import Table
from comt_cli.report.verdict import Verdict, excludes_published

_CONTENT_DIGITS = 12
"""Of a hash of data, that a page shows; the CSV of the runs has it whole."""


_PAPERS = {"comt": "CoMT", "transponder": "Transponder", "sas": "SAS"}
_PRINTED = re.compile(r"table([A-Z]?\d+)")


def paper_name(paper: str) -> str:
    """A paper as one speaks of it, by its method: `CoMT` for `comt`."""
    return _PAPERS.get(paper, paper)


def source(table: Table) -> str:
    """Which table this is: `Table 3 of CoMT (recipe comt/table3.yaml)`, or of one's own its recipe alone."""
    if table.paper is None:
        return f"recipe {table.recipe_file}"
    number = _PRINTED.fullmatch(table.printed_table or "")
    named = f"Table {number[1]} of {paper_name(table.paper)}" if number else paper_name(table.paper)
    return f"{named} (recipe {table.recipe_file})"


def scale(table: Table) -> str:
    """What the table's scale is."""
    return f"Scale {table.scale}: {table.scale_description.rstrip('.')}."


def origin(table: Table, shown: Collection[Key]) -> str:
    """Where the table comes from, what a cell shows, on what it was made; explains the columns that are `shown`.

    Scale and seeds stand beside it, in what was trained.
    """
    return " ".join(_origin(table, shown))


def _origin(table: Table, shown: Collection[Key]) -> Iterator[str]:
    said = source(table)
    yield f"{said[0].upper()}{said[1:]}."
    metrics = _metrics(table)
    phrase = metrics[0] if len(metrics) == 1 else f"({'; '.join(metrics)})"
    median = ", and the median over the same seeds" if "median" in shown else ""
    yield f"Cells show {phrase}: mean ± standard error (number of seeds){median}."
    yield from dict.fromkeys(filter(None, (_ending(table, column) for column in table.columns)))
    if "difference" in shown:
        pairings = dict.fromkeys(table.unit(column).paired(table.baseline) for column in table.columns)
        yield f"Differences are paired by seed, {', or '.join(pairings)}."
    if "detectable" in shown:
        yield f"Detectable: the smallest true differences that as many seeds resolve with probability {POWER:g}."
    if "equal_time" in shown:
        yield equal_time_rule(table)
    yield from filter(None, (holm_rule(table), bold_rule(table)))
    if "beside" in shown:
        found = (table.beside(column) for column in table.columns)
        yield from dict.fromkeys(metric.remark for metric in found if metric is not None and metric.remark is not None)
    if "parameters" in shown:
        printed = (
            f"; the paper's printed increase beside them is that of the paper's column, {table.task.differs} at the "
            "smaller scales"
        )
        yield f"Parameters are those beyond {table.task.plain}{printed if table.has_increases else ''}."
    if table.costs is not None and {"step", "compiled"} & {*shown}:
        yield costs_rule(table.costs, table.baseline)
    if table.devices:
        commits = f", commit {format.listing(table.commits)}" if table.commits else ""
        yield f"Trained on {format.listing(table.devices)}{commits}."
    if table.contents:
        yield f"Content of the data: {format.listing(content[:_CONTENT_DIGITS] for content in table.contents)}."


def _ending(table: Table, column: str) -> str | None:
    """Which weights the runs of a column ended with, where these are not the last."""
    train = table.specs[column].settings.train
    if train.select == "best":
        best = table.task.metrics[table.task.metric].brief
        return (
            f"Runs end with the weights whose {best} on validation was the best: the same data chose and judges them."
        )
    if train.averaged_steps:
        return f"Runs end with the mean of the weights after {format.listing(map(str, train.averaged_steps))} steps."
    return None


def _metrics(table: Table) -> list[str]:
    """What cells show and which way it is better; of several metrics each with its columns."""
    phrases = []
    for key in table.shown_metrics:
        metric = table.task.metrics[key]
        columns = [column for column in table.columns if table.metrics[column] == key]
        where = f"{format.listing(columns)}: " if len(table.shown_metrics) > 1 else ""
        phrases.append(f"{where}{metric.words} ({metric.better} is better)")
    return phrases


def equal_time_rule(table: Table) -> str:
    """What a difference at equal time is, and to whom it is unfair."""
    return (
        f"At equal time: the same difference to {table.baseline} on validation data, when both have trained as long as "
        "the quicker took for all its steps; the time of training as measured, evaluations apart, with the kernels and "
        "devices that were used; what else these did is not known. The slower one's learning rate has not fallen to "
        "the end by then, where a schedule falls: that is to its disadvantage, and a fair comparison trains the "
        "quicker one for more steps (docs/statistics.md)."
    )


def costs_rule(costs: Costs, baseline: str) -> str:
    """What the columns of costs are, and of which device."""
    commits = f" at commit {format.listing(costs.commits)}" if any(costs.commits) else ""
    doubt = "" if costs.are_settled else f" {UNSETTLED}: not settled, since too few rounds were timed for an interval."
    return (
        f"FLOPs of matrix products, bytes that compiled passes read and write, what a forward pass saves for the "
        f"backward pass, and times of a training step, as these runs train and compiled, over those of {baseline}; "
        f"± is the 90 % interval of a ratio of times.{doubt} Measured on {format.listing(costs.devices)}{commits}."
    )


def holm_rule(table: Table) -> str | None:
    """What the mark behind a verdict means, where there is one."""
    if not any(entry.stands for entry in table.entries.values()):
        return None
    return f"{STANDS}: resolved after Holm's correction over all differences of the table, too."


def bold_rule(table: Table) -> str | None:
    """What bold means, where anything is."""
    if not any(entry.best for entry in table.entries.values()):
        return None
    return f"Bold: the best mean over all seeds, where it is resolved as better than {table.baseline}."


def verdict(table: Table) -> str:
    """How many of the published directions hold, do not hold, or are not resolved by these runs, by name.

    Of rows with a printed value but no direction why there is none, and of rows without a printed value which are
    better or worse than the baseline: every row is named, but the baseline.
    """
    sentences = [*_published(table), *_undirected(table), *_own(table)]
    if not sentences:
        return "There is nothing to compare with the baseline."
    every = list(table.entries.values())
    if _any(every, Verdict.one_seed_same, Verdict.one_seed_opposite, Verdict.one_seed_equal, Verdict.one_seed):
        sentences.append("One seed shows no error, so nothing is claimed from it.")
    if resolved := sum(entry.verdict.is_resolved for entry in every):
        sentences.append(
            "Each interval is taken by itself: of twenty differences that are not there, one would seem resolved. "
            f"Holm's correction over the table leaves {sum(entry.stands for entry in every) or 'none'} of {resolved} "
            "resolved."
        )
    sentences += _detectable(table)
    if table.scale != "paper" and table.paper is not None:
        sentences.append(f"These runs are not of the paper's size: this is said of scale {table.scale} alone.")
    return " ".join(sentences)


def _published(table: Table) -> Iterator[str]:
    judged = [entry for entry in table.entries.values() if entry.direction]
    if judged:
        counted = format.plural(len(judged), "published direction")
        yield f"Of {counted} against {table.baseline}, {_phrase(table, judged, _GROUPS)}."
        excluding = [
            entry for entry in judged if excludes_published(entry.verdict, entry.difference, entry.paper_difference)
        ]
        if excluding:
            named = format.listing(_named(table, excluding, Verdict.not_resolved))
            yield f"Not resolved, with the published difference outside of the interval: {named}."
    elif table.paper is not None:
        yield "The paper gives no direction to compare with."


def _detectable(table: Table) -> Iterator[str]:
    """Which differences as many seeds would resolve where they did not resolve what there is."""
    found: dict[int, list[str]] = {}
    for entry in table.entries.values():
        if entry.verdict is Verdict.not_resolved and entry.difference is not None and entry.detectable is not None:
            least = format.detectable(entry.detectable, table.unit(entry.cell.column))
            found.setdefault(entry.difference.n, []).append(f"{_named(table, [entry], entry.verdict)[0]} {least}")
    for n, differences in found.items():
        yield f"With probability {POWER:g}, {n} seeds would show: {'; '.join(differences)}."


def _undirected(table: Table) -> Iterator[str]:
    printed = [entry for entry in table.entries.values() if not entry.direction and entry.paper is not None]
    if phrase := _phrase(table, printed, _UNDIRECTED_GROUPS):
        yield f"With a printed value but no direction, {phrase}."


def _own(table: Table) -> Iterator[str]:
    own = [entry for entry in table.entries.values() if not entry.direction and entry.paper is None]
    judged = [entry for entry in own if entry.verdict is not Verdict.baseline]
    if phrase := _phrase(table, judged, _OWN_GROUPS):
        without = " and without a printed value" if table.paper is not None else ""
        yield f"Against {table.baseline}{without}, {phrase}."


Groups = Sequence[tuple[str, tuple[Verdict, ...]]]

_NOT_RESOLVED = ("not resolved, since the interval spans zero", (Verdict.not_resolved,))

_GROUPS: Groups = (
    ("agreeing", (Verdict.agrees,)),
    ("disagreeing", (Verdict.disagrees,)),
    _NOT_RESOLVED,
    ("pointed to by one seed", (Verdict.one_seed_same,)),
    ("contradicted by one seed", (Verdict.one_seed_opposite,)),
    ("without a difference in one seed", (Verdict.one_seed_equal,)),
    ("diverged here as in the paper", (Verdict.diverged_in_both,)),
    ("diverged here but not in the paper", (Verdict.diverged_here,)),
    ("with a baseline that diverged here as in the paper", (Verdict.baseline_diverged_in_both,)),
    ("with a baseline that diverged here but not in the paper", (Verdict.baseline_diverged_here,)),
    ("without a result so far", (Verdict.no_result,)),
    ("without a baseline of ours to compare with", (Verdict.no_baseline, Verdict.no_common_seed)),
)
_UNDIRECTED_GROUPS: Groups = (
    ("equal to the baseline in the paper", (Verdict.equal_in_paper,)),
    ("collapsed in the paper as its baseline did", (Verdict.both_collapsed_in_paper,)),
    ("without a baseline in the paper", (Verdict.no_baseline_in_paper,)),
    ("diverged here as in the paper", (Verdict.diverged_in_both,)),
    ("diverged here", (Verdict.diverged_here,)),
    ("without a result so far", (Verdict.no_result,)),
)
_OWN_GROUPS: Groups = (
    ("better", (Verdict.better,)),
    ("worse", (Verdict.worse,)),
    _NOT_RESOLVED,
    ("of one seed", (Verdict.one_seed,)),
    ("diverged", (Verdict.diverged,)),
    ("with a baseline that diverged", (Verdict.baseline_diverged,)),
    ("without a result so far", (Verdict.no_result,)),
    ("without a baseline to compare with", (Verdict.no_baseline, Verdict.no_common_seed)),
)


def _phrase(table: Table, entries: Sequence[Entry], groups: Groups) -> str:
    found = [(wording, _named(table, entries, *verdicts)) for wording, verdicts in groups]
    return "; ".join(f"{wording}: {len(names)} ({format.listing(names)})" for wording, names in found if names)


def _named(table: Table, entries: Sequence[Entry], *verdicts: Verdict) -> list[str]:
    several = len(table.columns) > 1
    return [
        f"{entry.cell.row} at {entry.cell.column}" if several else entry.cell.row
        for entry in entries
        if entry.verdict in verdicts
    ]


def _any(entries: Sequence[Entry], *verdicts: Verdict) -> bool:
    return any(entry.verdict in verdicts for entry in entries)
