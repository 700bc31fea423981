"""A table in sentences: what was trained, where the numbers come from, which directions hold, footnotes and notes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from comt_cli.recipe.grid import OF_TEST, LoadedGrid
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.schema import Published
from comt_cli.report import format
from comt_cli.report.collect import ENDED, Cell, Run
from comt_cli.report.costs import is_settled
from comt_cli.report.frame import Record, rows_of
from comt_cli.report.statistics import POWER, Paired
from comt_cli.report.verdict import Verdict, excludes_published, stands
from comt_cli.runs.directory import FEW, PYTORCH, RunState
from comt_cli.runs.plan import RunSpec, point_in_words
from comt_cli.tasks.base import Metric
from comt_cli.words import in_words

if TYPE_CHECKING:
    import pandas as pd

_CONTENT_DIGITS = 12
"""Of a hash of data, that a page shows; the CSV of the runs has it whole."""
_PAPERS = {"comt": "CoMT", "transponder": "Transponder", "sas": "SAS"}
_PRINTED = re.compile(r"table([A-Z]?\d+)")
STANDS = "*"
"""Behind a verdict that holds after Holm's correction over the table, too."""
UNSETTLED = "?"
"""Behind a ratio of times that were taken in too few rounds for an interval."""


def paper_name(paper: str) -> str:
    """A paper by its method: `CoMT` for `comt`."""
    return _PAPERS.get(paper, paper)


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


def of_table(cells: pd.DataFrame) -> str:
    """The runs of a table, column by column where they differ: every row was trained like the baseline."""
    columns: dict[str, list[str]] = {}
    attrs = cells.attrs
    for column in dict.fromkeys(cells["column"]):
        parameters = _parameters(cells, column)
        size = [] if parameters is None else [f"{format.short_count(parameters)} parameters"]
        spec: RunSpec = attrs["specs"][column]
        columns.setdefault(spec.task.network_and_data(spec.settings, size), []).append(column)
    several = len(columns) > 1
    trained = "; ".join(f"{format.listing(names)}: {what}" if several else what for what, names in columns.items())
    return f"{trained}; {_circumstances(attrs['seeds'], attrs['scale'], attrs['overrides'])}"


def _circumstances(seeds: Collection[int], scale: str, overrides: Sequence[str]) -> str:
    changed = f"; with {' '.join(overrides)}" if overrides else ""
    return f"seed{'s' if len(seeds) > 1 else ''} {format.seeds(seeds)}; scale {scale}{changed}"


def _parameters(cells: pd.DataFrame, column: str) -> float | None:
    """Those of the column's baseline, or of its first row where the baseline was not selected."""
    spec = cells.attrs["specs"][column]
    (cell,) = cells.loc[(cells["row"] == spec.row) & (cells["column"] == column), "_cell"]
    average: float | None = cell.average("parameters")
    return average


def setup(cells: pd.DataFrame, columns: Sequence[str]) -> str:
    """Model, data and length of the runs behind columns, in a sentence: the baseline's, since rows share them."""
    here, spec = cells.loc[cells["column"] == columns[0], "_cell"], cells.attrs["specs"][columns[0]]
    parameters = _parameters(cells, columns[0])
    size = f", {format.short_count(parameters)} parameters" if parameters else ""
    done = [run for cell in here for run in cell.runs if (run.result or {}).get("state") == "done"]
    seen = [number for run in done if (number := run.number(spec.task.unit.name)) is not None]
    between = list(dict.fromkeys(format.short_count(end) for end in (min(seen), max(seen)))) if seen else []
    return f"{spec.task.describe(spec.settings, size, ' to '.join(between))}. {papers_columns(cells, columns)}".rstrip()


