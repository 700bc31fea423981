"""What a table says in sentences: how it was made, and which published directions hold. All computed from the table."""

from __future__ import annotations

from collections.abc import Sequence

from comt_cli.recipe.schema import DIRECTION
from comt_cli.report import format
from comt_cli.report.metric import METRICS
from comt_cli.report.table import Entry, Table
from comt_cli.report.verdict import Verdict


def origin(table: Table) -> str:
    """Where the table comes from, what a cell shows, on what it was made."""
    better = f"{DIRECTION[table.metric]} is better"
    seeds = f"seed{'s' if len(table.seeds) > 1 else ''} {format.seeds(table.seeds)}"
    sentences = [
        f"{table.name} of the paper {table.paper} (recipe {table.recipe_file}) at scale {table.scale}: "
        f"{table.scale_description.rstrip('.')}.",
        f"Cells show {METRICS[table.metric].words} ({better}): mean ± standard error (number of seeds), {seeds}.",
        f"Differences are paired by seed, {table.unit.beside(table.baseline)}, with the 95 % interval of Student's t.",
    ]
    if table.has_increases:
        sentences.append(
            f"Parameters are those beyond {table.subject.plain}; the paper's printed increase beside "
            f"them is that of the paper's column, {table.subject.differs} at the smaller scales."
        )
    if table.devices:
        commits = f", commit {format.listing(table.commits)}" if table.commits else ""
        sentences.append(f"Trained on {format.listing(table.devices)}{commits}.")
    return " ".join(sentences)


def verdict(table: Table) -> str:
    """How many of the published directions hold, do not hold, or cannot be told from these runs, by name."""
    judged = [entry for entry in table.entries.values() if entry.direction]
    if not judged:
        return "The paper gives no direction to compare with."
    groups = [(wording, _named(table, judged, *verdicts)) for wording, verdicts in _GROUPS]
    told = [f"{wording}: {len(names)} ({format.listing(names)})" for wording, names in groups if names]
    sentences = [f"Of {format.plural(len(judged), 'published direction')} against {table.baseline}, {'; '.join(told)}."]
    if _any(judged, Verdict.one_seed_same, Verdict.one_seed_opposite, Verdict.one_seed_equal):
        sentences.append("One seed shows no error, so nothing is claimed from it.")
    if _any(judged, Verdict.agrees, Verdict.disagrees):
        sentences.append(
            "Each interval is taken by itself: of twenty differences that are not there, one would seem resolved."
        )
    if table.scale != "paper":
        sentences.append(f"These runs are not of the paper's size: this is said of scale {table.scale} alone.")
    return " ".join(sentences)


_GROUPS: tuple[tuple[str, tuple[Verdict, ...]], ...] = (
    ("agreeing", (Verdict.agrees,)),
    ("disagreeing", (Verdict.disagrees,)),
    ("not resolved, since the interval spans zero", (Verdict.not_resolved,)),
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


def _named(table: Table, entries: Sequence[Entry], *verdicts: Verdict) -> list[str]:
    several = len(table.columns) > 1
    return [
        f"{entry.cell.row} at {entry.cell.column}" if several else entry.cell.row
        for entry in entries
        if entry.verdict in verdicts
    ]


def _any(entries: Sequence[Entry], *verdicts: Verdict) -> bool:
    return any(entry.verdict in verdicts for entry in entries)
