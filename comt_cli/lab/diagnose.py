"""`comt diagnose`: residual connections before any training, and which printed claims about that hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import options
from comt_cli.commit import git_commit
from comt_cli.errors import UserError
from comt_cli.files import make_folder, write_text
from comt_cli.lab import whole_numbers
from comt_cli.methods import catalogue, in_words
from comt_cli.recipe.find import find_recipe
from comt_cli.recipe.load import load_recipe, select
from comt_cli.report import format
from comt_cli.report.caption import Caption, in_markdown, pipes
from comt_cli.runs.plan import parse_seeds
from comt_cli.verbs.models import loading

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from comt_cli.lab.networks import Setup
    from comt_cli.methods.base import Wiring

_DEPTH = 30  # of the networks that are looked into layer by layer: the chapter's
_COMPARED = "pre-norm,post-norm,rezero,highway,deepnorm,sas"
_TRAINED = "ours/modern"  # the recipe whose rows are looked at beside the methods as they come
_ALSO = {"name": "resformer", "learned": True}
"""A row of no recipe, which learns something where the method as it comes has nothing that could."""
_BRANCHES = ("linear-relu", "gelu-mlp", "llama")
_CONNECTIONS_HELP = "Residual connections, or methods with one, to compare; all or none."
_BRANCH_HELP = "Branch of the blocks: linear-relu and gelu-mlp with LayerNorm, or llama with RMSNorm."
_METHODS_HELP = """Methods, or rows of ours/modern, whose initial state is compared with a plain network's and followed
for 20 updates; all or none."""


def diagnose(
    connections: Annotated[str, typer.Option(metavar="A,B", help=_CONNECTIONS_HELP)] = _COMPARED,
    depths: Annotated[str, typer.Option(metavar="5,20", help="Depths, in blocks.")] = "5,10,15,20,25,30,35,40,45,50",
    branch: Annotated[str, typer.Option(metavar="A,B", help=_BRANCH_HELP)] = ",".join(_BRANCHES),
    seeds: Annotated[str, typer.Option(metavar="1,2 or 1-3", help="Seeds; tables show mean and spread.")] = "1-3",
    methods: Annotated[str, typer.Option(metavar="A,B", help=_METHODS_HELP)] = "all",
    out: options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Test residual connections before training: do signals and gradients propagate? No data is needed.

    Measure the gradient at the input against depth, the stream's norm along the layers, networks with and without skip
    paths, and which connections start as the identity. Also check the printed claims of the chapter on residual
    connections (Brenndoerfer 2025), with fixed settings. This takes about two minutes.

    Compare the initial state of every method, and of every row of ours/modern, with a plain network and with its paper;
    list the new parameters with their initial values, and those that are inactive after 20 updates. This takes half a
    minute, and is all that a new method needs.

    Examples:
      comt diagnose
      comt diagnose --connections none
    """
    chosen_depths, chosen_seeds = sorted({*whole_numbers(depths, "--depths")}), parse_seeds(seeds) or []
    branches = select(branch, _BRANCHES, "branch")
    loading("the networks")
    import torch

    from comt_cli.lab.claims import claims_frame
    from comt_cli.lab.networks import RELU_MLP, SETUPS, measured
    from comt_cli.lab.starts import starts
    from comt_cli.training.devices import device_name

    setups = [SETUPS[name] for name in branches]
    wirings = {} if connections.strip() == "none" else _wirings(connections, setups)
    started = _chosen_methods(methods)
    where = {"device": device_name(torch.device("cpu")), "torch": torch.__version__, "git_commit": git_commit()}
    if not wirings and not started:
        raise UserError("--connections and --methods are none: there is nothing to measure")
    tables = starts(started, chosen_seeds[0]) if started else {}
    if wirings:
        tables |= measured(wirings, setups, chosen_depths, _DEPTH, chosen_seeds) | {"claims": claims_frame()}
    says = {setup.name: f"{setup.says}, width {setup.width}" for setup in (*setups, RELU_MLP)}
    folder = out or results / "diagnose"
    _write(tables, chosen_seeds, says, where, folder)
    typer.echo(f"Written to {folder}.")


