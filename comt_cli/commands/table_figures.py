"""The figures that go with a written table: of a ladder, and of costs; and whether one is drawn already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from comt_cli.files import Unreadable, read_text

if TYPE_CHECKING:
    import pandas as pd

    from comt_cli.report.caption import Caption
    from comt_cli.report.table import Table
    from comt_cli.report.write import ReportFiles


def write_ladder(table: Table, files: ReportFiles) -> list[Path]:
    """Draw the gain against compute of a written table that is a ladder; returns the files that were written, none
    where nothing is new or no size has a gain yet."""
    if not any(trend.rungs for trend in table.trends):
        return []
    from comt_cli.report.ladder_words import ladder_caption, ladder_frame, unit

    frame, caption = ladder_frame(table), ladder_caption(table)
    return _drawn(files, "ladder", frame, caption, "draw_ladder", table.baseline, unit(table))


def write_costs_figure(table: Table, files: ReportFiles) -> list[Path]:
    """Draw the differences of a written table against its measured costs; returns the files that were written, none
    where nothing is new or too little was measured."""
    from comt_cli.report.costs_words import costs_caption, costs_frame, how

    frame = costs_frame(table)
    if frame is None:
        return []
    units = "/".join(dict.fromkeys(table.unit(column).sign for column in table.columns))
    caption = costs_caption(table, frame)
    return _drawn(files, "costs-figure", frame, caption, "draw_costs", table.baseline, units, how(table))


def _drawn(files: ReportFiles, name: str, frame: pd.DataFrame, caption: Caption, draw: str, *more: str) -> list[Path]:
    """The files of a figure beside a table's, by the function called `draw`; none where these are drawn already."""
    folder, stem = files.csv.parent, f"{files.csv.stem}-{name}"
    numbers = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    if is_drawn(folder, stem, numbers, caption):
        return []
    from comt_cli.report import figures  # which takes a second

    figure = getattr(figures, draw)(frame, *more)
    figures.sign(figure, caption.trained)
    return figures.write_figure(figure, numbers, folder, stem, caption)


def is_drawn(folder: Path, stem: str, numbers: str, caption: Caption) -> bool:
    """Whether the files of a figure are all there, with these numbers and this caption."""
    texts = {"csv": numbers, "txt": caption.text()}
    try:
        is_same = all(read_text(folder / f"{stem}.{kind}") == text for kind, text in texts.items())
    except (FileNotFoundError, Unreadable):
        return False
    return is_same and all((folder / f"{stem}.{kind}").exists() for kind in ("png", "pdf", "tex"))