def papers_columns(cells: pd.DataFrame, columns: Sequence[str]) -> str:
    """Which of the paper's columns ours are compared with, as a sentence; empty in a table without printed numbers."""
    if cells.attrs["paper"] is None:
        return ""
    named = dict(zip(cells["column"], cells["paper_column"], strict=True))
    compared = [in_words(name) for column in columns if (name := named[column])]
    return f"Paper: {', '.join(dict.fromkeys(compared))}." if compared else "The paper has no such column."


def source(attrs: Mapping[Any, Any]) -> str:
    """Which table this is: `Table 3 of CoMT (recipe comt/table3.yaml)`, or of one's own its recipe alone."""
    if attrs["paper"] is None:
        return f"Recipe {attrs['recipe_file']}"
    number, paper = _PRINTED.fullmatch(attrs["printed_table"] or ""), paper_name(attrs["paper"])
    return f"{f'Table {number[1]} of {paper}' if number else paper} (recipe {attrs['recipe_file']})"


def origin(cells: pd.DataFrame, shown: Collection[str]) -> str:
    """Where the table comes from, what a cell shows, on what it was made; explains the columns that are `shown`."""
    return " ".join(_origin(cells, shown))


def _origin(cells: pd.DataFrame, shown: Collection[str]) -> Iterator[str]:
    attrs = cells.attrs
    task, metrics, baseline = attrs["task"], attrs["metrics"], attrs["baseline"]
    columns = list(dict.fromkeys(cells["column"]))
    found = {key: [column for column in columns if metrics[column] == key] for key in dict.fromkeys(metrics.values())}
    phrases = [
        f"{f'{format.listing(names)}: ' if len(found) > 1 else ''}{task.metrics[key].words} "
        f"({task.metrics[key].better} is better)"
        for key, names in found.items() if names
    ]  # fmt: skip
    yield f"{source(attrs)}. Cells show {'; '.join(phrases)}: mean ± standard error (number of seeds)."
    yield from dict.fromkeys(filter(None, (_ending(attrs["specs"][column]) for column in columns)))
    if "difference" in shown:
        pairings = dict.fromkeys(task.metrics[metrics[column]].difference.paired(baseline) for column in columns)
        yield f"Differences are paired by seed, {', or '.join(pairings)}."
    if "detectable" in shown:
        yield f"Detectable: the smallest true differences that as many seeds resolve with probability {POWER:g}."
    if "equal_time" in shown:
        yield (
            f"At equal time: the difference to {baseline} on validation data when both have trained as long as the "
            "quicker took, without evaluations; the slower one's learning rate has not fallen to the end by then "
            "(docs/statistics.md)."
        )
    yield from rules(cells)
    if "beside" in shown:
        others = (task.metrics[metrics[column]].beside for column in columns)
        yield from dict.fromkeys(remark for key in others if key and (remark := task.metrics[key].remark))
    if "parameters" in shown:
        has_printed = any(cells["paper_increase"])
        printed = f", the paper's those of its own column, {task.differs} at the smaller scales" if has_printed else ""
        yield f"Parameters are those beyond {task.plain}{printed}."
    if {"step", "compiled"} & {*shown}:
        yield costs_rule(cells)
    if attrs["devices"]:
        commits = f", commit {format.listing(attrs['commits'])}" if attrs["commits"] else ""
        yield f"Trained on {format.listing(attrs['devices'])}{commits}."
    if attrs["contents"]:
        yield f"Content of the data: {format.listing(content[:_CONTENT_DIGITS] for content in attrs['contents'])}."


def _ending(spec: RunSpec) -> str | None:
    """Which weights the runs of a column ended with, where these are not the last."""
    train, task = spec.settings.train, spec.task
    if train.select == "best":
        best = task.metrics[task.metric].brief
        return f"Runs end with the weights whose validation {best} was the best: the same data chose and judges them."
    if train.averaged_steps:
        return f"Runs end with the mean of the weights after {format.listing(map(str, train.averaged_steps))} steps."
    return None


