"""A table in sentences: what was trained, which directions hold, the footnotes of cells and the notes of the table."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from comt_cli.recipe.grid import OF_TEST, LoadedGrid
from comt_cli.report import format
from comt_cli.report.collect import ENDED, Cell, Run
from comt_cli.report.frame import Record, TableInfo, info_of, rows_of
from comt_cli.report.statistics import POWER, Verdict, excludes_published, stands
from comt_cli.runs.directory import FEW, PYTORCH, RunState
from comt_cli.runs.plan import RunSpec, point_in_words

if TYPE_CHECKING:
    import pandas as pd

_PAPERS = {"comt": "CoMT", "transponder": "Transponder", "sas": "SAS"}


def paper_name(paper: str) -> str:
    """A paper by its method: `CoMT` for `comt`."""
    return _PAPERS.get(paper, paper)


def source(info: TableInfo) -> str:
    """The name of a table: `Table 3 of CoMT (recipe comt/table3.yaml)`, or of one's own its recipe alone."""
    if info.paper is None:
        return f"Recipe {info.file}"
    number = re.fullmatch(r"table([A-Z]?\d+)", info.recipe.table or "")
    return f"{f'Table {number[1]} of ' if number else ''}{paper_name(info.paper)} (recipe {info.file})"


def of_runs(specs: Iterable[RunSpec], overrides: Sequence[str] = ()) -> str:
    """The runs of a figure: `pre-ln+comt: LLaMA tiny ...; seed 1; scale smoke`. Rows that share their network are named
    together; the method stands in brackets where the row's name does not say it. `overrides` are the `--set` arguments
    behind them."""
    specs = list(specs)
    rows: dict[str, dict[str, None]] = {}
    for spec in specs:
        is_named = spec.method["name"] in spec.row and spec.method_words == spec.method["name"]
        name = spec.row if is_named else f"{spec.row} ({spec.method_words})"
        rows.setdefault(spec.task.network_and_data(spec.settings), {})[name] = None
    scales = format.listing(dict.fromkeys(spec.scale for spec in specs))
    trained = "; ".join(f"{format.listing(names)}: {what}" for what, names in rows.items())
    return f"{trained}; {_circumstances({spec.seed for spec in specs}, scales, overrides)}"


def of_table(specs: Mapping[str, RunSpec], cells: Mapping[tuple[str, str], Cell], seeds: Collection[int],
             info: TableInfo) -> str:  # fmt: skip
    """The runs of a table, column by column where they differ: every row was trained like those of `specs`."""
    columns: dict[str, list[str]] = {}
    for column, spec in specs.items():
        parameters = cells[spec.row, column].average("parameters")
        size = [] if parameters is None else [f"{format.short_count(parameters)} parameters"]
        columns.setdefault(info.task.network_and_data(spec.settings, size), []).append(column)
    several = len(columns) > 1
    trained = "; ".join(f"{format.listing(names)}: {what}" if several else what for what, names in columns.items())
    return f"{trained}; {_circumstances(seeds, info.scale, info.changed)}"


def _circumstances(seeds: Collection[int], scale: str, overrides: Sequence[str]) -> str:
    changed = f"; with {' '.join(overrides)}" if overrides else ""
    return f"seed{'s' if len(seeds) > 1 else ''} {format.seeds(seeds)}; scale {scale}{changed}"


