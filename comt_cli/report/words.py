"""A table in sentences: what was trained, which directions hold, the footnotes of cells and the notes of the table."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from comt_cli.recipe.grid import OF_TEST, LoadedGrid
from comt_cli.report import format
from comt_cli.report.caption import notes, prose
from comt_cli.report.collect import ENDED, Cell, Run
from comt_cli.report.frame import TableInfo, rows_of
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
    info: TableInfo = cells.attrs["table"]
    judged = [each for each in rows_of(cells) if each["row"] != info.baseline]
    several = cells["column"].nunique() > 1
    directed, others = ([each for each in judged if bool(each["_direction"]) == has] for has in (True, False))
    own = f"Against {info.baseline}{'' if info.paper is None else ' and without a printed value'}"
    shown: dict[int, list[str]] = {}
    for each in judged:
        if each["_verdict"] is Verdict.not_resolved and each["_detectable"] is not None:
            least = format.detectable(each["_detectable"], each["_metric"].difference)
            name = f"{each['row']} at {each['column']}" if several else each["row"]
            shown.setdefault(each["_apart"].n, []).append(f"{name} {least}")
    return prose(
        "verdict",
        info=info,
        judged=judged,
        several=several,
        parts={
            f"Of {format.plural(len(directed), 'published direction')} against {info.baseline}": directed,
            "With a printed value but no direction": [each for each in others if each["paper"] is not None],
            own: [each for each in others if each["paper"] is None],
        },
        verdicts=lambda part: [(which.value, found) for which in Verdict
                               if (found := [each for each in part if each["_verdict"] is which])],
        outside=[each for each in directed
                 if excludes_published(each["_verdict"], each["_apart"], each["_paper_apart"])],
        standing=sum(stands(each["p_value_holm"]) for each in judged),
        shown=shown,
        power=POWER,
    )  # fmt: skip


def footnotes(cells: pd.DataFrame) -> list[str]:
    """The remarks of all cells in order of appearance, each once; marks in a table count them from 1."""
    return list(dict.fromkeys(text for remarks in cells["_remarks"] for text in remarks))


def cell_notes(cell: Cell, record: Mapping[str, Any], info: TableInfo) -> list[str]:
    """The footnotes of a cell, of which `record` has the numbers (`cells.cells_frame`)."""
    key = record["metric"]
    values, done = cell.values(key), {run.spec.seed: run for run in cell.having(RunState.done)}
    lost = []
    for run in cell.having(RunState.diverged):
        result = run.result or {}
        loss = result.get("last_finite_loss")
        ending = "" if loss is None else f", last finite loss {loss:.2f}"
        lost.append(f"seed {run.spec.seed} at step {result.get('diverged_at', '?')}{ending}")
    reasons = {seed: run.reported("missing", key) for seed, run in done.items() if seed not in values}
    remarks = {seed: run.reported("remark", key) for seed, run in done.items()}
    return notes(
        "cell-notes",
        cell=cell,
        ended=len(cell.having(*ENDED)),
        point="" if cell.point is None else point_in_words(cell.point),
        values=values,
        lost=lost,
        absent=[f"seed {run.spec.seed} is {run.state}" for run in cell.runs if run.state not in ENDED],
        missing=[f"seed {seed} has none{f' ({why})' if why else ''}" for seed, why in reasons.items()],
        remarks=[f"seed {seed} {remark}" for seed, remark in remarks.items() if remark is not None],
        apart=record["_apart"],
        metric=record["_metric"],
        paper=record["paper"],
        published=info.recipe.rows[cell.row].published,
        note=record.get("note"),
    )


def tried_values(grid: LoadedGrid) -> str:
    """`train.learning_rate 0.001 and 0.002`."""
    return "; ".join(f"{key} {format.listing(str(each) for each, _ in tried)}" for key, tried in grid.values.items())


def table_notes(runs: Sequence[Run], info: TableInfo) -> list[str]:
    """In what a table differs from its whole recipe, what a grid tries, rows that train under other settings, and what
    makes numbers weak or not comparable: few samples, several signatures of an evaluation, libraries for products
    (`kernels.products`) or numerical versions (`NUMERICS`)."""
    grid, rows = info.grid, list(info.recipe.rows)
    specs = sorted((run.spec for run in runs), key=lambda spec: rows.index(spec.row))
    keys = dict.fromkeys(info.keys[run.spec.column] for run in runs)
    signed: dict[str, dict[str, None]] = {}
    for run in runs:
        if (signature := run.reported("signatures", key := info.keys[run.spec.column])) is not None:
            signed.setdefault(key, {})[signature] = None
    done = [run.result for run in runs if run.result]
    return notes(
        "table-notes",
        info=info,
        recipe=info.recipe,
        rows={spec.row for spec in specs},
        columns={spec.column for spec in specs},
        grid=grid,
        tried=grid and tried_values(grid),
        judged=[key for key in keys if grid and not grid.seeds and not key.startswith(OF_TEST)],
        others=[*other_settings(specs, info.baseline)],
        scored=dict.fromkeys(filter(None, (run.scored_on(info.keys[run.spec.column]) for run in runs))),
        few=FEW,
        signed=signed,
        libraries=sorted({str(result.get("products") or PYTORCH) for result in done}),  # older results are PyTorch's
        versions=sorted({str(result.get("numerics") or "unknown") for result in done}),
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
