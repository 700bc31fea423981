"""A table in sentences: how it was made, and which directions hold. All computed from its cells."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from comt_cli.report import format
from comt_cli.report.frame import Record
from comt_cli.report.layout import STANDS, UNSETTLED, Sheet
from comt_cli.report.statistics import POWER
from comt_cli.report.verdict import Verdict, excludes_published, stands

_CONTENT_DIGITS = 12
"""Of a hash of data, that a page shows; the CSV of the runs has it whole."""
_PAPERS = {"comt": "CoMT", "transponder": "Transponder", "sas": "SAS"}
_PRINTED = re.compile(r"table([A-Z]?\d+)")


def paper_name(paper: str) -> str:
    """A paper as one speaks of it, by its method: `CoMT` for `comt`."""
    return _PAPERS.get(paper, paper)


def source(attrs: Mapping[Any, Any]) -> str:
    """Which table this is: `Table 3 of CoMT (recipe comt/table3.yaml)`, or of one's own its recipe alone."""
    if attrs["paper"] is None:
        return f"recipe {attrs['recipe_file']}"
    number, paper = _PRINTED.fullmatch(attrs["printed_table"] or ""), paper_name(attrs["paper"])
    return f"{f'Table {number[1]} of {paper}' if number else paper} (recipe {attrs['recipe_file']})"


def origin(sheet: Sheet, shown: Collection[str]) -> str:
    """Where the table comes from, what a cell shows, on what it was made; explains the columns that are `shown`.

    Scale and seeds are beside it, in what was trained.
    """
    return " ".join(_origin(sheet, shown))


def _origin(sheet: Sheet, shown: Collection[str]) -> Iterator[str]:
    attrs, baseline = sheet.attrs, sheet.attrs["baseline"]
    said = source(attrs)
    yield f"{said[0].upper()}{said[1:]}."
    metrics = _metrics(sheet)
    phrase = metrics[0] if len(metrics) == 1 else f"({'; '.join(metrics)})"
    median = ", and the median over the same seeds" if "median" in shown else ""
    yield f"Cells show {phrase}: mean ± standard error (number of seeds){median}."
    yield from dict.fromkeys(filter(None, (_ending(sheet, column) for column in sheet.columns)))
    if "difference" in shown:
        pairings = dict.fromkeys(sheet.unit(column).paired(baseline) for column in sheet.columns)
        yield f"Differences are paired by seed, {', or '.join(pairings)}."
    if "detectable" in shown:
        yield f"Detectable: the smallest true differences that as many seeds resolve with probability {POWER:g}."
    if "equal_time" in shown:
        yield (
            f"At equal time: the same difference to {baseline} on validation data, when both have trained as long as "
            "the quicker took for all its steps; the time of training as measured, evaluations apart, with the kernels "
            "and devices that were used; what else these did is not known. The slower one's learning rate has not "
            "fallen to the end by then, where a schedule falls: that is to its disadvantage, and a fair comparison "
            "trains the quicker one for more steps (docs/statistics.md)."
        )
    yield from rules(sheet)
    if "beside" in shown:
        found = (sheet.beside(column) for column in sheet.columns)
        yield from dict.fromkeys(metric.remark for metric in found if metric is not None and metric.remark is not None)
    if "parameters" in shown:
        printed = (
            f"; the paper's printed increase beside them is that of the paper's column, {sheet.task.differs} at the "
            "smaller scales"
        )
        has_printed = any(each["paper_increase"] for each in sheet.records)
        yield f"Parameters are those beyond {sheet.task.plain}{printed if has_printed else ''}."
    if {"step", "compiled"} & {*shown}:
        settled = not any(UNSETTLED in line.texts[key] for line in sheet.lines for key in ("step", "compiled")
                          if key in line.texts)  # fmt: skip
        yield costs_rule(attrs, are_settled=settled)
    if attrs["devices"]:
        commits = f", commit {format.listing(attrs['commits'])}" if attrs["commits"] else ""
        yield f"Trained on {format.listing(attrs['devices'])}{commits}."
    if attrs["contents"]:
        yield f"Content of the data: {format.listing(content[:_CONTENT_DIGITS] for content in attrs['contents'])}."


