"""What the verbs that draw a trained model share: their options, and where the figures go."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from comt_cli.exchange.loaded import Loaded
    from comt_cli.runs.plan import RunSpec

Text = Annotated[
    str | None,
    typer.Option(help="The text to observe the model on, 2 to 512 tokens; by default a sentence about a castle."),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the figures; below --results if not given.", file_okay=False)
]

OwnAxes = Annotated[
    bool,
    typer.Option(
        "--own-axes", help="Every panel has its own range of values and colours, instead of one range for all panels."
    ),
]


def trained_words(loaded: Loaded) -> str:
    """A figure's words for its network: the run, with its learning rate and the method's options where they are not the
    defaults, or what is known of a model from elsewhere."""
    spec = loaded.spec
    if spec is None:
        return f"{loaded.name}: {loaded.description}"
    from comt_cli.methods import in_words
    from comt_cli.report.trained import of_runs

    method = in_words(spec.method)
    with_options = "" if method == spec.method["name"] else f", {method}"
    return f"{of_runs([spec])}; learning rate {spec.settings.train.learning_rate:g}{with_options}"


def figure_folder(loaded: Loaded, out: Path | None, results: Path) -> Path:
    """`out`, else `<results>/<scale>/<paper>/figures/<run>` for our runs and `<results>/figures/<name>` for others."""
    if out is not None:
        return out
    if loaded.spec is not None:
        return run_figure_folder(loaded.spec, results)
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", loaded.name).strip(".-").lower()
    return results / "figures" / (name or "model")


def of_all(ids: Iterable[str]) -> str:
    """What the name of a figure of several runs ends with, whatever their order: others' would be drawn over it."""
    from comt_cli.files import sha256

    return sha256(" ".join(sorted(set(ids))))[:8]


def run_figure_folder(spec: RunSpec, results: Path) -> Path:
    """Where the figures of one of our runs go; of recipes of one's own, which share a folder, each has others. The runs
    of a grid have a folder for each point, those with other settings than the recipe's one that is named after these.

    Slashes within a name become dashes: a checkpoint, which may come from anywhere, cannot name a folder outside the
    results.
    """
    from comt_cli.recipe.find import OWN
    from comt_cli.recipe.variant import table_name
    from comt_cli.runs.plan import point_in_words

    point = "".join(f"-{each}" for each in re.findall(r"[\w.+-]+", point_in_words(spec.point)))
    named = table_name(f"{spec.row}-{spec.column}{point}-seed{spec.seed}", spec.changed, type(spec.settings))
    run = f"{spec.table}-{named}" if spec.paper == OWN else named
    scale, folder, run = (name.replace("/", "-") for name in (spec.scale, spec.paper, run))
    return results / scale / folder / "figures" / run