def _chosen_methods(text: str) -> list[dict[str, Any]]:
    """The methods for language models or ResNets that are given, each with its options; all are those that need no
    options, the rows of `_TRAINED`, and `_ALSO`. A name means the method, and the row, that are called so."""
    if text.strip() == "none":
        return []
    from comt_cli.lab.networks import as_they_come

    shipped = as_they_come("train-lm") | as_they_come("train-resnet")
    named: list[tuple[str, dict[str, Any]]] = [(name, {"name": name}) for name in shipped]
    named += [*load_recipe(find_recipe(_TRAINED), catalogue()).methods.items(), (in_words(_ALSO), _ALSO)]
    wanted = select(None if text.strip() == "all" else text, dict(named), "method")
    # A row whose options are all defaults is the method itself: each is there once, beside others of its name.
    chosen = {in_words(method): method for name, method in named if name in wanted}
    return [chosen[words] for words in sorted(chosen)]


def _wirings(text: str, setups: list[Setup]) -> dict[str, Wiring]:
    """The wirings of these connections or methods. Raises `UserError` where a set-up has no place for one."""
    from comt_cli.lab.networks import wirings
    from comt_cli.methods.base import residual_connections

    known = wirings()
    if text.strip() == "all":
        return {name: known[name] for name in known if name in residual_connections()}
    select(text, known, "residual connection or method with one stream of tokens")
    chosen = {name: known[name] for part in text.split(",") if (name := part.strip())}
    if left := [name for name, wiring in chosen.items() if not all(setup.fits(wiring) for setup in setups)]:
        said = f"{left[0]} has gates or norms of its own, for which only the branch llama has a place"
        raise UserError(said, "give --branch llama")
    return chosen


# ---- the pages


