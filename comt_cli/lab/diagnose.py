"""`comt diagnose`: residual connections before any training, and which printed claims about that hold, as figures, CSV
files and a page."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from comt_cli.commands import options
from comt_cli.errors import UserError
from comt_cli.verbs.models import loading

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from comt_cli.lab.networks import Setup
    from comt_cli.methods.base import Wiring

_DEPTH = 30
"""Of the networks that are looked into layer by layer: the chapter's."""
_MOST_DEPTH, _MOST_IN_RANGE = 1000, 10
_COMPARED = "pre-norm,post-norm,rezero,highway,deepnorm,sas"
_TRAINED = "ours/modern"
"""The recipe whose rows are looked at beside the methods as they come."""
_ALSO = {"name": "resformer", "learned": True}
"""A row of no recipe, which learns something where the method as it comes has nothing that could."""
_BRANCHES = ("linear-relu", "gelu-mlp", "llama")
_HELP = {
    "connections": "Residual connections to compare, or methods that have one, or all connections.",
    "depths": "Depths, in blocks; of a range at most ten, evenly apart.",
    "branch": "What the blocks compute: linear-relu and gelu-mlp with LayerNorm, as in the chapter, or llama, our "
    "language models' block with RMSNorm.",
    "width": "Width of the networks, a multiple of 16; each branch has its own if not given.",
    "seeds": "Seeds; the tables show mean and spread.",
    "methods": "Methods, or rows of the recipe ours/modern, whose language models' start is compared with Pre-LN's, "
    "and followed for 20 updates; all, or none.",
}


