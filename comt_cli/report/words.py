"""Descriptions of runs: networks, data and settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from comt_cli.recipe.merge import LoadedGrid
from comt_cli.report import format
from comt_cli.runs.plan import RunSpec

_PAPERS = {"comt": "CoMT", "transponder": "Transponder", "sas": "SAS"}
_ROWS = {"only_last": "only o, down", "only_first": "all but o, down", "only_qk": "only q, k",
         "without_up_gate": "all but up, gate"}  # fmt: skip


def paper_name(paper: str) -> str:
    """The name of a paper: `CoMT` for `comt`."""
    return _PAPERS.get(paper, paper)


def row_name(row: str) -> str:
    """The label of a row in figures: the projections that a set of them means, else its name."""
    return _ROWS.get(row, row.replace("_", " "))


def of_runs(specs: Iterable[RunSpec], overrides: Sequence[str] = ()) -> str:
    """The runs of a figure: `pre-ln+comt: LLaMA tiny ...; seed 1; scale smoke`. Rows with equal networks are named
    together; the method is in brackets if the row's name does not state it. `overrides` are the `--set` arguments."""
    specs = list(specs)
    rows: dict[str, dict[str, None]] = {}
    for spec in specs:
        is_named = spec.method["name"] in spec.row and spec.method_words == spec.method["name"]
        name = spec.row if is_named else f"{spec.row} ({spec.method_words})"
        rows.setdefault(spec.task.network_and_data(spec.settings), {})[name] = None
    scales = format.listing(dict.fromkeys(spec.scale for spec in specs))
    trained = "; ".join(f"{format.listing(names)}: {what}" for what, names in rows.items())
    return f"{trained}; {circumstances({spec.seed for spec in specs}, scales, overrides)}"


def circumstances(seeds: Collection[int], scale: str, overrides: Sequence[str]) -> str:
    """`seeds 1-3; scale smoke; with train.steps=20`."""
    changed = f"; with {' '.join(overrides)}" if overrides else ""
    return f"seed{'s' if len(seeds) > 1 else ''} {format.seeds(seeds)}; scale {scale}{changed}"


def tried_values(grid: LoadedGrid) -> str:
    """`train.learning_rate 0.001 and 0.002`."""
    return "; ".join(f"{key} {format.listing(str(each) for each, _ in tried)}" for key, tried in grid.values.items())


def other_settings(specs: Sequence[RunSpec], baseline: str) -> Iterator[str]:
    """A sentence for each set of keys, except those of a grid, by which rows differ from the baseline."""
    references = {spec.column: spec.settings.model_dump() for spec in specs if spec.row == baseline}
    differing: dict[str, set[str]] = {}
    for spec in specs:
        if (theirs := references.get(spec.column)) is not None:
            for section, values in spec.settings.model_dump().items():
                keys = {f"{section}.{key}" for key, value in values.items() if value != theirs[section][key]}
                differing.setdefault(spec.row, set()).update(keys - {*spec.point})
    rows: dict[str, list[str]] = {}
    for row, keys in differing.items():
        rows.setdefault(format.listing(sorted(keys)), []).append(row)
    for named, each in rows.items():
        if named:
            yield f"Different from the baseline: {named} in {format.listing(each)}."
