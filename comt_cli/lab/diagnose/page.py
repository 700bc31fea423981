"""What `comt diagnose` found, as figures, CSV files and a Markdown page, and on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from comt_cli.files import write_text
from comt_cli.report import format
from comt_cli.report.caption import Caption
from comt_cli.report.markdown import escaped, pipes
from comt_cli.report.terminal import console_for

_HEADINGS = {
    "difference": "from Pre-LN",
    "without_gradient": "no gradient",
    "dispersion_start": "apart at first",
    "dispersion": "apart",
    "mixing_moved": "moved",
}
"""Of the table of starts, where they are others than in its file."""


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
    from comt_cli.lab.diagnose.figure import BAND, DRAWINGS, draw_diagnosis
    from comt_cli.report.figures import sign, write_figure

    untrained = f"Networks at their start, none of them trained, seeds {format.seeds(found.seeds)}"
    for stem, drawing in DRAWINGS.items():
        figure = draw_diagnosis(found.tables[stem], drawing, found.says)
        title, measured = (text.format(depth=found.depth) for text in (drawing.title, drawing.measured))
        what = [f"{name}: {says}." for name, says in found.says.items()] if drawing.panels == "setup" else []
        caption = Caption(title, f"{untrained}; {measured}", (*what, drawing.rows, BAND, drawing.reading))
        sign(figure, caption.trained)
        write_figure(figure, found.tables[stem], folder, stem, caption)
    for stem, frame in found.tables.items():
        if stem not in DRAWINGS and len(frame):
            text = frame.assign(**found.where).to_csv(index=False, float_format="%.6g", lineterminator="\n")
            write_text(folder / f"{stem}.csv", text)
    write_text(folder / "diagnose.md", _page(found))


def print_diagnosis(found: Diagnosis) -> None:
    """Every table as a grid under its heading on the page, the claims last; the reasons are on the page."""
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    console, frames = console_for(), _frames(found)
    frames["claims"] = found.tables["claims"][["name", "chapter", "ours", "verdict"]]
    _, claims, *others = _sections(frames)
    for section in (*others, claims):
        frame = next(frame for name, frame in frames.items() if _place(name) in section)
        console.print(Text(section.partition("\n")[0].format(depth=found.depth), style="bold"))
        shape = box.SIMPLE_HEAD if console.is_terminal else None
        grid = Grid(box=shape, header_style="bold", pad_edge=False, show_edge=False)
        for column, is_number in zip(frame.columns, _numeric(frame), strict=True):
            grid.add_column(Text(column), justify="right" if is_number else "left", overflow="fold")
        for row in _texts(frame):
            grid.add_row(*map(Text, row))
        console.print(grid)
        console.print()


def _sections(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """What comes before the first heading of the page, and its sections, but those whose table is empty."""
    sections = Path(__file__).with_suffix(".md.in").read_text(encoding="utf-8").split("\n## ")
    empty = {_place(name) for name, frame in frames.items() if not len(frame)}
    return [section for section in sections if not any(place in section for place in empty)]


def _place(name: str) -> str:
    """The line of the page where a table goes."""
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
    tables = {name: pipes([[*frame.columns], *_texts(frame)], _numeric(frame)) for name, frame in frames.items()}
    return "\n## ".join(_sections(frames)).format(**words, **tables)


def _numeric(frame: pd.DataFrame) -> list[bool]:
    """Whether each column is of numbers."""
    return [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]


def _texts(frame: pd.DataFrame) -> list[list[str]]:
    """Rows of texts: numbers to three significant digits; nothing for what is not there."""
    return [
        ["" if pd.isna(cell) else f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row]
        for row in frame.itertuples(index=False)
    ]


def _frames(found: Diagnosis) -> dict[str, pd.DataFrame]:
    """The tables of the page."""
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
