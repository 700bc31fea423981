"""What `comt diagnose` found, as figures, CSV files and a Markdown page, and on the terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator
from ruamel.yaml import YAML

from comt_cli.files import write_text
from comt_cli.report import format
from comt_cli.report.caption import Caption
from comt_cli.report.figures import sign, write_figure
from comt_cli.report.figures.lines import log_ticks
from comt_cli.report.figures.style import QUIET, page_figure, series_colours, style
from comt_cli.report.markdown import escaped, pipes
from comt_cli.report.terminal import print_texts, say

_HEADINGS = {
    "difference": "from Pre-LN",
    "without_gradient": "no gradient",
    "dispersion_start": "apart at first",
    "dispersion": "apart",
    "mixing_moved": "moved",
}
"""Of the table of starts, where they are others than in its file."""
_WORDS = {"depth": "depth, blocks", "layer": "block, counted from the input"}
_EVERY = 0.35
"""Of a panel's diagonal, between two markers of a line."""
_BAND = "Lines are means, bands from the least to the greatest of the seeds."


@dataclass(frozen=True)
class Drawing:
    """What is drawn of a table: a column of panels for each of the names in its column `panels`, and a row for each of
    `values`, which gives the axis its label; one line over `x` for each combination of `series`.

    `title`, what of the networks is `measured`, what the `rows` are and how to read it are for the caption.
    """

    title: str
    measured: str
    x: str
    values: Mapping[str, str]
    reading: str = ""
    legend: str = "connection"
    rows: str = ""
    panels: str = "setup"
    series: Sequence[str] = ("connection",)


DRAWINGS = {
    name: Drawing(**drawing)
    for name, drawing in YAML(typ="safe").load(Path(__file__).with_name("drawings.yaml").read_text("utf-8")).items()
}
"""By the name of the table, which is the figure's too. `{depth}`: how many blocks the networks of a table have."""


@dataclass(frozen=True)
class Diagnosis:
    """`tables` by the names of their files; their `seeds`, how many blocks `depth` is where a table is of one depth,
    what the blocks of each set-up are (`says`), and `where` it was measured."""

    tables: Mapping[str, pd.DataFrame]
    seeds: Sequence[int]
    depth: int
    says: Mapping[str, str]
    where: Mapping[str, str | None]


def write_diagnosis(found: Diagnosis, folder: Path) -> None:
    """Write the figures with their CSV files and captions, the other tables as CSV files, and the page."""
    untrained = f"Networks at their start, none of them trained, seeds {format.seeds(found.seeds)}"
    for stem, drawing in DRAWINGS.items():
        figure = draw_diagnosis(found.tables[stem], drawing, found.says)
        title, measured = (text.format(depth=found.depth) for text in (drawing.title, drawing.measured))
        what = [f"{name}: {says}." for name, says in found.says.items()] if drawing.panels == "setup" else []
        caption = Caption(title, f"{untrained}; {measured}", (*what, drawing.rows, _BAND, drawing.reading))
        sign(figure, caption.trained)
        write_figure(figure, found.tables[stem], folder, stem, caption)
    for stem, frame in found.tables.items():
        if stem not in DRAWINGS and len(frame):
            text = frame.assign(**found.where).to_csv(index=False, float_format="%.6g", lineterminator="\n")
            write_text(folder / f"{stem}.csv", text)
    write_text(folder / "diagnose.md", _page(found))


def print_diagnosis(found: Diagnosis) -> None:
    """Every table under its heading on the page, the claims last; the reasons are on the page."""
    frames = _frames(found)
    frames["claims"] = found.tables["claims"][["name", "chapter", "ours", "verdict"]]
    _, claims, *others = _sections(frames)
    for section in (*others, claims):
        frame = next(frame for name, frame in frames.items() if _place(name) in section)
        say(section.partition("\n")[0].format(depth=found.depth), style="bold")
        print_texts([*frame.columns], _texts(frame), most=100)
        say("")


# ---- the page