def costs_rule(cells: pd.DataFrame) -> str:
    """The columns of costs, and of which device they are."""
    attrs = cells.attrs
    commits = f" at commit {format.listing(attrs['costs_commits'])}" if any(attrs["costs_commits"]) else ""
    settled = all(is_settled(each) for each in cells["_costs"] if each is not None)
    doubt = "" if settled else f" {UNSETTLED}: not settled, since too few rounds were timed for an interval."
    return (
        "FLOPs of matrix products, bytes that compiled passes read and write, activations saved for the backward pass, "
        f"and times of a training step, uncompiled and compiled, over those of {attrs['baseline']}; ± is the 90 % "
        f"interval of a ratio of times.{doubt} Measured on {format.listing(attrs['costs_devices'])}{commits}."
    )


def rules(cells: pd.DataFrame) -> Iterator[str]:
    """The legend of the mark behind a verdict and of bold, where there are any."""
    if any(map(stands, cells["p_value_holm"])):
        yield f"{STANDS}: resolved after Holm's correction over all differences of the table, too."
    if any(cells["_best"]):
        yield f"Bold: the best mean over all seeds, where it is resolved as better than {cells.attrs['baseline']}."


def verdict(cells: pd.DataFrame) -> str:
    """How many rows have which verdict, by name: those with a published direction, those with a printed value but none,
    and all others; then what Holm's correction leaves, and what as many seeds would have shown."""
    attrs, records = cells.attrs, rows_of(cells)
    baseline, is_published = attrs["baseline"], attrs["paper"] is not None
    judged = [each for each in records if each["row"] != baseline]
    directed = [each for each in judged if each["_direction"]]
    others = [each for each in judged if not each["_direction"]]
    own = f"Against {baseline}{' and without a printed value' if is_published else ''}"
    parts = {
        f"Of {format.plural(len(directed), 'published direction')} against {baseline}": directed,
        "With a printed value but no direction": [each for each in others if each["paper"] is not None],
        own: [each for each in others if each["paper"] is None],
    }
    several = cells["column"].nunique() > 1
    counted = [f"{begin}, {_counted(part, several=several)}." for begin, part in parts.items() if part]
    if not counted:
        return "There is nothing to compare with the baseline."
    return " ".join([*counted, *_cautions(judged, attrs, several=several)])


def _counted(records: Sequence[Record], *, several: bool) -> str:
    found = {which: [each for each in records if each["_verdict"] is which] for which in Verdict}
    return "; ".join(f"{which}: {len(each)} ({_listed(each, several)})" for which, each in found.items() if each)


def _cautions(judged: Sequence[Record], attrs: Mapping[Any, Any], *, several: bool) -> Iterator[str]:
    outside = [each for each in judged if each["_direction"]
               and excludes_published(each["_verdict"], each["_apart"], each["_paper_apart"])]  # fmt: skip
    if outside:
        yield f"Not resolved, with the published difference outside of the interval: {_listed(outside, several)}."
    if any(each["_verdict"].is_of_one_seed for each in judged):
        yield "One seed shows no error, so nothing is claimed from it."
    if resolved := sum(each["_verdict"].is_resolved for each in judged):
        left = sum(stands(each["p_value_holm"]) for each in judged) or "none"
        yield f"Holm's correction over the table leaves {left} of {resolved} resolved."
    shown: dict[int, list[str]] = {}
    for each in judged:
        if each["_verdict"] is Verdict.not_resolved and each["_detectable"] is not None:
            least = format.detectable(each["_detectable"], each["_metric"].difference)
            shown.setdefault(each["_apart"].n, []).append(f"{_listed([each], several)} {least}")
    for n, differences in shown.items():
        yield f"With probability {POWER:g}, {n} seeds would show: {'; '.join(differences)}."
    if attrs["scale"] != "paper" and attrs["paper"] is not None:
        yield f"These runs are of scale {attrs['scale']}, not of the paper's size."


def _listed(records: Sequence[Record], several: bool) -> str:
    """Cells by name: `pre-ln+comt`, and in a table of several columns `pre-ln+comt at tiny`."""
    return format.listing(f"{each['row']} at {each['column']}" if several else each["row"] for each in records)


