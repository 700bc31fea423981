"""Folders and names of the figures of trained networks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from comt_cli.files import sha256
from comt_cli.recipe.find import OWN
from comt_cli.recipe.variant import table_name
from comt_cli.runs.plan import RunSpec, point_in_words


def figure_folder(name: str, spec: RunSpec | None, out: Path | None, results: Path) -> Path:
    """`out`, else `<results>/<scale>/<paper>/figures/<run>` for our runs and `<results>/figures/<name>` for others."""
    if out is not None:
        return out
    if spec is not None:
        return run_figure_folder(spec, results)
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-").lower()
    return results / "figures" / (plain or "model")


def run_figure_folder(spec: RunSpec, results: Path) -> Path:
    """The folder of one run's figures. Recipes of one's own share a folder, and their runs are named after them too;
    runs of a grid have a folder for each point, runs with other settings than the recipe's one for these.

    Slashes within a name become dashes: a checkpoint, which may come from anywhere, cannot name a folder outside the
    results.
    """
    point = "".join(f"-{each}" for each in re.findall(r"[\w.+-]+", point_in_words(spec.point)))
    named = table_name(f"{spec.row}-{spec.column}{point}-seed{spec.seed}", spec.changed, type(spec.settings))
    run = f"{spec.table}-{named}" if spec.paper == OWN else named
    scale, folder, run = (name.replace("/", "-") for name in (spec.scale, spec.paper, run))
    return results / scale / folder / "figures" / run


def of_all(ids: Iterable[str]) -> str:
    """The end of a name for a figure of several runs, the same in any order: others' would be drawn over it."""
    return sha256(" ".join(sorted(set(ids))))[:8]
