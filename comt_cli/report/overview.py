"""What a results folder comes to: its main results, what was trained on what, and every verdict at every scale.

All of it is made from the files below the folder alone, so that it can be made again in any clone, with equal bytes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import jinja2

from comt_cli.errors import UserError
from comt_cli.files import write_changed
from comt_cli.report import format
from comt_cli.report.markdown import escaped
from comt_cli.report.statistics import ALPHA, POWER
from comt_cli.report.verdict import Verdict, excludes_published, stands
from comt_cli.report.written import Line, Reader, Written, WrittenCell, scales_below, written_below
from comt_cli.tasks import tasks

HIGHLIGHTS = "highlights.csv"
"""Below the results: the cells that an overview begins with, in its order: `table`, `row`, `column`, `method`, `on`."""
SUPERSEDED = "superseded.csv"
"""Below the results: runs of one id that ended with several numbers, of which the tables keep one."""
NOT_ARCHIVED = "not-archived.csv"
"""Below a scale: the runs of its tables that no archive has."""
_DEFAULT = Path("runs/results")
"""The folder that the command line means where none is named."""
_TILES = 12
ENDED = ("done", "diverged")

GROUPS: Mapping[str, tuple[Verdict, ...]] = {
    "agree": (Verdict.agrees,),
    "disagree": (Verdict.disagrees,),
    "better": (Verdict.better,),
    "worse": (Verdict.worse,),
    "not resolved": (Verdict.not_resolved,),
    "one seed": (Verdict.one_seed_same, Verdict.one_seed_opposite, Verdict.one_seed_equal, Verdict.one_seed),
    "diverged": (
        *(Verdict.diverged, Verdict.diverged_here, Verdict.diverged_in_both),
        *(Verdict.baseline_diverged, Verdict.baseline_diverged_here, Verdict.baseline_diverged_in_both),
    ),
    "no result": (Verdict.no_result, Verdict.no_baseline, Verdict.no_common_seed),
    "no direction": (Verdict.no_baseline_in_paper, Verdict.equal_in_paper, Verdict.both_collapsed_in_paper),
}
"""Every verdict is in one, but that of the baseline itself."""


@dataclass(frozen=True)
class Highlight:
    """A main result: a cell of a table, and what its row is called."""

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
        """Read everything below `results`.

        Raises:
            UserError: there is no table there, or none that can be read.
        """
        written = {scale: found for scale in scales_below(results) if (found := written_below(results, scale, reader))}
        if not written:
            damaged = next(iter(reader.damaged.values()), None)
            raise UserError(
                damaged or f"there are no tables below {results}", "comt train-lm --recipe table3.yaml makes one."
            )
        return cls(
            results,
            written,
            list(_highlights(results, written, reader)),
            [line for scale, found in written.items() for line in _trained(scale, found)],
            [_scale(results, scale, found, reader) for scale, found in written.items()],
        )


def write_overview(results: Path, reader: Reader | None = None) -> Path:
    """Write `<results>/README.md`; returns its path. A page that would be the same is left alone.

    Raises:
        UserError: there is no table below `results`.
        StorageError: the page cannot be written.
    """
    found = Overview.of(results, reader or Reader())
    page = results / "README.md"
    text = template("overview.md.jinja", results).render(
        overview=found, command=command(results, "--overview"), besides=_besides(results)
    )
    write_changed(page, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")
    return page


def template(name: str, results: Path = _DEFAULT) -> jinja2.Template:
    """A template of this folder. It escapes what it shows in HTML; in Markdown the filter `md` does."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=jinja2.select_autoescape(["html.jinja"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "md": escaped,
        "plural": format.plural,
        "listing": format.listing,
        "probability": format.probability,
        "shell": shlex.quote,
        "drawn_from": _drawn_from,
        "address": lambda path: address(results, path),
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
    """The `comt report` that writes the page of this folder (`--overview`, `--html`), from the working directory."""
    whole, here = results.resolve(), Path.cwd()
    if whole == _DEFAULT.resolve():
        return f"comt report {option}"
    shown = whole.relative_to(here) if whole.is_relative_to(here) else results
    return f"comt report {option} --results {shlex.quote(str(shown))}"


