"""How a run is called in a tracker."""

from __future__ import annotations

from typing import Any

from comt_cli.runs.plan import RunSpec


def names_of(spec: RunSpec) -> dict[str, Any]:
    """Where a run stands in its table, for people."""
    return {key: getattr(spec, key) for key in ("paper", "table", "scale", "row", "column", "seed", "id")}