def _sections(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """What comes before the first heading of the page, and its sections, but those whose table is empty."""
    sections = Path(__file__).with_suffix(".md.in").read_text(encoding="utf-8").split("\n## ")
    empty = {_place(name) for name, frame in frames.items() if not len(frame)}
    return [section for section in sections if not any(place in section for place in empty)]


def _place(name: str) -> str:
    return f"\n{{{name}}}\n"


def _page(found: Diagnosis) -> str:
    frames, claims = _frames(found), found.tables["claims"]
    counts = ", ".join(f"{verdict} {count}" for verdict, count in Counter(claims["verdict"]).items())
    device, torch, commit = found.where.values()
    at = f", commit {commit}" if commit else ""
    words = {
        "made": escaped(f"on {device} with PyTorch {torch}{at}. Seeds {format.seeds(found.seeds)}."),
        "setups": "\n".join(f"- `{name}`: {escaped(says)}." for name, says in found.says.items()),
        "counts": f"{len(claims)}: {counts}",
        "depth": found.depth,
    }
    tables = {
        name: pipes([[*frame.columns], *_texts(frame)], [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes])
        for name, frame in frames.items()
    }
    return "\n## ".join(_sections(frames)).format(**words, **tables)


def _texts(frame: pd.DataFrame) -> list[list[str]]:
    """Rows of texts: numbers to three significant digits; nothing for what is not there."""
    return [
        ["" if pd.isna(cell) else f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row]
        for row in frame.itertuples(index=False)
    ]


def _frames(found: Diagnosis) -> dict[str, pd.DataFrame]:
    tables = found.tables
    by_depth, by_loss, outputs = tables["gradient-by-depth"], tables["gradient-by-loss"], tables["outputs"]
    depths = by_depth["depth"].unique().tolist()
    last = len(depths) - 1
    shown = [depths[index] for index in sorted({0, round(last / 3), round(2 * last / 3), last})]  # more have no room
    by_depth = by_depth[by_depth["depth"].isin(shown)]
    fp32 = by_loss[(by_loss["precision"] == "float32") & by_loss["depth"].isin([1, *shown])]
    scalings = tables["activations-by-layer"]
    measured = ("output_norm", "gradient_norm", "output_mean", "output_std")
    return {
        "claims": tables["claims"].drop(columns=["name"]),
        "gradient-by-depth": _across(by_depth, ["setup", "connection"], "depth", "passed"),
        "gradient-by-loss": _across(fp32, ["connection", "loss"], "depth", "gradient_norm"),
        "activations-by-layer": _across(scalings[scalings["layer"] == found.depth], ["setup"], "connection", "growth"),
        "outputs": outputs[["setup", "connection"]].assign(**{name: _spread(outputs, name) for name in measured}),
        "identity": tables["identity"],
        "start": tables["start"].rename(columns=_HEADINGS),
    }


def _across(frame: pd.DataFrame, down: list[str], across: str, value: str) -> pd.DataFrame:
    """One row for each combination of `down` and a column for each value of `across`, both in the order they come."""
    texts = frame[[*down, across]].assign(text=_spread(frame, value))
    columns = texts[across].unique()
    wide = texts.set_index([*down, across])["text"].unstack(across, sort=False)[columns]
    wide.columns = [f"{across} {name}" if across == "depth" else str(name) for name in columns]
    return wide.reset_index()


def _spread(frame: pd.DataFrame, value: str) -> list[str]:
    """`1.32 ± 0.04` for every row of a summary: mean and standard deviation; the mean alone of one seed. Rounded to
    significant digits: `4890` and `30`, not `4.89e+03` and `3e+01`; powers of ten from a million on."""

    def digits(number: float, count: int) -> str:
        return f"{float(f'{number:.{count}g}'):g}"

    pairs = zip(frame[f"{value}_mean"], frame[f"{value}_std"], strict=True)
    return [digits(mean, 3) + ("" if pd.isna(std) else f" ± {digits(std, 1)}") for mean, std in pairs]


# ---- figures


def draw_diagnosis(frame: pd.DataFrame, drawing: Drawing, says: Mapping[str, str]) -> Figure:
    """The figure of a summary, with what each set-up `says` that it is over its panels: means, and bands from the least
    to the greatest of the seeds. A row shares its logarithmic axis, unless it is of set-ups that differ by more than a
    million times. The network without skip paths is grey and dashed."""
    panels, x, values = drawing.panels, drawing.x, drawing.values
    frame = frame.assign(line=frame[[*drawing.series]].agg(", ".join, axis=1))
    names, lines = frame[panels].unique().tolist(), frame["line"].unique().tolist()
    coloured = [name for name in lines if name != "plain"]
    looks: dict[str, dict[str, Any]] = {"plain": {"color": QUIET, "linestyle": "--"}}
    for number, (name, colour) in enumerate(zip(coloured, series_colours(len(coloured)), strict=True)):
        looks[name] = {"color": colour, "linestyle": ("-", "--", ":", "-.")[number % 4], "linewidth": 1.1}
        # at other places on each: of lines that lie on each other every one is seen
        every = (_EVERY * number / len(coloured), _EVERY)
        looks[name] |= {"marker": "os^DvPX"[number % 7], "markersize": 3.2, "markevery": every}
    with style():
        figure = page_figure((0.85 if panels == "setup" else 0.5) + max(2.0 * len(values), 0.16 * (len(lines) + 2)))
        grid = figure.subplots(len(values), len(names), squeeze=False)
        for number, (row, (value, label)) in enumerate(zip(grid, values.items(), strict=True)):
            low, high = _ends(frame, value)
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
                is_shared = high / low < 1e6 or panels != "setup"
                _log_axis(axes, *((low, high) if is_shared else _ends(drawn, value)))
                axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
                axes.set_xlabel(textwrap.fill(_WORDS[x], 18) if len(names) > 3 else _WORDS[x])
            letter = f"({chr(ord('a') + number)}) " if len(values) > 1 else ""
            row[0].set_ylabel(f"{letter}{label}\n(log scale)")
        for axes, name in zip(grid[0], names, strict=True):
            said = textwrap.fill(says.get(name, ""), 90 // len(names))
            axes.set_title(f"{name}\n{said}".rstrip(), fontsize=7)
        handles = [Line2D([], [], label=name, **looks[name]) for name in lines]
        figure.legend(handles=handles, title=drawing.legend, loc="outside right center", handlelength=1.8)
    return figure


def _ends(frame: pd.DataFrame, value: str) -> tuple[float, float]:
    """The least and the greatest that a logarithmic axis can show: very deep networks have gradients of 0, or none."""
    numbers = frame[[f"{value}_low", f"{value}_high"]].to_numpy(dtype=float)
    seen = numbers[np.isfinite(numbers) & (numbers > 0)]
    return (float(seen.min()), float(seen.max())) if seen.size else (1.0, 1.0)


def _log_axis(axes: Axes, low: float, high: float) -> None:
    """Logarithmic, with 1 in sight; plain numbers over few decades and powers of ten over many."""
    low, high = min(low, 0.9), max(high, 1.1)
    air = 1.1 * (high / low) ** 0.02
    axes.set_yscale("log")
    axes.set_ylim(low / air, high * air)
    axes.axhline(1, color=QUIET, linewidth=0.6, zorder=0.5)
    if high / low < 1000:
        log_ticks(axes, high / low)
    else:
        axes.yaxis.set_major_locator(LogLocator(numticks=7))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