def address(results: Path, path: Path) -> str:
    """The relative address, with signs that end a link spelled out."""
    return quote(path.relative_to(results).as_posix(), safe="/+-._")


def counts(one: Written) -> dict[str, int]:
    """How many cells of a table are in each group of verdicts."""
    return {word: sum(cell.verdict in verdicts for cell in one.cells) for word, verdicts in GROUPS.items()}


def _drawn_from(one: Written) -> str:
    """The runs of a figure: `comt, tiny, seed 1`."""
    drawn: dict[str, list[str]] = {}
    for run in one.runs:
        drawn.setdefault(f"{run['column']}, seed {run['seed']}", []).append(run["row"])
    return format.listing(f"{format.listing(rows)}, {where}" for where, rows in drawn.items())


def ours(cell: WrittenCell) -> str:
    """`-14.6 % [-17.0, -12.1]`, or why there is no difference."""
    if cell.difference is None:
        return cell.verdict.value if cell.state == "done" else cell.state
    number, _, interval = format.difference(cell.difference).partition(" ")
    return f"{number} {cell.unit.spoken} {interval}".rstrip()


def in_paper(cell: WrittenCell) -> str:
    """`-11.1 % (c4/130m)`, or which of the two collapsed; nothing where the paper has no difference."""
    if cell.paper is None:
        return ""
    where = f" ({cell.paper_column})" if cell.paper_column != cell.column else ""
    if cell.metric.collapsed(cell.paper):
        return f"collapsed, {format.value(cell.paper)}{where}"
    if cell.metric.collapsed(cell.paper_baseline):
        return f"{format.value(cell.paper)} where {cell.baseline} collapsed{where}"
    if cell.paper_difference is None:
        return ""
    return f"{format.signed(cell.paper_difference)} {cell.unit.spoken}{where}"


def _highlights(results: Path, written: Mapping[str, Sequence[Written]], reader: Reader) -> Iterator[Highlight]:
    """The cells that `highlights.csv` names; without it, of the first scale's tables the largest gains that are
    resolved after Holm's correction, one a table."""
    every = {one.path: one for found in written.values() for one in found}
    path = results / HIGHLIGHTS
    try:
        for line in (lines := reader.lines(path)):
            table = every[line["table"]]
            at = next(cell for cell in table.cells if (cell.row, cell.column) == (line["row"], line["column"]))
            yield Highlight(line["method"], line["on"], at, table)
    except (LookupError, StopIteration) as error:
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
    """Whether a difference is on the better side, where it is resolved."""
    if cell.difference is None or not cell.verdict.is_resolved:
        return None
    return (cell.difference.mean < 0) == (cell.metric.better == "lower")


def _size(cell: WrittenCell) -> float:
    return abs(cell.difference.mean) if cell.difference else 0.0


def _trained(scale: str, written: Sequence[Written]) -> Iterator[Mapping[str, str]]:
    """For each task of a scale what its runs that ended are of, each counted once."""
    for task in tasks().values():
        own = [one for one in written if one.task is task]
        runs = list({run["id"]: run for one in own for run in one.runs if run["state"] in ENDED}.values())
        if not runs:
            continue
        network, data, amount = (
            _filled(each, task.networks, runs)
            for each in ("{model:networks}{parameters}", task.trained_on, f"{{{task.unit.name}:done}}")
        )
        yield {
            "scale": scale,
            "task": f"{re.sub('^an? ', '', task.model_kind)}s",
            "tables": str(sum(bool(one.cells) for one in own)),
            "networks": network,
            "data": data,
            "length": f"{amount} {task.unit.name}" if amount[0].isdigit() else amount,
            "runs": str(len(runs)),
            "seeds": format.seeds(int(seed) for seed in values(runs, "seed")),
            "device": format.listing(values(runs, "device")) or "not recorded",
        }