def cell_notes(
    cell: Cell,
    key: str,
    difference: Paired | None,
    metric: Metric,
    paper: float | None,
    published: Published | None = None,
    note: str | None = None,
) -> Iterator[str]:
    """The footnotes of a cell that shows the metric called `key`; `note` is the recipe's of the row."""
    values = cell.values(key)
    if cell.is_open and (ended := len(cell.having(*ENDED))):
        yield f"{ended} of the {len(cell.runs)} runs of its grid have ended: nothing is chosen from a part of them."
    if cell.points > 1 and cell.point is not None:
        every = "every point" if cell.without == cell.points else f"{cell.without} of {cell.points} points"
        lost = f"; {every} had a run that diverged, or that has no value"
        yield f"Chosen of its grid: {point_in_words(cell.point)}{lost if cell.without else ''}."
    if not cell.is_open:
        yield from _of_seeds(cell, values, key)
    if difference and difference.n < len(values):
        yield f"The difference is over the {format.plural(difference.n, 'seed')} that the baseline has too."
    if metric.collapsed(paper):
        limit = f"a {metric.brief} above {metric.collapsed_above:g}"
        yield f"Collapsed in the paper: {limit} is how a run that diverged looks there."
    if published is not None:
        yield f"Published: {published.metric} {published.baseline:g} to {published.value:g} of {published.of}."
    if note is not None:
        yield note


def _of_seeds(cell: Cell, values: Mapping[int, float], key: str) -> Iterator[str]:
    """Seeds that diverged, are absent or ended without a value, and remarks of their evaluations."""
    seeds = format.plural(len(cell.runs), "seed")
    if diverged := cell.having(RunState.diverged):
        listed = "; ".join(map(_diverged, diverged))
        apart = ", and the numbers are of the others alone" if values else ""
        yield f"{len(diverged)} of {seeds} diverged ({listed}){apart}."
    absent = [f"seed {run.spec.seed} is {run.state}" for run in cell.runs if run.state not in ENDED]
    if (diverged or values) and absent:
        yield f"{len(cell.runs) - len(absent)} of {seeds} ended: {format.listing(absent)}."
    done = cell.having(RunState.done)
    without = [(run.spec.seed, run.reported("missing", key)) for run in done if run.spec.seed not in values]
    if values and without:
        none = format.listing(f"seed {seed} has none{'' if why is None else f' ({why})'}" for seed, why in without)
        yield f"{len(values)} of {seeds} have a value, and the numbers are of those alone: {none}."
    remarks = ((run.spec.seed, run.reported("remark", key)) for run in done)
    if found := [f"seed {seed} {remark}" for seed, remark in remarks if remark is not None]:
        yield f"S{format.listing(found)[1:]}."


def _diverged(run: Run) -> str:
    result = run.result or {}
    loss = result.get("last_finite_loss")
    ending = "" if loss is None else f", last finite loss {loss:.2f}"
    return f"seed {run.spec.seed} at step {result.get('diverged_at', '?')}{ending}"


def grid_notes(tried: LoadedGrid, metrics: Iterable[str]) -> Iterator[str]:
    """What is tried in every cell, how a point is chosen, and whether the same data gave the numbers of the columns,
    which show `metrics`."""
    values = "; ".join(f"{key} {format.listing(str(each) for each, _ in given)}" for key, given in tried.values.items())
    best = f"A cell shows runs at the point with the best mean of {tried.metric} on validation data"
    if tried.seeds:
        yield f"Sweep: {values}. {best}, over trials with seeds of their own ({format.seeds(tried.seeds)})."
        return
    yield f"Grid: {values}. {best}, over its seeds."
    same = [metric for metric in dict.fromkeys(metrics) if not metric.startswith(OF_TEST)]
    if same:
        yield f"The same validation data chose the points and give {format.listing(same)}, which is to their advantage."