def _write(
    tables: Mapping[str, pd.DataFrame],
    seeds: list[int],
    says: Mapping[str, str],
    where: Mapping[str, str | None],
    folder: Path,
) -> None:
    """Write the tables as CSV files, the figure with its caption, and the pages."""
    make_folder(folder)
    for stem, table in tables.items():
        if stem == "gradient-by-depth":
            _write_figure(table, seeds, says, folder)
            continue
        told = table.assign(**where) if stem in ("outputs", "identity", "start", "claims") else table
        write_text(folder / f"{stem}.csv", told.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    at = f", commit {where['git_commit']}" if where["git_commit"] else ""
    filled = {
        "made": in_markdown(f"on {where['device']} with PyTorch {where['torch']}{at}. Seeds {format.seeds(seeds)}."),
        "setups": "\n".join(f"- `{name}`: {in_markdown(text)}." for name, text in says.items()),
        "depth": str(_DEPTH),
    }
    if "claims" in tables:
        counts = Counter(tables["claims"]["verdict"])
        said = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
        filled["counts"] = f"{counts.total()}: {said}"
    for page, needed, shown in (("diagnose", "claims", _of_connections), ("start", "start", _of_methods)):
        for name, frame in shown(tables).items() if needed in tables else ():
            numbers = [kind.kind in "if" for kind in frame.dtypes]
            texts = [
                [f"{cell:.3g}".replace("nan", "") if isinstance(cell, float) else str(cell) for cell in row]
                for row in frame.itertuples(index=False)
            ]
            filled[name] = pipes([[*frame.columns], *texts], numbers)
        if needed in tables:
            template = Path(__file__).with_name(f"{page}.md.in").read_text(encoding="utf-8")
            write_text(folder / f"{page}.md", template.format_map(filled))


def _write_figure(by_depth: pd.DataFrame, seeds: list[int], says: Mapping[str, str], folder: Path) -> None:
    from comt_cli.report.figures import sign, write_figure

    figure = draw(by_depth)
    measured = f"Networks at their start, none of them trained, seeds {format.seeds(seeds)}; "
    measured += "a random linear functional of the output as the loss"
    reading = "Lines are means, bands from the least to the greatest of the seeds. Dashed: the same without skip paths."
    sign(figure, measured)
    title = "How much of the gradient reaches the input of networks of different depths"
    caption = Caption(title, measured, (*(f"{name}: {says[name]}." for name in by_depth["setup"].unique()), reading))
    write_figure(figure, by_depth, folder, "gradient-by-depth", caption)


def _of_methods(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables of the page of methods."""
    headings = {"without_gradient": "no gradient", "dispersion_start": "apart at first"}
    headings |= {"dispersion": "apart", "mixing_moved": "moved"}
    start, parameters = (tables[name].rename(columns=headings) for name in ("start", "parameters"))
    later = start.drop(columns=[*start.loc[:, "published":"loss"]])
    return {"start": start.loc[:, :"loss"], "updates": later, "parameters": parameters}


def _of_connections(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Tables of connections: at most four depths, `1.32 ± 0.04` for mean and standard deviation over the seeds."""
    by_depth, by_loss, outputs = tables["gradient-by-depth"], tables["gradient-by-loss"], tables["outputs"]
    scalings, depths = tables["activations-by-layer"], by_depth["depth"].unique().tolist()
    last = len(depths) - 1
    few = [depths[index] for index in sorted({0, round(last / 3), round(2 * last / 3), last})]
    fp32 = by_loss[(by_loss["precision"] == "float32") & by_loss["depth"].isin([1, *few])]
    measured = ("output_norm", "gradient_norm", "output_mean", "output_std")
    return {
        "gradient-by-depth": _across(by_depth[by_depth["depth"].isin(few)], ["setup", "connection"], "depth", "passed"),
        "gradient-by-loss": _across(fp32, ["connection", "loss"], "depth", "gradient_norm"),
        "activations-by-layer": _across(scalings[scalings["layer"] == _DEPTH], ["setup"], "connection", "growth"),
        "outputs": outputs[["setup", "connection"]].assign(**{name: _spread(outputs, name) for name in measured}),
        "identity": tables["identity"],
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


def draw(frame: pd.DataFrame) -> Figure:
    """The gradient that gets through, against depth: a panel a set-up, a line a connection, with bands of all seeds."""
    from matplotlib.ticker import MaxNLocator

    from comt_cli.report.figures.style import QUIET, page_figure, series_colours, style

    names = frame["connection"].unique().tolist()
    colours = dict(zip(names, series_colours(len(names)), strict=True)) | {"plain": QUIET}
    with style():
        figure = page_figure(2.6)
        panels = figure.subplots(1, frame["setup"].nunique(), squeeze=False)[0]
        for axes, (setup, of_setup) in zip(panels, frame.groupby("setup", sort=False), strict=True):
            for number, (name, of) in enumerate(of_setup.groupby("connection", sort=False)):
                look = {"color": colours[name], "linestyle": "--" if name == "plain" else "-", "label": name}
                # at other places on each: of lines that lie on each other every one is seen
                marks = {"marker": "os^DvPX"[number % 7], "markersize": 3.2, "markevery": (number % 3, 3)}
                axes.plot(of["depth"], of["passed_mean"], **look, **(marks if len(of) > 3 else {"marker": "o"}))
                axes.fill_between(of["depth"], of["passed_low"], of["passed_high"], color=colours[name], alpha=0.15)
            axes.set_yscale("log")
            axes.axhline(1, color=QUIET, linewidth=0.6, zorder=0.5)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
            axes.set_xlabel("depth, blocks")
            axes.set_title(f"branch {setup}")
        panels[0].set_ylabel("norm of the gradient, input\nover output (log scale)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", handlelength=1.8)
    return figure
