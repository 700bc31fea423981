"""The overview of a results folder: main results, what was trained on what, and every verdict at every scale.

It is made from the files below the folder only, so that any clone can make it again, with equal bytes.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from comt_cli.errors import UserError
from comt_cli.files import write_changed
from comt_cli.report import format
from comt_cli.report.caption import templates
from comt_cli.report.statistics import ALPHA, POWER, Verdict, excludes_published, stands
from comt_cli.report.written import Line, Reader, Written, WrittenCell, written_below
from comt_cli.tasks import tasks

if TYPE_CHECKING:
    import jinja2

HIGHLIGHTS = "highlights.csv"
"""Below the results: the cells with which an overview begins, in order: `table`, `row`, `column`, `method`, `on`."""
SUPERSEDED = "superseded.csv"
"""Below the results: runs of one id that ended with several numbers, of which the tables keep one."""
NOT_ARCHIVED = "not-archived.csv"  # below a scale: the runs of its tables that are in no archive
_TILES = 12
ENDED = ("done", "diverged")

GROUPS: Mapping[str, tuple[Verdict, ...]] = {
    "agree": (Verdict.agrees,),
    "disagree": (Verdict.disagrees,),
    "better": (Verdict.better,),
    "worse": (Verdict.worse,),
    "not resolved": (Verdict.not_resolved,),
    "one seed": tuple(each for each in Verdict if each.is_of_one_seed),
    "diverged": tuple(each for each in Verdict if "diverged" in each),
    "no result": (Verdict.no_result, Verdict.no_baseline, Verdict.no_common_seed),
    "no direction": (Verdict.no_baseline_in_paper, Verdict.equal_in_paper, Verdict.both_collapsed_in_paper),
}
"""Every verdict is in one group, except the baseline's."""


class Highlight(NamedTuple):
    """A main result: a cell of a table, and the name of its row."""

    method: str
    on: str
    cell: WrittenCell
    table: Written


@dataclass(frozen=True)
class Overview:
    """`written` are all tables and figures by scale; `trained` the lines of the table of what was trained on what."""

    results: Path
    written: Mapping[str, Sequence[Written]]
    highlights: Sequence[Highlight]
    trained: Sequence[Mapping[str, str]]
    scales: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, results: Path, reader: Reader) -> Overview:
        """Read everything below `results`. Raises `UserError` if no table can be read."""
        written = written_below(results, reader)
        if not written:
            damaged = next(iter(reader.damaged.values()), f"there are no tables below {results}")
            raise UserError(damaged, "comt train-lm --recipe table3.yaml makes one.")
        return cls(
            results,
            written,
            list(_highlights(results, written, reader)),
            [line for scale, found in written.items() for line in _trained(scale, found)],
            [_scale(results, scale, found, reader) for scale, found in written.items()],
        )