def selection_notes(
    loaded: LoadedRecipe, rows: Sequence[str], columns: Sequence[str], scale: str, overrides: Sequence[str]
) -> Iterator[str]:
    """In what the table differs from the whole recipe: fewer rows or columns, no baseline, changed settings."""
    recipe, is_sweep = loaded.recipe, loaded.has_trials(scale)
    if len(rows) < len(recipe.rows):
        which = ": those that were selected and have a choice" if is_sweep else ""
        yield f"These are {len(rows)} of the recipe's {format.plural(len(recipe.rows), 'row')}{which}."
    every = loaded.columns(scale)
    if len(columns) < len(every):
        yield f"These are {len(columns)} of the recipe's {format.plural(len(every), 'column')}."
    if recipe.baseline not in rows:
        why = "was not selected, or has no choice" if is_sweep else "is not among the selected rows"
        yield f"The baseline {recipe.baseline} {why}, so there are no differences of ours."
    if overrides:
        yield f"Settings were changed on the command line: {', '.join(overrides)}."


def run_notes(runs: Sequence[Run], metrics: Mapping[str, str]) -> Iterator[str]:
    """What makes numbers weak or not comparable: few samples, several signatures of an evaluation, several libraries
    for products (`kernels.products`) or attention (`kernels.attend`), several numerical versions (`NUMERICS`).
    `metrics` by column."""
    for count, split, what in dict.fromkeys(filter(None, (run.scored_on(metrics[run.spec.column]) for run in runs))):
        few = f": fewer than {FEW}, so a difference may be chance" if count < FEW else ""
        yield f"Scored on {count:,} {split} {what}{few}."
    signed: dict[str, dict[str, None]] = {}
    for run in runs:
        metric = metrics[run.spec.column]
        if (signature := run.reported("signatures", metric)) is not None:
            signed.setdefault(metric, {})[signature] = None
    for metric, found in signed.items():
        several = len(found) > 1
        apart = "; their numbers are not comparable" if several else ""
        yield f"Signature{'s' if several else ''} of {metric}: {format.listing(found)}{apart}."
    done = [(run.spec.settings.train.precision, run.result) for run in runs if run.result]
    yield from _several("Large fp32 matrices were multiplied", "products", (result for _, result in done))
    in_bf16 = (result for precision, result in done if precision != "fp32")
    yield from _several("Attention in bf16 was computed", "attention", in_bf16)
    versions = sorted({str(result.get("numerics") or "unknown") for _, result in done})
    if len(versions) > 1:
        yield (
            f"Trained by code of several numerical versions ({format.listing(versions)}): equal settings may end in "
            "other last digits, which training amplifies."
        )


def _several(done: str, key: str, results: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """That something was computed by several libraries; results from before it was recorded are PyTorch's."""
    found = {str(result.get(key) or PYTORCH) for result in results}
    if len(found) > 1:
        yield f"{done} by {format.listing(sorted(found))}: times are not comparable."


def other_settings(specs: Sequence[RunSpec], baseline: str) -> Iterator[str]:
    """Rows that train under other settings than the baseline of their column, and which settings those are; keys of a
    grid are none of them."""
    references = {spec.column: spec for spec in specs if spec.row == baseline}
    differing: dict[str, set[str]] = {}
    for spec in specs:
        if (reference := references.get(spec.column)) is not None:
            differing.setdefault(spec.row, set()).update(_differences(spec, reference))
    for row, keys in differing.items():
        if keys:
            yield f"{row} differs from the baseline in settings too: {', '.join(sorted(keys))}."


def _differences(spec: RunSpec, reference: RunSpec) -> Iterator[str]:
    ours, theirs = spec.settings.model_dump(), reference.settings.model_dump()
    for section, values in ours.items():
        for key, value in values.items():
            if value != theirs[section][key] and f"{section}.{key}" not in spec.point:
                yield f"{section}.{key}"
