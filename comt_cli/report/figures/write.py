"""A figure on disk: for the screen, for the paper, the numbers it was drawn from, and its caption."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from comt_cli.errors import StorageError
from comt_cli.files import atomic_file, write_text
from comt_cli.report.caption import FIGURE_FILES, Caption
from comt_cli.report.figures.style import DPI, PAGE_WIDTH, style

_HEAVY = 380_000
"""Bytes. Figures are committed beside the tables, and a repository keeps every version."""


def write_figure(figure: Figure, frame: pd.DataFrame | str, folder: Path, stem: str, caption: Caption) -> list[Path]:
    """Write `<stem>.png`, `.pdf`, `.txt` and `.tex` (the caption) and `.csv`, each whole or not at all; returns them.

    `frame` is what the figure was drawn from, of which the CSV has six significant digits, or that CSV. It is written
    last. The files hold no date: the same data give the same bytes.

    Raises:
        StorageError: the disk is full, or the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error
    if not isinstance(frame, str):
        frame = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    with style():
        pictures = {"png": _png(figure), "pdf": _pdf(figure)}
    texts = {
        "txt": caption.text(),
        "tex": caption.latex(stem, f"{folder.name}-{stem}", figure.get_figwidth() / PAGE_WIDTH),
        "csv": frame,
    }
    paths = [folder / f"{stem}.{kind}" for kind in FIGURE_FILES]
    for kind, path in zip(FIGURE_FILES, paths, strict=True):
        if kind in pictures:
            with atomic_file(path) as handle:
                handle.write(pictures[kind])
        else:
            write_text(path, texts[kind])
    return paths


def _png(figure: Figure) -> bytes:
    """In full colour; a heavy one in 256 colours, a third of the size, at a small cost to smooth colour bars."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png")
    if len(full.getvalue()) < _HEAVY:
        return full.getvalue()
    Image.open(full, formats=("PNG",)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        small, "png", optimize=True, dpi=(DPI, DPI)
    )
    return small.getvalue()


def _pdf(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="pdf", metadata={"CreationDate": None})
    return content.getvalue()