def verdict(cells: pd.DataFrame) -> str:
    """The number of rows of each verdict, with their names: of those with a published direction, those with a printed
    value but none, and all others; then what Holm's correction leaves, and what as many seeds would have shown."""
    info = info_of(cells)
    judged = [each for each in rows_of(cells) if each["row"] != info.baseline]
    if not judged:
        return "There is nothing to compare with the baseline."
    several = cells["column"].nunique() > 1

    def listed(chosen: Iterable[Record]) -> str:
        return format.listing(f"{each['row']} at {each['column']}" if several else each["row"] for each in chosen)

    directed = [each for each in judged if each["_direction"]]
    others = [each for each in judged if not each["_direction"]]
    own = f"Against {info.baseline}{'' if info.paper is None else ' and without a printed value'}"
    parts = {
        f"Of {format.plural(len(directed), 'published direction')} against {info.baseline}": directed,
        "With a printed value but no direction": [each for each in others if each["paper"] is not None],
        own: [each for each in others if each["paper"] is None],
    }
    said = []
    for begin, part in parts.items():
        found = {which: [each for each in part if each["_verdict"] is which] for which in Verdict}
        counted = "; ".join(f"{which}: {len(each)} ({listed(each)})" for which, each in found.items() if each)
        said += [f"{begin}, {counted}."] if part else []
    if outside := [each for each in directed
                   if excludes_published(each["_verdict"], each["_apart"], each["_paper_apart"])]:  # fmt: skip
        said.append(f"Not resolved, with the published difference outside of the interval: {listed(outside)}.")
    if any(each["_verdict"].is_of_one_seed for each in judged):
        said.append("One seed shows no error, so nothing is claimed from it.")
    if resolved := sum(each["_verdict"].is_resolved for each in judged):
        left = sum(stands(each["p_value_holm"]) for each in judged) or "none"
        said.append(f"Holm's correction over the table leaves {left} of {resolved} resolved.")
    shown: dict[int, list[str]] = {}
    for each in judged:
        if each["_verdict"] is Verdict.not_resolved and each["_detectable"] is not None:
            least = format.detectable(each["_detectable"], each["_metric"].difference)
            shown.setdefault(each["_apart"].n, []).append(f"{listed([each])} {least}")
    said += [f"With probability {POWER:g}, {n} seeds would show: {'; '.join(each)}." for n, each in shown.items()]
    if info.scale != "paper" and info.paper is not None:
        said.append(f"These runs are of scale {info.scale}, not of the paper's size.")
    return " ".join(said)


def footnotes(cells: pd.DataFrame) -> list[str]:
    """The remarks of all cells in order of appearance, each once; marks in a table count them from 1."""
    return list(dict.fromkeys(text for remarks in cells["_remarks"] for text in remarks))


def cell_notes(cell: Cell, record: Mapping[str, Any], info: TableInfo) -> Iterator[str]:
    """The footnotes of a cell, of which `record` has the numbers (`cells.cells_frame`)."""
    key, metric, apart = record["metric"], record["_metric"], record["_apart"]
    values, published = cell.values(key), info.recipe.rows[cell.row].published
    if cell.is_open and (ended := len(cell.having(*ENDED))):
        yield f"{ended} of the {len(cell.runs)} runs of its grid have ended: nothing is chosen from a part of them."
    if cell.points > 1 and cell.point is not None:
        every = "every point" if cell.without == cell.points else f"{cell.without} of {cell.points} points"
        lost = f"; {every} had a run that diverged, or that has no value"
        yield f"Chosen of its grid: {point_in_words(cell.point)}{lost if cell.without else ''}."
    if not cell.is_open:
        yield from _of_seeds(cell, values, key)
    if apart and apart.n < len(values):
        yield f"The difference is over the {format.plural(apart.n, 'seed')} that the baseline has too."
    if metric.collapsed(record["paper"]):
        limit = f"a {metric.brief} above {metric.collapsed_above:g}"
        yield f"Collapsed in the paper: {limit} is how a run that diverged looks there."
    if published is not None:
        yield f"Published: {published.metric} {published.baseline:g} to {published.value:g} of {published.of}."
    if "note" in record:
        yield record["note"]


def _of_seeds(cell: Cell, values: Mapping[int, float], key: str) -> Iterator[str]:
    """Seeds that diverged, are absent or ended without a value, and remarks of their evaluations."""
    seeds, lost = format.plural(len(cell.runs), "seed"), []
    for run in cell.having(RunState.diverged):
        result = run.result or {}
        loss = result.get("last_finite_loss")
        ending = "" if loss is None else f", last finite loss {loss:.2f}"
        lost.append(f"seed {run.spec.seed} at step {result.get('diverged_at', '?')}{ending}")
    if lost:
        apart = ", and the numbers are of the others alone" if values else ""
        yield f"{len(lost)} of {seeds} diverged ({'; '.join(lost)}){apart}."
    absent = [f"seed {run.spec.seed} is {run.state}" for run in cell.runs if run.state not in ENDED]
    if (lost or values) and absent:
        yield f"{len(cell.runs) - len(absent)} of {seeds} ended: {format.listing(absent)}."
    done = {run.spec.seed: run for run in cell.having(RunState.done)}
    reasons = {seed: run.reported("missing", key) for seed, run in done.items() if seed not in values}
    if values and reasons:
        none = (f"seed {seed} has none{f' ({why})' if why else ''}" for seed, why in reasons.items())
        yield f"{len(values)} of {seeds} have a value, and the numbers are of those alone: {format.listing(none)}."
    remarks = {seed: run.reported("remark", key) for seed, run in done.items()}
    if found := [f"seed {seed} {remark}" for seed, remark in remarks.items() if remark is not None]:
        yield f"S{format.listing(found)[1:]}."