def _ending(sheet: Sheet, column: str) -> str | None:
    """Which weights the runs of a column ended with, where these are not the last."""
    train = sheet.spec(column).settings.train
    if train.select == "best":
        best = sheet.task.metrics[sheet.task.metric].brief
        return (
            f"Runs end with the weights whose {best} on validation was the best: the same data chose and judges them."
        )
    if train.averaged_steps:
        return f"Runs end with the mean of the weights after {format.listing(map(str, train.averaged_steps))} steps."
    return None


def _metrics(sheet: Sheet) -> list[str]:
    """What cells show and which way it is better; of several metrics each with its columns."""
    columns: dict[str, list[str]] = {}
    for column, key in sheet.metrics().items():
        columns.setdefault(key, []).append(column)
    phrases = []
    for key, names in columns.items():
        metric = sheet.task.metrics[key]
        where = f"{format.listing(names)}: " if len(columns) > 1 else ""
        phrases.append(f"{where}{metric.words} ({metric.better} is better)")
    return phrases


def costs_rule(attrs: Mapping[Any, Any], *, are_settled: bool) -> str:
    """What the columns of costs are, and of which device."""
    commits = f" at commit {format.listing(attrs['costs_commits'])}" if any(attrs["costs_commits"]) else ""
    doubt = "" if are_settled else f" {UNSETTLED}: not settled, since too few rounds were timed for an interval."
    return (
        "FLOPs of matrix products, bytes that compiled passes read and write, what a forward pass saves for the "
        "backward pass, and times of a training step, as these runs train and compiled, over those of "
        f"{attrs['baseline']}; ± is the 90 % interval of a ratio of times.{doubt} Measured on "
        f"{format.listing(attrs['costs_devices'])}{commits}."
    )


def rules(sheet: Sheet) -> Iterator[str]:
    """What the mark behind a verdict and what bold mean, where there are any."""
    if any(stands(each["p_value_holm"]) for each in sheet.records):
        yield f"{STANDS}: resolved after Holm's correction over all differences of the table, too."
    if any(line.best for line in sheet.lines):
        yield f"Bold: the best mean over all seeds, where it is resolved as better than {sheet.attrs['baseline']}."


Groups = Sequence[tuple[str, tuple[Verdict, ...]]]

_NOT_RESOLVED = ("not resolved, since the interval spans zero", (Verdict.not_resolved,))
_WITHOUT_RESULT = ("without a result so far", (Verdict.no_result,))
_DIRECTED: Groups = (
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
    _WITHOUT_RESULT,
    ("without a baseline of ours to compare with", (Verdict.no_baseline, Verdict.no_common_seed)),
)
_UNDIRECTED: Groups = (
    ("equal to the baseline in the paper", (Verdict.equal_in_paper,)),
    ("collapsed in the paper as its baseline did", (Verdict.both_collapsed_in_paper,)),
    ("without a baseline in the paper", (Verdict.no_baseline_in_paper,)),
    ("diverged here as in the paper", (Verdict.diverged_in_both,)),
    ("diverged here", (Verdict.diverged_here,)),
    _WITHOUT_RESULT,
)
_OWN: Groups = (
    ("better", (Verdict.better,)),
    ("worse", (Verdict.worse,)),
    _NOT_RESOLVED,
    ("of one seed", (Verdict.one_seed,)),
    ("diverged", (Verdict.diverged,)),
    ("with a baseline that diverged", (Verdict.baseline_diverged,)),
    _WITHOUT_RESULT,
    ("without a baseline to compare with", (Verdict.no_baseline, Verdict.no_common_seed)),
)
_ONE_SEED = {Verdict.one_seed_same, Verdict.one_seed_opposite, Verdict.one_seed_equal, Verdict.one_seed}