def diagnose(
    connections: Annotated[str, typer.Option(metavar="A,B", help=_HELP["connections"])] = _COMPARED,
    depths: Annotated[str, typer.Option(metavar="5-50 or 5,20", help=_HELP["depths"])] = "5-50",
    branch: Annotated[str, typer.Option(metavar="A,B", help=_HELP["branch"])] = ",".join(_BRANCHES),
    width: Annotated[int | None, typer.Option(help=_HELP["width"])] = None,
    seeds: Annotated[str, typer.Option(metavar="1,2 or 1-3", help=_HELP["seeds"])] = "1-3",
    methods: Annotated[str, typer.Option(metavar="A,B", help=_HELP["methods"])] = "all",
    out: options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Look at residual connections before any training. Needs no data: do signals and gradients get through?

    Measures the gradient at the input against depth, the stream's norm along the layers, networks with skip paths
    against such without, and which connections start as the identity; how language models of every method, and of every
    row of ours/modern, start, beside what their papers say, and what of them is asleep after 20 updates. Checks the
    printed claims of the chapter on residual connections (Brenndoerfer 2025) in its own set-up, whatever the options
    say. Takes about two minutes.

    Examples:

      comt diagnose

      comt diagnose --connections all --branch llama

      comt diagnose --connections pre-norm,post-norm,comt --branch llama --depths 2,4,8,16 --seeds 1-5 --results look
    """
    from comt_cli.recipe.load import select
    from comt_cli.runs.plan import parse_seeds

    if width is not None and (width < 16 or width % 16):
        raise UserError(f"--width {width}: not a multiple of 16", "for instance 64 or 128")
    chosen_depths, chosen_seeds = _depths(depths), parse_seeds(seeds) or []
    branches, started = select(branch, _BRANCHES, "branch"), chosen_methods(methods)
    loading("the networks")
    import torch

    from comt_cli.commit import git_commit
    from comt_cli.lab.claims import claims_frame
    from comt_cli.lab.networks import RELU_MLP, SETUPS, measured, starts
    from comt_cli.training.devices import device_name

    setups = [SETUPS[name] for name in branches]
    wirings = _wirings(connections, setups)
    where = {"device": device_name(torch.device("cpu")), "torch": torch.__version__, "git_commit": git_commit()}
    tables = measured(wirings, setups, chosen_depths, _DEPTH, chosen_seeds, width)
    tables |= {"claims": claims_frame(), "start": starts(started, chosen_seeds[0])}
    says = {setup.name: f"{setup.says}, width {width or setup.width}" for setup in (*setups, RELU_MLP)}
    folder = out or results / "diagnose"
    _write(tables, chosen_seeds, says, where, folder)
    typer.echo(f"Written to {folder}: diagnose.md with the reasons for every verdict, figures, and their CSV files.")


def chosen_methods(text: str) -> list[dict[str, Any]]:
    """The methods for language models that are given, each with its options; all are those that need no options, the
    rows of `_TRAINED`, and `_ALSO`. A name means the method, and the row, that are called so. Raises `UserError` where
    there is no such."""
    from comt_cli.methods import catalogue, in_words, methods
    from comt_cli.recipe.find import find_recipe
    from comt_cli.recipe.load import load_recipe, select

    if text.strip() == "none":
        return []
    named: list[tuple[str, dict[str, Any]]] = [
        (name, {"name": name})
        for name, method in methods("train-lm").items()
        if not any(field.is_required() for field in method.model_fields.values())
    ]
    named += [*load_recipe(find_recipe(_TRAINED), catalogue()).methods.items(), (in_words(_ALSO), _ALSO)]
    wanted = select(None if text.strip() == "all" else text, dict(named), "method")
    # A row whose options are all defaults is the method itself: each is there once, beside others of its name.
    chosen = {in_words(method): method for name, method in named if name in wanted}
    return [chosen[words] for words in sorted(chosen)]


def _wirings(text: str, setups: list[Setup]) -> dict[str, Wiring]:
    """The wirings of connections, or of methods, that are given; of all connections. Raises `UserError` where one that
    is named cannot be measured, or a set-up has no place for it."""
    from comt_cli.lab.networks import wirings
    from comt_cli.methods.base import residual_connections
    from comt_cli.recipe.load import select

    known = wirings()
    if text.strip() == "all":
        text = ",".join(name for name in known if name in residual_connections())
    select(text, known, "residual connection or method with one stream of tokens")
    chosen = {name: known[name] for part in text.split(",") if (name := part.strip())}
    for name, wiring in chosen.items():
        if not all(setup.fits(wiring) for setup in setups):
            said = f"{name} has gates or norms of its own, for which only the branch llama has a place"
            raise UserError(said, "give --branch llama")
    return chosen


def _depths(text: str) -> list[int]:
    """`5-50` as 5, 10, ... 50, `5,20` as it stands; in order. Raises `UserError`."""
    try:
        found = [int(part) for part in text.replace("-", ",").split(",")]
        if "-" in text:
            low, high = found
            steps = max(1, min(_MOST_IN_RANGE - 1, high - low))
            found = [round(low + (high - low) * step / steps) for step in range(steps + 1)]
    except ValueError:
        found = [0]
    if not 1 <= min(found) <= max(found) <= _MOST_DEPTH or ("-" in text and found[0] > found[-1]):
        hint = "for instance 5-50 or 10,20,40"
        raise UserError(f"--depths {text}: depths are whole numbers from 1 to {_MOST_DEPTH}, the least first", hint)
    return sorted(set(found))


# ---- the page


def _write(
    tables: Mapping[str, pd.DataFrame],
    seeds: list[int],
    says: Mapping[str, str],
    where: Mapping[str, str | None],
    folder: Path,
) -> None:
    """Write the figures with their CSV files and captions, the other tables as CSV files, and the page; print the
    tables."""
    from comt_cli.files import write_text
    from comt_cli.report import format
    from comt_cli.report.caption import Caption
    from comt_cli.report.figures import sign, write_figure
    from comt_cli.report.markdown import escaped, pipes
    from comt_cli.report.terminal import print_texts, say

    for stem, drawing in DRAWINGS.items():
        figure = draw(tables[stem], drawing, says)
        what = [f"{name}: {text}." for name, text in says.items()] if drawing.panels == "setup" else []
        trained = f"Networks at their start, none of them trained, seeds {format.seeds(seeds)}; {drawing.measured}"
        band = "Lines are means, bands from the least to the greatest of the seeds."
        sign(figure, trained)
        caption = Caption(drawing.title, trained, (*what, band, drawing.reading))
        write_figure(figure, tables[stem], folder, stem, caption)
    for stem in ({*tables} - {*DRAWINGS}) if len(tables["start"]) else {*tables} - {*DRAWINGS, "start"}:
        text = tables[stem].assign(**where).to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_text(folder / f"{stem}.csv", text)
    counts = Counter(tables["claims"]["verdict"])
    at = f", commit {where['git_commit']}" if where["git_commit"] else ""
    filled = {
        "made": escaped(f"on {where['device']} with PyTorch {where['torch']}{at}. Seeds {format.seeds(seeds)}."),
        "setups": "\n".join(f"- `{name}`: {escaped(text)}." for name, text in says.items()),
        "counts": f"{counts.total()}: {', '.join(f'{verdict} {count}' for verdict, count in counts.items())}",
        "depth": str(_DEPTH),
    }
    for name, frame in _shown(tables).items():
        filled[name] = "None were asked for."
        if not len(frame):
            continue
        numbers = [kind.kind in "if" for kind in frame.dtypes]
        texts = [
            [f"{cell:.3g}".replace("nan", "") if isinstance(cell, float) else str(cell) for cell in row]
            for row in frame.itertuples(index=False)
        ]
        filled[name] = pipes([[*frame.columns], *texts], numbers)
        say(name, style="bold")
        print_texts([*frame.columns], texts, most=100)
    page = Path(__file__).with_name("diagnose.md.in").read_text(encoding="utf-8")
    write_text(folder / "diagnose.md", page.format(**filled))


def _shown(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables of the page: at most four depths, `1.32 ± 0.04` for mean and standard deviation over the seeds."""
    by_depth, by_loss, outputs = tables["gradient-by-depth"], tables["gradient-by-loss"], tables["outputs"]
    scalings, depths = tables["activations-by-layer"], by_depth["depth"].unique().tolist()
    last = len(depths) - 1
    few = [depths[index] for index in sorted({0, round(last / 3), round(2 * last / 3), last})]
    fp32 = by_loss[(by_loss["precision"] == "float32") & by_loss["depth"].isin([1, *few])]
    measured = ("output_norm", "gradient_norm", "output_mean", "output_std")
    headings = {"difference": "from Pre-LN", "without_gradient": "no gradient", "dispersion_start": "apart at first"}
    headings |= {"dispersion": "apart", "mixing_moved": "moved"}
    return {
        "gradient-by-depth": _across(by_depth[by_depth["depth"].isin(few)], ["setup", "connection"], "depth", "passed"),
        "gradient-by-loss": _across(fp32, ["connection", "loss"], "depth", "gradient_norm"),
        "activations-by-layer": _across(scalings[scalings["layer"] == _DEPTH], ["setup"], "connection", "growth"),
        "outputs": outputs[["setup", "connection"]].assign(**{name: _spread(outputs, name) for name in measured}),
        "identity": tables["identity"],
        "start": tables["start"].rename(columns=headings),
        "claims": tables["claims"].drop(columns=["name"]),
    }


def _across(frame: pd.DataFrame, down: list[str], across: str, value: str) -> pd.DataFrame:
    """One row for each combination of `down` and a column for each value of `across`, both in the order they come."""
    texts = frame[[*down, across]].assign(text=_spread(frame, value))
    columns = texts[across].unique()
    wide = texts.set_index([*down, across])["text"].unstack(across, sort=False)[columns]
    wide.columns = [f"{across} {name}" if across == "depth" else str(name) for name in columns]
    return wide.reset_index()


def _spread(frame: pd.DataFrame, value: str) -> list[str]:
    """Mean and standard deviation, the mean alone of one seed: `4890` and `30`, not `4.89e+03` and `3e+01`."""

    def digits(number: float, count: int) -> str:
        return f"{float(f'{number:.{count}g}'):g}"

    pairs = zip(frame[f"{value}_mean"], frame[f"{value}_std"], strict=True)
    return [digits(mean, 3) + ("" if math.isnan(std) else f" ± {digits(std, 1)}") for mean, std in pairs]


# ---- figures


class Drawing(NamedTuple):
    """A figure of a table: a column of panels for each of the names in its column `panels`, a row for each of `values`
    with its label, one line over `x` for each combination of `series`. The rest is for the caption."""

    title: str
    measured: str
    x: str
    values: Mapping[str, str]
    reading: str = "Grey and dashed: the same blocks without skip paths."
    legend: str = "connection"
    panels: str = "setup"
    series: tuple[str, ...] = ("connection",)


_FUNCTIONAL = "a random linear functional of the output as the loss"
_NORM = "norm of the stream / of the input"
DRAWINGS = {
    "gradient-by-depth": Drawing(
        "How much of the gradient reaches the input of networks of different depths",
        _FUNCTIONAL,
        "depth",
        {"passed": "gradient at input / output"},
    ),
    "gradient-by-loss": Drawing(
        "The gradient at the input for different losses and precisions",
        "blocks linear-relu",
        "depth",
        {"gradient_norm": "gradient norm at the input"},
        "The sum of the outputs is the chapter's loss.",
        "loss, precision",
        "connection",
        ("loss", "precision"),
    ),
    "activations-by-layer": Drawing(
        "How the residual stream grows along the blocks for different factors s of the branch",
        f"{_DEPTH} blocks, y = x + s F(N(x))",
        "layer",
        {"growth": _NORM},
        "",
        "s at the start",
    ),
    "plain-against-residual": Drawing(
        f"Stream and gradient along {_DEPTH} blocks, with and without skip paths",
        _FUNCTIONAL,
        "layer",
        {"growth": f"(a) {_NORM}", "passed": "(b) gradient there / at the output"},
    ),
}
"""By the name of the table, which is the figure's too."""


def draw(frame: pd.DataFrame, drawing: Drawing, says: Mapping[str, str]) -> Figure:
    """The figure of a summary: means, and bands from the least to the greatest of the seeds, on a logarithmic axis that
    the panels of a row share, unless they are of set-ups that differ by more than a million times."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    from comt_cli.report.figures.lines import log_ticks
    from comt_cli.report.figures.style import QUIET, page_figure, series_colours, style

    panels, x, values = drawing.panels, drawing.x, drawing.values
    frame = frame.assign(line=frame[[*drawing.series]].agg(", ".join, axis=1))
    names, lines = frame[panels].unique().tolist(), frame["line"].unique().tolist()
    coloured = [name for name in lines if name != "plain"]
    looks: dict[str, dict[str, Any]] = {"plain": {"color": QUIET, "linestyle": "--"}}
    for number, (name, colour) in enumerate(zip(coloured, series_colours(len(coloured)), strict=True)):
        looks[name] = {"color": colour, "linestyle": ("-", "--", ":", "-.")[number % 4], "linewidth": 1.1}
        # at other places on each: of lines that lie on each other every one is seen
        every = (0.35 * number / len(coloured), 0.35)
        looks[name] |= {"marker": "os^DvPX"[number % 7], "markersize": 3.2, "markevery": every}

    def ends(of: pd.DataFrame, value: str) -> tuple[float, float]:
        """With 1 in sight; very deep networks have gradients of 0, or none."""
        seen = of[[f"{value}_low", f"{value}_high"]].replace([0, math.inf], math.nan)
        return min(0.9, seen.min().min()), max(1.1, seen.max().max())

    with style():
        figure = page_figure((0.85 if panels == "setup" else 0.5) + max(2.0 * len(values), 0.16 * (len(lines) + 2)))
        grid = figure.subplots(len(values), len(names), squeeze=False)
        for row, (value, label) in zip(grid, values.items(), strict=True):
            low, high = ends(frame, value)
            is_shared = high / low < 1e6 or panels != "setup"
            for axes, name in zip(row, names, strict=True):
                drawn = frame[frame[panels] == name]
                for line, of in drawn.groupby("line", sort=False):
                    points = of.sort_values(x)
                    at, look = points[x].to_numpy(), looks[str(line)]
                    least, most = (points[f"{value}_{end}"].to_numpy() for end in ("low", "high"))
                    single = {"marker": "o", "markevery": None} if len(at) == 1 else {}  # it makes no line
                    axes.plot(at, points[f"{value}_mean"].to_numpy(), **{**look, **single})
                    seen = (least > 0).tolist()  # a gradient of rounding errors may be 0
                    axes.fill_between(at, least, most, where=seen, color=look["color"], alpha=0.15, linewidth=0)
                low, high = (low, high) if is_shared else ends(drawn, value)
                axes.set_yscale("log")
                axes.set_ylim(low / 1.2, high * 1.2)
                axes.axhline(1, color=QUIET, linewidth=0.6, zorder=0.5)
                if high / low < 1000:
                    log_ticks(axes, high / low)
                else:
                    axes.yaxis.set_major_locator(LogLocator(numticks=7))
                    axes.yaxis.set_minor_locator(NullLocator())
                axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
                axes.set_xlabel({"depth": "depth, blocks", "layer": "block, from the input"}[x])
            row[0].set_ylabel(f"{label}\n(log scale)")
        for axes, name in zip(grid[0], names, strict=True):
            said = textwrap.fill(says.get(name, ""), 90 // len(names))
            axes.set_title(f"{name}\n{said}".rstrip(), fontsize=7)
        handles = [Line2D([], [], label=name, **looks[name]) for name in lines]
        figure.legend(handles=handles, title=drawing.legend, loc="outside right center", handlelength=1.8)
    return figure
