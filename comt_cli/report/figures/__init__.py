"""Figures for a paper, drawn from data frames; never imports torch. Here is a figure on disk: for the screen, for the
paper, the numbers it was drawn from, and its caption; and its folder."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from comt_cli.files import atomic_file, make_folder, sha256
from comt_cli.recipe.find import OWN, table_name
from comt_cli.report.caption import FIGURE_FILES, Caption
from comt_cli.report.figures.style import DPI, PAGE_WIDTH, sign, style
from comt_cli.runs.plan import RunSpec, point_in_words

__all__ = ["figure_folder", "of_all", "run_figure_folder", "sign", "write_figure"]

_HEAVY = 380_000  # bytes. Figures are committed beside the tables, and a repository keeps every version


def write_figure(figure: Figure, frame: pd.DataFrame | str, folder: Path, stem: str, caption: Caption) -> list[Path]:
    """Write `<stem>.png`, `.pdf`, `.txt` and `.tex` (the caption) and `.csv`, each whole or not at all; returns them.

    `frame` is what the figure was drawn from, of which the CSV has six significant digits, or that CSV. It is written
    last. The files hold no date: the same data give the same bytes.

    Raises:
        StorageError: the disk is full, or the folder cannot be made or written.
    """
    make_folder(folder)
    if not isinstance(frame, str):
        frame = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    with style():
        contents = {"png": _png(figure), "pdf": _pdf(figure)}
    texts = {
        "txt": caption.text(),
        "tex": caption.latex(stem, f"{folder.name}-{stem}", figure.get_figwidth() / PAGE_WIDTH),
        "csv": frame,
    }
    contents |= {kind: text.encode() for kind, text in texts.items()}
    paths = {kind: folder / f"{stem}.{kind}" for kind in FIGURE_FILES}
    for kind, path in paths.items():
        with atomic_file(path) as handle:
            handle.write(contents[kind])
    return [*paths.values()]


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