def _filled(template: str, networks: Any, runs: Sequence[Line]) -> str:
    """A template such as `Task.trained_on`: what the runs have in every column that it names."""

    def column(asked: re.Match[str]) -> str:
        key, kind = asked[1], asked[2]
        if key == "parameters":  # `1.2 M parameters, fp32`
            return ", ".join([f"{_span(runs, key)} parameters", *values(runs, "precision")])
        if kind in ("span", "done"):
            return _span(runs, key, ("done",) if kind == "done" else ENDED)
        if kind == "networks":
            sizes = values(runs, key)
            return f"{networks(sizes)}, " if sizes else ""
        return format.listing(values(runs, key)) or "not recorded"

    return re.sub(r"\{(\w+):?(\w*)\}", column, template)


def values(lines: Iterable[Line], key: str) -> list[str]:
    """The values of a column, each once, in order."""
    return sorted({line[key] for line in lines if line.get(key)})


def _span(runs: Iterable[Line], key: str, states: Iterable[str] = ENDED) -> str:
    """`100 k`, `100 k to 1.2 M`."""
    numbers = [float(run[key]) for run in runs if run.get(key) and run["state"] in states]
    if not numbers:
        return "not recorded"
    low, high = format.short_count(min(numbers)), format.short_count(max(numbers))
    return low if low == high else f"{low} to {high}"


def _scale(results: Path, scale: str, written: Sequence[Written], reader: Reader) -> dict[str, Any]:
    """What `scale.md.jinja` says of a scale: its tables and figures, and how many verdicts of each kind there are."""
    tables = [one for one in written if one.cells and not one.changed_settings]
    judged = [cell for one in tables for cell in one.cells if cell.direction]
    ended = {run["id"]: run for one in written for run in one.runs if run["state"] in ENDED}
    there = [task for task in tasks().values() if any(one.task is task for one in written)]
    path = results / scale / NOT_ARCHIVED
    return {
        "name": scale,
        "written": written,
        "tables": tables,
        "tasks": [task.at_scale[scale] for task in there if scale in task.at_scale],
        "judged": judged,
        "comparisons": len({cell.comparison for cell in judged}),
        "resolved": [cell for cell in judged if cell.verdict.is_resolved],
        "runs": len(ended),
        "commits": values(ended.values(), "git_commit"),
        "again": _trained_again(results, scale, ended, reader),
        "archives": sorted((results / scale).glob("*.tar.xz")),
        "not_archived": (path, len(reader.lines(path))),
        "of_runs": {
            folder.name: sorted(folder.glob("*.png"))
            for folder in sorted((results / scale).glob("*/figures/*"))
            if folder.is_dir()
        },
    }


def _trained_again(results: Path, scale: str, shown: Mapping[str, Line], reader: Reader) -> list[float]:
    """Of the runs that are `shown`, those of which a table of this scale once had another number, as `superseded.csv`
    has it: how far the two are apart, in per cent, and how far in the middle and at most."""
    path = results / SUPERSEDED
    try:
        lines = [line for line in reader.lines(path) if line["id"] in shown and f" {scale}/" in f" {line['tables']}"]
        ends = [(float(line["before"]), float(line["after"])) for line in lines]
        apart = [100 * (max(pair) / min(pair) - 1) for pair in ends]
    except (KeyError, ValueError, ZeroDivisionError) as error:
        reader.leave_out(path, error)
        return []
    return [len(apart), median(apart), max(apart)] if apart else []


def _besides(results: Path) -> dict[str, list[Path]]:
    """What has no scale: residual connections before any training, figures of other models, and measured speeds."""
    found = {
        "Residual connections at the start of training": results.glob("diagnose/diagnose.md"),
        "Figures of trained networks": results.glob("figures/*/*.png"),
        "Speed": results.glob("bench/*/*.md"),
    }
    return {title: sorted(paths) for title, paths in found.items()}
