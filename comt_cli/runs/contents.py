"""Which data the runs below a folder were trained on: for a machine that has the runs, and not the data itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from comt_cli.errors import UserError
from comt_cli.runs.known import known_runs
from comt_cli.runs.plan import RunSpec, with_sources


def adopt_contents(specs: Sequence[RunSpec], runs: Path, *, ambiguous: bool = False) -> list[RunSpec]:
    """`specs`, those whose data is not prepared here with the content that the runs below `runs` were trained on.

    Raises:
        UserError: the runs that were asked the same were trained on different data, so that no table can hold them
            all; unless `ambiguous`, which leaves the content of these unknown.
    """
    every = with_sources(specs)
    unknown = {spec.data_fingerprint for spec in every if spec.data_content is None}
    if not unknown:
        return list(specs)
    contents = _contents_of_runs(runs, {spec.request: spec.data_fingerprint for spec in every})
    several = {fingerprint: counts for fingerprint, counts in contents.items() if len(counts) > 1}
    if several and not ambiguous:
        fingerprint, counts = next(iter(several.items()))
        listed = ", ".join(f"{content} ({count} run{'s'[: count != 1]})" for content, count in counts.most_common())
        spec = next(spec for spec in every if spec.data_fingerprint == fingerprint)
        name = spec.task.data_name(spec.settings)
        raise UserError(
            f"the runs on {name} in {runs} were trained on data of different content: {listed}",
            "They cannot stand in one column. Training prepares the data here and so says which content is meant; or "
            "keep the runs of one content only (spec.json of each has data_content).",
        )
    only = {
        fingerprint: next(iter(counts))
        for fingerprint, counts in contents.items()
        if fingerprint in unknown and len(counts) == 1
    }
    return [spec.with_contents(only) for spec in specs]


def _contents_of_runs(runs: Path, asked: Mapping[str, str]) -> dict[str, Counter[str]]:
    """Per fingerprint, on how many runs below `runs` each content was trained, of those that were `asked` for: the
    fingerprints of requests. What was begun and has no checkpoint was perhaps refused its data, and says nothing."""
    found: dict[str, Counter[str]] = {fingerprint: Counter() for fingerprint in asked.values()}
    for run in known_runs(runs):
        if run.is_replaced or run.label("data_fingerprint") not in found or run.label("data_content") == "?":
            continue
        spec = run.spec  # none of what is damaged: whoever reads the run says what is wrong
        if spec is not None and spec.request in asked and run.directory.is_begun:
            for each in (spec, *spec.sources):  # of a source that is not here any more the started run knows it
                if each.data_content is not None and each.data_fingerprint in found:
                    found[each.data_fingerprint][each.data_content] += 1
    return found
