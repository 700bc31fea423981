"""What `comt diagnose` found, as a Markdown page and on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from comt_cli.report import format
from comt_cli.report.caption import Caption
from comt_cli.report.markdown import escaped
from comt_cli.report.terminal import console_for

_NOT_CHECKED = (
    "Not checked, for want of anything to measure: the chapter's figures of the degradation problem and of ReZero's "
    "learned factors are drawn from simulated numbers, as it says itself; what it says of training needs training."
)


@dataclass(frozen=True)
class Part:
    """A table of the page: its heading, what it says, its rows, and the stem of its figure, if it has one."""

    heading: str
    says: str
    frame: pd.DataFrame
    figure: str | None = None


def page(made: str, claims: pd.DataFrame, parts: Sequence[Part], setups: Mapping[str, str]) -> str:
    """The page. `made` says with what, `claims` has the columns of `Claim`, `setups` what each set-up is."""
    counts = ", ".join(f"{verdict} {count}" for verdict, count in Counter(claims["verdict"]).items())
    lines = [
        "# Residual connections at the start of training",
        escaped(made),
        "\n".join(f"- `{name}`: {escaped(says)}." for name, says in setups.items()),
        "## The chapter's claims",
        "The printed claims of M. Brenndoerfer, *Residual Connections: The Gradient Highways Enabling Deep "
        f"Transformers* (2025), in our words. Of {len(claims)}: {counts}. [claims.csv](claims.csv)",
        _grid(claims.drop(columns=["name"])),
        _NOT_CHECKED,
    ]
    for part in parts:
        lines += [f"## {part.heading}", part.says, _grid(part.frame)]
        if part.figure:
            lines.append(f"![{part.figure}]({part.figure}.png)")
    return "\n\n".join(lines) + "\n"


def _grid(frame: pd.DataFrame) -> str:
    numeric = [pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns]
    head = "| " + " | ".join(escaped(str(name)) for name in frame.columns) + " |"
    rule = "| " + " | ".join("---:" if number else ":---" for number in numeric) + " |"
    rows = ("| " + " | ".join(escaped(_text(cell)) for cell in row) + " |" for row in frame.itertuples(index=False))
    return "\n".join([head, rule, *rows])


def _text(cell: Any) -> str:
    """Three significant digits; nothing for what is not there."""
    if isinstance(cell, float):
        return "" if pd.isna(cell) else f"{cell:.3g}"
    return str(cell)


def print_diagnosis(claims: pd.DataFrame, parts: Sequence[Part]) -> None:
    """Every part as a grid, and the claims with their numbers and verdicts; the reasons are on the page."""
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    console = console_for()
    shape = box.SIMPLE_HEAD if console.is_terminal else None
    for part in (*parts, Part("The chapter's claims", "", claims[["name", "chapter", "ours", "verdict"]])):
        console.print(Text(part.heading, style="bold"))
        grid = Grid(box=shape, header_style="bold", pad_edge=False, show_edge=False)
        for name in part.frame.columns:
            number = pd.api.types.is_numeric_dtype(part.frame[name])
            grid.add_column(Text(str(name)), justify="right" if number else "left", overflow="fold")
        for row in part.frame.itertuples(index=False):
            grid.add_row(*(Text(_text(cell)) for cell in row))
        console.print(grid)
        console.print()


def parts(
    by_depth: pd.DataFrame,
    by_loss: pd.DataFrame,
    outputs: pd.DataFrame,
    scalings: pd.DataFrame,
    identity: pd.DataFrame,
    start: pd.DataFrame,
    depth: int,
) -> list[Part]:
    """The tables of the page from the summaries of the same names (`analysis.diagnose.measure`); `outputs`, `scalings`
    and `identity` are of networks `depth` deep; `start` is of `analysis.diagnose.start`, and may be empty."""
    shown = _some(by_depth["depth"].unique().tolist())
    fp32 = by_loss[by_loss["precision"] == "float32"]
    end = scalings[scalings["layer"] == depth]
    keys = outputs[["setup", "connection"]]
    measured = {name: _spread(outputs, name) for name in ("output_norm", "gradient_norm", "output_mean", "output_std")}
    return [
        Part(
            "Gradient at the input against depth",
            "The norm of the gradient of a random linear functional of the output: at the input, over that at the "
            "output. 1: all of it gets through. Mean ± standard deviation over the seeds; `plain` has no skip paths. "
            "In `llama` x has the size of embeddings (standard deviation 0.02); a norm makes it 50 times as large, and "
            "with it the gradient: there about 50 is all of it, and 1 of ReZero, which has no norm. The initialisation "
            "that belongs to a connection (DeepNorm, scaled-init) is applied in `llama` alone: the chapter's branches "
            "start as PyTorch has it.",
            _across(by_depth[by_depth["depth"].isin(shown)], ["setup", "connection"], "depth", "passed"),
            "gradient-by-depth",
        ),
        Part(
            "The same with the chapter's loss and with others",
            "The norm at the input, in fp32, of blocks `linear-relu`. `sum` is the chapter's loss, the sum of the "
            "output. Behind a LayerNorm that sum is a constant: its gradient is rounding error at any depth.",
            _across(fp32[fp32["depth"].isin([1, *shown])], ["connection", "loss"], "depth", "gradient_norm"),
            "gradient-by-loss",
        ),
        Part(
            f"Size of the stream after {depth} blocks, by scaling",
            "Its norm over that of the input, y = x + s F(N(x)); `relu-mlp` is without the norm N. `learned` is 1 at "
            "the start.",
            _across(end, ["setup"], "connection", "growth"),
            "activations-by-layer",
        ),
        Part(
            f"{depth} blocks with and without skip paths",
            "What comes out, and the gradient's norm at the input (random linear functional).",
            keys.assign(**measured),
            "plain-against-residual",
        ),
        Part(
            f"Identity at the start, {depth} blocks",
            "The largest |h - x| of the stream h behind all blocks; 0 is equality to the last bit. `zero_branch`: with "
            "the branch's last layer zero, in `relu-mlp`, and the norm of h there; that set-up has no norm, which else "
            "undoes DeepNorm's factor on x.",
            identity,
        ),
        *([_start(start)] if len(start) else []),
    ]


def _start(start: pd.DataFrame) -> Part:
    shown = {
        "method": "method",
        "published": "published",
        "parameters": "parameters",
        "difference": "from Pre-LN",
        "loss": "loss",
        "own": "own",
        "without_gradient": "no gradient",
        "never": "never",
        "dispersion_start": "apart at first",
        "dispersion": "apart",
        "mixing_moved": "moved",
        "asleep": "asleep",
    }
    return Part(
        "Language models of every method at the start, and what is asleep after 20 updates",
        "LLaMA models of four blocks, width 64, in fp64, with the same draws where they share parameters, one seed, "
        "and what papers or their code say they start as: every method as it comes, and, with their options in "
        "brackets, the rows of the recipe ours/modern and learned ResFormer. `from Pre-LN`: |logits - Pre-LN's| over "
        "the norm of Pre-LN's. The norms' epsilon is 1e-12. `loss` of 256 kinds of random tokens, whose logarithm "
        "is 5.55. Of the `own` tensors that Pre-LN has not, how many have `no gradient` in the first update, and how "
        "many `never` have one in 20 updates of Adam: such a part is dead, and a table would say nothing of it. "
        "Rates of their own, which some methods have, are not used here. `apart`: how far the streams before the "
        "last branch are from their mean, |H - mean| / |H|, at first and after these updates; of SiameseNorm's two, "
        "as they are read, behind their norms. `moved`: how far any weight of a mixture is then from where it "
        "started, by the kind of mixture, where a connection, attention or the read-out behind the last block says "
        "what it mixes; SiameseNorm's `x-y` are the shares of the two in what branches read. `asleep`: what these "
        "updates have not brought to life, since it has no gradient, or streams are less than 0.005 apart, or no "
        "weight of a mixture has moved by 0.0001. A training as short as this has not measured such a part: that is "
        "not the same as no effect.",
        start[list(shown)].rename(columns=shown),
    )


def _some(depths: Sequence[int]) -> list[int]:
    """The first, the last and two between: more do not fit on a terminal."""
    last = len(depths) - 1
    return [depths[index] for index in sorted({0, round(last / 3), round(2 * last / 3), last})]


def _across(frame: pd.DataFrame, down: list[str], across: str, value: str) -> pd.DataFrame:
    """One row for each combination of `down` and a column for each value of `across`, both in the order they come."""
    texts = frame[[*down, across]].assign(text=_spread(frame, value))
    columns = texts[across].unique()
    wide = texts.set_index([*down, across])["text"].unstack(across, sort=False)[columns]
    wide.columns = [f"{across} {name}" if across == "depth" else str(name) for name in columns]
    return wide.reset_index()


def _spread(frame: pd.DataFrame, value: str) -> list[str]:
    """`1.32 ± 0.04` for every row of a summary: mean and standard deviation; the mean alone of one seed."""
    means, stds = frame[f"{value}_mean"], frame[f"{value}_std"]
    return [_digits(m, 3) + ("" if pd.isna(s) else f" ± {_digits(s, 1)}") for m, s in zip(means, stds, strict=True)]


def _digits(number: float, digits: int) -> str:
    """Rounded to so many significant digits: `4890` and `30`, not `4.89e+03` and `3e+01`; powers of ten from a million
    on."""
    return f"{float(f'{number:.{digits}g}'):g}"


def made_with(seeds: Sequence[int], device: str, torch: str, commit: str | None) -> str:
    """What a reader needs to make it again."""
    at = f", commit {commit}" if commit else ""
    return f"Made by comt diagnose on {device} with PyTorch {torch}{at}. Seeds {format.seeds(seeds)}."


def captions(seeds: Sequence[int], depth: int, setups: Mapping[str, str]) -> dict[str, Caption]:
    """Of each figure, by its stem. `setups` says what the blocks of each set-up compute."""
    untrained = f"Networks at their start, none of them trained, seeds {format.seeds(seeds)}"
    what = tuple(f"{name}: {says}." for name, says in setups.items())
    band = "Lines are means, bands from the least to the greatest of the seeds."
    plain = "Grey and dashed: the same blocks without skip paths."
    return {
        "gradient-by-depth": Caption(
            "How much of the gradient reaches the input of networks of different depths",
            f"{untrained}; a random linear functional of the output as the loss",
            (*what, band, plain),
        ),
        "gradient-by-loss": Caption(
            "The gradient at the input for different losses and precisions",
            f"{untrained}; blocks linear-relu",
            (band, "The sum of the outputs is the chapter's loss."),
        ),
        "activations-by-layer": Caption(
            "How the residual stream grows along the blocks for different factors s of the branch",
            f"{untrained}; {depth} blocks, y = x + s F(N(x))",
            (*what, band),
        ),
        "plain-against-residual": Caption(
            f"Stream and gradient along {depth} blocks, with and without skip paths",
            f"{untrained}; a random linear functional of the output as the loss",
            (*what, "(a) the norm of the stream; (b) the norm of the gradient.", band, plain),
        ),
    }
