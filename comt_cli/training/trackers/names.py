"""How a run is called in a tracker."""

from __future__ import annotations

from typing import Any

from comt_cli.runs.plan import RunSpec


def names_of(spec: RunSpec) -> dict[str, Any]:
    """Where a run stands in its table, for people."""
    return {
        "paper": spec.paper,
        "table": spec.table,
        "scale": spec.scale,
        "row": spec.row,
        "column": spec.column,
        "seed": spec.seed,
        "id": spec.id,
    }
