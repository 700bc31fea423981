"""What a reader must know beside the numbers: the footnotes of a cell, and the notes of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from comt_cli.recipe.grid import OF_TEST, LoadedGrid
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.schema import Published
from comt_cli.report import format
from comt_cli.report.collect import ENDED, Cell, Run
from comt_cli.report.statistics import Paired
from comt_cli.runs.directory import FEW, PYTORCH, RunState
from comt_cli.runs.plan import RunSpec, point_in_words
from comt_cli.tasks.base import Metric


def of_cell(
    cell: Cell,
    key: str,
    difference: Paired | None,
    metric: Metric,
    paper: float | None,
    published: Published | None = None,
    note: str | None = None,
) -> Iterator[str]:
    """The footnotes of a cell of the metric called `key`: what was chosen for it, seeds that diverged, are absent or
    have no value, unpaired seeds, a collapsed value of the paper's, what was published elsewhere, and the
    recipe's `note` of the row."""
    values = cell.values(key)
    yield from _of_grid(cell)
    if not cell.is_open:
        yield from _of_seeds(cell, values, key)
        yield from _said_of_seeds(cell, key)
    if difference and difference.n < len(values):
        yield f"The difference is over the {format.plural(difference.n, 'seed')} that the baseline has too."
    if metric.collapsed(paper):
        limit = f"a {metric.brief} above {metric.collapsed_above:g}"
        yield f"Collapsed in the paper: {limit} is how a run that diverged looks there."
    if published is not None:
        yield f"Published: {published.metric} {published.baseline:g} to {published.value:g} of {published.of}."
    if note is not None:
        yield note


def _of_grid(cell: Cell) -> Iterator[str]:
    """What was chosen for the cell, and how many points could not be; while it is open, how many runs have ended."""
    choice = cell.choice
    if choice is None or choice.points == 1:
        return
    if choice.point is None:
        if ended := len(cell.having(*ENDED)):
            yield f"{ended} of the {len(cell.runs)} runs of its grid have ended: nothing is chosen from a part of them."
        return
    named = point_in_words(choice.point)
    if choice.without == choice.points:
        yield f"Of its grid {named}: every point has a run that diverged, or that has no value."
    else:
        lost = f"; {choice.without} of {choice.points} points had a run that diverged, or that has no value"
        yield f"Chosen of its grid: {named}{lost if choice.without else ''}."


def _of_seeds(cell: Cell, values: Mapping[int, float], key: str) -> Iterator[str]:
    """Seeds that diverged, are absent, or ended without a value."""
    total = len(cell.runs)
    diverged = cell.having(RunState.diverged)
    if diverged:
        details = "; ".join(_diverged(run.spec.seed, run.result or {}) for run in diverged)
        apart = ", and the numbers are of the others alone" if values else ""
        yield f"{len(diverged)} of {format.plural(total, 'seed')} diverged ({details}){apart}."
    absent = [f"seed {run.spec.seed} is {run.state}" for run in cell.runs if run.state not in ENDED]
    if (diverged or values) and absent:
        yield f"{total - len(absent)} of {format.plural(total, 'seed')} ended: {format.listing(absent)}."
    without = [run for run in cell.having(RunState.done) if run.spec.seed not in values]
    if values and without:
        said = ((run.spec.seed, run.missing(key)) for run in without)
        none = [f"seed {seed} has none{'' if why is None else f' ({why})'}" for seed, why in said]
        yield (
            f"{len(values)} of {format.plural(total, 'seed')} have a value, and the numbers are of those alone: "
            f"{format.listing(none)}."
        )


def _said_of_seeds(cell: Cell, key: str) -> Iterator[str]:
    """What evaluations say of themselves."""
    said = ((run.spec.seed, run.remark(key)) for run in cell.having(RunState.done))
    if found := [f"seed {seed} {remark}" for seed, remark in said if remark is not None]:
        yield f"S{format.listing(found)[1:]}."


def _diverged(seed: int, result: Mapping[str, Any]) -> str:
    loss = result.get("last_finite_loss")
    ending = "" if loss is None else f", last finite loss {loss:.2f}"
    return f"seed {seed} at step {result.get('diverged_at', '?')}{ending}"


