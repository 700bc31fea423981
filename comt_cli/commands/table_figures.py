"""The figures that go with a written table: of a ladder, and of costs; and whether one is drawn already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    folder, stem = files.csv.parent, f"{files.csv.stem}-ladder"
    numbers = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    if is_drawn(folder, stem, numbers, caption):
        return []
    from comt_cli.report import figures

    figure = figures.draw_ladder(frame, table.baseline, unit(table))
    figures.sign(figure, caption.trained)
    return figures.write_figure(figure, numbers, folder, stem, caption)


def write_costs_figure(table: Table, files: ReportFiles) -> list[Path]:
    """Draw the differences of a written table against its measured costs; returns the files that were written, none
    where nothing is new or too little was measured."""
    from comt_cli.report.costs_words import costs_caption, costs_frame, how

    frame = costs_frame(table)
    if frame is None:
        return []
    caption, stem = costs_caption(table, frame), f"{files.csv.stem}-costs-figure"
    numbers = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    if is_drawn(files.csv.parent, stem, numbers, caption):
        return []
    from comt_cli.report import figures

    units = "/".join(dict.fromkeys(table.unit(column).sign for column in table.columns))
    figure = figures.draw_costs(frame, table.baseline, units, how(table))
    figures.sign(figure, caption.trained)
    return figures.write_figure(figure, numbers, files.csv.parent, stem, caption)


def is_drawn(folder: Path, stem: str, numbers: str, caption: Caption) -> bool:
    """Whether the files of a figure are all there, with these numbers and this caption."""
    texts = {"csv": numbers, "txt": caption.text()}
    others = [folder / f"{stem}.{kind}" for kind in ("png", "pdf", "tex")]
    is_same = all(_content(folder / f"{stem}.{kind}") == text for kind, text in texts.items())
    return is_same and all(path.exists() for path in others)


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