def write_overview(results: Path, reader: Reader | None = None) -> Path:
    """Write `<results>/README.md`; returns its path. An equal page is not rewritten. Raises `UserError` if there is no
    table below `results`, `StorageError` if the page cannot be written."""
    found, page = Overview.of(results, reader or Reader()), results / "README.md"
    besides = {  # what has no scale: residual connections before any training, figures of other models, and speeds
        "Residual connections at the start of training": sorted(results.glob("diagnose/diagnose.md")),
        "Other figures": sorted(results.glob("figures/*/*.png")),
        "Speed": sorted(results.glob("bench/*/*.md")),
    }
    made = template("overview.md.jinja", results)
    text = made.render(overview=found, command=command(results, "--overview"), besides=besides)
    write_changed(page, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")
    return page


def template(name: str, results: Path) -> jinja2.Template:
    """A template for a folder of results."""
    environment = templates()
    environment.filters |= {
        "probability": format.probability,
        "shell": shlex.quote,
        "drawn_from": _drawn_from,
        # with signs that end a link spelled out
        "address": lambda path: quote(path.relative_to(results).as_posix(), safe="/+-._"),
    }
    environment.tests["outside"] = lambda cell: excludes_published(cell.verdict, cell.difference, cell.paper_difference)
    environment.globals |= {
        "alpha": ALPHA,
        "power": POWER,
        "groups": GROUPS,
        "ours": ours,
        "in_paper": in_paper,
        "counts": counts,
        "page_of": lambda one: next((path for path in one.files if path.suffix == ".md"), one.files[0]),
    }
    return environment.get_template(name)


def command(results: Path, option: str) -> str:
    """The `comt report` command that writes the page of this folder (`--overview`, `--html`), from the working
    directory."""
    return f"comt report {option} --results {shlex.quote(os.path.relpath(results))}"


def counts(one: Written) -> dict[str, int]:
    """The number of a table's cells in each group of verdicts."""
    return {word: sum(cell.verdict in verdicts for cell in one.cells) for word, verdicts in GROUPS.items()}


def _drawn_from(one: Written) -> str:
    drawn: dict[str, list[str]] = {}
    for run in one.runs:
        drawn.setdefault(f"{run['column']}, seed {run['seed']}", []).append(run["row"])
    return format.listing(f"{format.listing(rows)}, {where}" for where, rows in drawn.items())


def ours(cell: WrittenCell) -> str:
    """`-14.6 % [-17.0, -12.1]`, or the reason for a missing difference."""
    if cell.difference is None:
        return cell.verdict.value if cell.state == "done" else cell.state
    number, _, interval = format.difference(cell.difference).partition(" ")
    return f"{number} {cell.metric.difference.spoken} {interval}".rstrip()


def in_paper(cell: WrittenCell) -> str:
    """`-11.1 % (c4/130m)`, or which of the two collapsed; empty if the paper has no difference."""
    if cell.paper is None:
        return ""
    value, is_same = format.value(cell.paper), cell.paper_column == cell.column
    if cell.metric.collapsed(cell.paper):
        said = f"collapsed, {value}"
    elif cell.metric.collapsed(cell.paper_baseline):
        said = f"{value} where {cell.baseline} collapsed"
    elif cell.paper_difference is not None:
        said = f"{format.signed(cell.paper_difference)} {cell.metric.difference.spoken}"
    else:
        return ""
    return said if is_same else f"{said} ({cell.paper_column})"


def _highlights(results: Path, written: Mapping[str, Sequence[Written]], reader: Reader) -> Iterator[Highlight]:
    """The cells of `highlights.csv`; without it, the largest gains of the first scale's tables that are resolved after
    Holm's correction, one per table."""
    every = {one.path: one for found in written.values() for one in found}
    path = results / HIGHLIGHTS
    lines = reader.lines(path)
    try:
        for line in lines:
            table = every[line["table"]]
            at = {(cell.row, cell.column): cell for cell in table.cells}[line["row"], line["column"]]
            yield Highlight(line["method"], line["on"], at, table)
    except LookupError as error:
        reader.leave_out(path, error)
    if lines:
        return
    best: dict[tuple[str, str, str], Highlight] = {}
    for one in next(iter(written.values())):
        gains = [cell for cell in one.cells if improves(cell) and stands(cell.adjusted) and not one.changed_settings]
        if gains:
            cell = max(gains, key=_size)
            best.setdefault(cell.comparison, Highlight(cell.row, cell.column, cell, one))
    yield from sorted(best.values(), key=lambda each: -_size(each.cell))[:_TILES]


def improves(cell: WrittenCell) -> bool | None:
    """Whether a difference is an improvement; None if it is not resolved."""
    if cell.difference is None or not cell.verdict.is_resolved:
        return None
    return (cell.difference.mean < 0) == (cell.metric.better == "lower")


def _size(cell: WrittenCell) -> float:
    return abs(cell.difference.mean) if cell.difference else 0.0


def _trained(scale: str, written: Sequence[Written]) -> Iterator[Mapping[str, str]]:
    for task in tasks().values():
        own = [one for one in written if one.task is task]
        runs = list({run["id"]: run for one in own for run in one.runs if run["state"] in ENDED}.values())
        if runs:
            amount = _span(runs, task.unit.name, ("done",))
            yield {
                "scale": scale,
                "task": f"{re.sub('^an? ', '', task.model_kind)}s",
                "tables": str(sum(bool(one.cells) for one in own)),
                "networks": _filled("{model:networks}{parameters}", task.networks, runs),
                "data": _filled(task.trained_on, task.networks, runs),
                "length": f"{amount} {task.unit.name}" if amount[0].isdigit() else amount,
                "runs": str(len(runs)),
                "seeds": format.seeds(int(seed) for seed in values(runs, "seed")),
                "device": format.listing(values(runs, "device")) or "not recorded",
            }


def _span(runs: Sequence[Line], key: str, states: Iterable[str] = ENDED) -> str:
    """`100 k`, `100 k to 1.2 M`."""
    numbers = [float(run[key]) for run in runs if run.get(key) and run["state"] in states]
    ends = (min(numbers), max(numbers)) if numbers else ()
    return " to ".join(dict.fromkeys(map(format.short_count, ends))) or "not recorded"


def _filled(template: str, networks: Any, runs: Sequence[Line]) -> str:
    """A template such as `Task.trained_on`, filled with the runs' values of every column that it names."""

    def column(asked: re.Match[str]) -> str:
        key, kind = asked[1], asked[2]
        if key == "parameters":  # `1.2 M parameters, fp32`
            return ", ".join([f"{_span(runs, key)} parameters", *values(runs, "precision")])
        if kind == "span":
            return _span(runs, key)
        found = values(runs, key)
        if kind == "networks":
            return f"{networks(found)}, " if found else ""
        return format.listing(found) or "not recorded"

    return re.sub(r"\{(\w+):?(\w*)\}", column, template)


def values(lines: Iterable[Line], key: str) -> list[str]:
    """The values of a column, each once, sorted."""
    return sorted({line[key] for line in lines if line.get(key)})


def _scale(results: Path, scale: str, written: Sequence[Written], reader: Reader) -> dict[str, Any]:
    tables = [one for one in written if one.cells and not one.changed_settings]
    judged = [cell for one in tables for cell in one.cells if cell.direction]
    ended = {run["id"]: run for one in written for run in one.runs if run["state"] in ENDED}
    path, superseded = results / scale / NOT_ARCHIVED, reader.lines(results / SUPERSEDED)
    return {
        "name": scale,
        "written": written,
        "tables": tables,
        "judged": judged,
        "comparisons": len({cell.comparison for cell in judged}),
        "resolved": [cell for cell in judged if cell.verdict.is_resolved],
        "runs": len(ended),
        "commits": values(ended.values(), "git_commit"),
        "again": sum(line.get("id") in ended and f" {scale}/" in f" {line.get('tables')}" for line in superseded),
        "archives": sorted((results / scale).glob("*.tar.xz")),
        "notes": sorted((results / scale).glob("*/README.md")),
        "not_archived": (path, len(reader.lines(path))),
        "of_runs": {
            folder.name: sorted(folder.glob("*.png"))
            for folder in sorted((results / scale).glob("*/figures/*"))
            if folder.is_dir()
        },
    }