def grid(tried: LoadedGrid, metrics: Iterable[str]) -> Iterator[str]:
    """What is tried in every cell, and how a point is chosen; and that it may have been chosen by the very data of the
    numbers that are shown. `metrics` are those of the columns."""
    values = "; ".join(f"{key} {format.listing(str(each) for each, _ in given)}" for key, given in tried.values.items())
    if tried.seeds:
        yield (
            f"Sweep: {values}. A cell shows runs at the point with the best mean of {tried.metric}, on validation "
            f"data, over trials with seeds of their own ({format.seeds(tried.seeds)})."
        )
        return
    yield (
        f"Grid: {values}. A cell shows the runs of the point with the best mean of {tried.metric} over its seeds, on "
        "validation data."
    )
    same = [metric for metric in dict.fromkeys(metrics) if not metric.startswith(OF_TEST)]
    if same:
        yield f"The same validation data chose the points and give {format.listing(same)}, which is to their advantage."


def selection(
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


def of_runs(runs: Sequence[Run], metrics: Mapping[str, str]) -> Iterator[str]:
    """What makes numbers weak or not comparable; `metrics` by column."""
    yield from _sizes(runs, metrics)
    yield from _signatures(runs, metrics)
    yield from _multipliers(runs)
    yield from _numerics(runs)


def _signatures(runs: Iterable[Run], metrics: Mapping[str, str]) -> Iterator[str]:
    """How the cells were scored, where that is signed; `metrics` by column. Several for one metric are not comparable,
    and each is named."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        metric = metrics[run.spec.column]
        if (signature := run.signature(metric)) is not None:
            found.setdefault(metric, {})[signature] = None
    for metric, signed in found.items():
        plural = "s" if len(signed) > 1 else ""
        apart = "; their numbers are not comparable" if plural else ""
        yield f"Signature{plural} of {metric}: {format.listing(signed)}{apart}."


def _sizes(runs: Iterable[Run], metrics: Mapping[str, str]) -> Iterator[str]:
    """On how many samples the cells were scored, and where these are few; `metrics` by column."""
    for count, split, what in dict.fromkeys(filter(None, (run.scored_on(metrics[run.spec.column]) for run in runs))):
        few = f": fewer than {FEW}, so a difference may be chance" if count < FEW else ""
        yield f"Scored on {count:,} {split} {what}{few}."


def _multipliers(runs: Iterable[Run]) -> Iterator[str]:
    """That fp32 matrices were multiplied by several libraries (`kernels.products`), or that several forms of attention
    computed in bf16 (`kernels.attend`): times are not comparable. Results from before it was recorded are PyTorch's."""
    done = [(run.spec.settings.train.precision, run.result) for run in runs if run.result]
    results = [result for _, result in done]
    in_bf16 = [result for precision, result in done if precision != "fp32"]
    for said, key, counted in (
        ("Large fp32 matrices were multiplied", "products", results),
        ("Attention in bf16 was computed", "attention", in_bf16),
    ):
        found = {result.get(key) or PYTORCH for result in counted}
        if len(found) > 1:
            yield f"{said} by {format.listing(sorted(found))}: times are not comparable."


def _numerics(runs: Iterable[Run]) -> Iterator[str]:
    """That runs were trained by code of several numerical versions (`NUMERICS`); that of older runs is unknown."""
    found = {str(run.result.get("numerics") or "unknown") for run in runs if run.result}
    if len(found) > 1:
        versions = format.listing(sorted(found))
        yield (
            f"Trained by code of several numerical versions ({versions}): equal settings may end in other last digits, "
            "which training amplifies."
        )


def other_settings(specs: Sequence[RunSpec], baseline: str) -> Iterator[str]:
    """Rows that train under other settings than the baseline of their column, and which settings those are."""
    references = {spec.column: spec for spec in specs if spec.row == baseline}
    differing: dict[str, set[str]] = {}
    for spec in specs:
        reference = references.get(spec.column)
        if reference is not None:
            differing.setdefault(spec.row, set()).update(_differences(spec, reference))
    for row, keys in differing.items():
        if keys:
            yield f"{row} differs from the baseline in settings too: {', '.join(sorted(keys))}."


def _differences(spec: RunSpec, reference: RunSpec) -> Iterator[str]:
    ours, theirs = spec.settings.model_dump(), reference.settings.model_dump()
    for section, values in ours.items():
        for key, value in values.items():
            if value != theirs[section][key]:
                yield f"{section}.{key}"