def tried_values(grid: LoadedGrid) -> str:
    """`train.learning_rate 0.001 and 0.002`."""
    return "; ".join(f"{key} {format.listing(str(each) for each, _ in tried)}" for key, tried in grid.values.items())


def table_notes(runs: Sequence[Run], info: TableInfo) -> Iterator[str]:
    """In what a table differs from its whole recipe, what a grid tries, rows that train under other settings, and what
    makes numbers weak or not comparable."""
    yield from _selection(runs, info)
    if (grid := info.grid) is not None:
        best = f"A cell shows runs at the point with the best mean of {grid.metric} on validation data"
        trials = f"trials with seeds of their own ({format.seeds(grid.seeds)})" if grid.seeds else "its seeds"
        yield f"{'Sweep' if grid.seeds else 'Grid'}: {tried_values(grid)}. {best}, over {trials}."
        shown = dict.fromkeys(info.keys[run.spec.column] for run in runs)
        if same := [key for key in shown if not grid.seeds and not key.startswith(OF_TEST)]:
            yield f"The same validation data chose the points and give {format.listing(same)}, to their advantage."
    rows = list(info.recipe.rows)
    yield from other_settings(sorted((run.spec for run in runs), key=lambda spec: rows.index(spec.row)), info.baseline)
    yield from _comparability(runs, info.keys)


def _selection(runs: Sequence[Run], info: TableInfo) -> Iterator[str]:
    rows, columns = {run.spec.row for run in runs}, {run.spec.column for run in runs}
    if len(rows) < len(info.recipe.rows):
        which = ": those that were selected and have a choice" if info.has_trials else ""
        yield f"These are {len(rows)} of the recipe's {format.plural(len(info.recipe.rows), 'row')}{which}."
    if len(columns) < len(info.keys):
        yield f"These are {len(columns)} of the recipe's {format.plural(len(info.keys), 'column')}."
    if info.baseline not in rows:
        why = "was not selected, or has no choice" if info.has_trials else "is not among the selected rows"
        yield f"The baseline {info.baseline} {why}, so there are no differences of ours."
    if info.changed:
        yield f"Settings were changed on the command line: {', '.join(info.changed)}."


def _comparability(runs: Sequence[Run], metrics: Mapping[str, str]) -> Iterator[str]:
    """Few samples, several signatures of an evaluation, several libraries for products (`kernels.products`), several
    numerical versions (`NUMERICS`). `metrics` by column."""
    for count, split, what in dict.fromkeys(filter(None, (run.scored_on(metrics[run.spec.column]) for run in runs))):
        few = f": fewer than {FEW}, so a difference may be chance" if count < FEW else ""
        yield f"Scored on {count:,} {split} {what}{few}."
    signed: dict[str, dict[str, None]] = {}
    for run in runs:
        metric = metrics[run.spec.column]
        if (signature := run.reported("signatures", metric)) is not None:
            signed.setdefault(metric, {})[signature] = None
    for metric, found in signed.items():
        plural, apart = ("s", "; their numbers are not comparable") if len(found) > 1 else ("", "")
        yield f"Signature{plural} of {metric}: {format.listing(found)}{apart}."
    done = [run.result for run in runs if run.result]
    libraries = {str(result.get("products") or PYTORCH) for result in done}  # older results are PyTorch's
    if len(libraries) > 1:
        used = format.listing(sorted(libraries))
        yield f"Large fp32 matrices were multiplied by {used}: times are not comparable."
    versions = {str(result.get("numerics") or "unknown") for result in done}
    if len(versions) > 1:
        yield (
            f"Trained by code of several numerical versions ({format.listing(sorted(versions))}): equal settings may "
            "end in other last digits, which training amplifies."
        )


def other_settings(specs: Sequence[RunSpec], baseline: str) -> Iterator[str]:
    """Rows that train under other settings than the baseline of their column, and which settings those are; keys of a
    grid are none of them."""
    references = {spec.column: spec.settings.model_dump() for spec in specs if spec.row == baseline}
    differing: dict[str, set[str]] = {}
    for spec in specs:
        if (theirs := references.get(spec.column)) is not None:
            for section, values in spec.settings.model_dump().items():
                keys = {f"{section}.{key}" for key, value in values.items() if value != theirs[section][key]}
                differing.setdefault(spec.row, set()).update(keys - {*spec.point})
    for row, keys in differing.items():
        if keys:
            yield f"{row} differs from the baseline in settings too: {', '.join(sorted(keys))}."