def verdict(sheet: Sheet) -> str:
    """How many of the published directions hold, do not hold, or are not resolved by these runs, by name.

    Of rows with a printed value but no direction why there is none, and of rows without a printed value which are
    better or worse than the baseline: every row is named, but the baseline.
    """
    sentences = list(_verdicts(sheet))
    if not sentences:
        return "There is nothing to compare with the baseline."
    verdicts = [each["_verdict"] for each in sheet.records]
    if _ONE_SEED & {*verdicts}:
        sentences.append("One seed shows no error, so nothing is claimed from it.")
    if resolved := sum(each.is_resolved for each in verdicts):
        left = sum(stands(each["p_value_holm"]) for each in sheet.records) or "none"
        sentences.append(
            "Each interval is taken by itself: of twenty differences that are not there, one would seem resolved. "
            f"Holm's correction over the table leaves {left} of {resolved} resolved."
        )
    sentences += _detectable(sheet)
    if sheet.attrs["scale"] != "paper" and sheet.attrs["paper"] is not None:
        scale = sheet.attrs["scale"]
        sentences.append(f"These runs are not of the paper's size: this is said of scale {scale} alone.")
    return " ".join(sentences)


def _verdicts(sheet: Sheet) -> Iterator[str]:
    """Of the cells with a published direction, of those with a printed value but none, and of all others."""
    baseline, is_published = sheet.attrs["baseline"], sheet.attrs["paper"] is not None
    directed = [each for each in sheet.records if each["_direction"]]
    others = [each for each in sheet.records if not each["_direction"]]
    if directed:
        counted = format.plural(len(directed), "published direction")
        yield f"Of {counted} against {baseline}, {_phrase(sheet, directed, _DIRECTED)}."
        outside = [
            each for each in directed if excludes_published(each["_verdict"], each["_apart"], each["_paper_apart"])
        ]
        if outside:
            named = format.listing(named_cells(sheet, outside))
            yield f"Not resolved, with the published difference outside of the interval: {named}."
    elif is_published:
        yield "The paper gives no direction to compare with."
    if phrase := _phrase(sheet, [each for each in others if each["paper"] is not None], _UNDIRECTED):
        yield f"With a printed value but no direction, {phrase}."
    if phrase := _phrase(sheet, [each for each in others if each["paper"] is None], _OWN):
        yield f"Against {baseline}{' and without a printed value' if is_published else ''}, {phrase}."


def _detectable(sheet: Sheet) -> Iterator[str]:
    """Which differences as many seeds would resolve where they did not resolve what there is."""
    found: dict[int, list[str]] = {}
    for each in sheet.records:
        if each["_verdict"] is Verdict.not_resolved and each["_apart"] is not None and each["_detectable"] is not None:
            least = format.detectable(each["_detectable"], each["_metric"].difference)
            found.setdefault(each["_apart"].n, []).append(f"{named_cells(sheet, [each])[0]} {least}")
    for n, differences in found.items():
        yield f"With probability {POWER:g}, {n} seeds would show: {'; '.join(differences)}."


def _phrase(sheet: Sheet, records: Sequence[Record], groups: Groups) -> str:
    found = [(words, [each for each in records if each["_verdict"] in verdicts]) for words, verdicts in groups]
    return "; ".join(
        f"{words}: {len(each)} ({format.listing(named_cells(sheet, each))})" for words, each in found if each
    )


def named_cells(sheet: Sheet, records: Sequence[Record]) -> list[str]:
    """Cells by name: `pre-ln+comt`, and in a table of several columns `pre-ln+comt at tiny`."""
    several = len(sheet.columns) > 1
    return [f"{each['row']} at {each['column']}" if several else str(each["row"]) for each in records]
