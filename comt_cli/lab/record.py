"""The pages of `comt bench`: measured rows as a CSV that later ones join, as Markdown, and as a figure, from the CSV
alone."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from comt_cli.errors import StorageError, UserError
from comt_cli.files import Unreadable, read_csv, read_text, write_text
from comt_cli.kernels import measurements
from comt_cli.lab.subjects import DECODED, DTYPES, KERNELS, OPS, SUBJECTS, TABLES, goals_of
from comt_cli.report.caption import Caption
from comt_cli.report.figures import sign, write_figure
from comt_cli.report.figures.style import OKABE_ITO, QUIET, page_figure, style
from comt_cli.report.terminal import say_written

Row = Mapping[str, str]
"""A line of the CSV: every value is text, empty where there is none."""
TOO_NOISY = 1.5
"""p90 / p10 of a time beyond which no verdict is given."""


@dataclass(frozen=True)
class Goal:
    """A `value` that is to be at most (or, `least`, not below) the goal in the same row; `timed` is the column of the
    time or ratio that says how reliable it is, by default the value's, "" where it is no time."""

    value: str
    what: str
    least: bool = False
    timed: str | None = None
    decimals: int = 3

    def verdict(self, row: Row, column: str) -> str | None:
        """`met` or `missed`, or `too noisy`, or `not settled`: the goal lies within the interval of the value, or there
        were too few rounds for an interval. None where the row has no goal or no value."""
        if not row.get(self.value) or not row.get(column):
            return None
        value, goal = float(row[self.value]), float(row[column])
        timed = self.value if self.timed is None else self.timed
        spread, uncertainty, settled = (row.get(f"{timed}_{end}") for end in ("spread", "uncertainty", "settled"))
        if spread and float(spread) > TOO_NOISY:
            return f"{self.what} too noisy (p90 / p10 of a time is {float(spread):.2f}, beyond {TOO_NOISY:g})"
        verdict = "met" if (value >= goal if self.least else value <= goal) else "missed"
        if (settled and not uncertainty) or (uncertainty and abs(value - goal) < float(uncertainty) * value):
            verdict = "not settled"
        # what was just missed must not look equal: as many decimals as the rows have
        text = f"{value:,.{self.decimals + (verdict != 'met')}f}"
        text += f" ± {100 * float(uncertainty):.1f} %" if uncertainty else ", no interval" if timed else ""
        least = "at least" if self.least else "at most"
        return f"{self.what} {verdict} ({text}, {least} {f'{goal:,.4f}'.rstrip('0').rstrip('.')})"


@dataclass(frozen=True)
class Page:
    """One kind of measurement (`measured.yaml`): its file's `name`, what makes two rows the same thing (`key`), of
    which `turns` is the part by which rows differ that took turns in one run, and how rows are sorted and shown.
    `order`: for some columns, their values in the order of rows; others come last. `draw` may find nothing to draw."""

    name: str
    title: str
    notes: str
    key: Sequence[str]
    sort: Sequence[str]
    columns: Mapping[str, str]
    turns: Sequence[str] = ("variant",)
    goals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    order: Mapping[str, Sequence[str]] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)
    draw: Callable[[pd.DataFrame], Figure | None] | None = None

    def key_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The values that a row is known by."""
        return tuple(str(row.get(name) or "") for name in self.key)

    def turns_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The values that rows have in common which took turns."""
        return tuple(str(row.get(name) or "") for name in self.key if name not in self.turns)

    def verdicts(self, row: Row) -> str:
        found = (Goal(**goal).verdict(row, column) for column, goal in self.goals.items())
        return "; ".join(verdict for verdict in found if verdict is not None)

    def place_of(self, row: Row) -> list[tuple[float, str]]:
        """Where a row is sorted: by the order of a column's values, numbers by their size, words last."""

        def place(order: Sequence[str], text: str) -> tuple[float, str]:
            if text in order:
                return order.index(text), ""
            return (len(order) + int(text), "") if text.isdigit() else (float("inf"), text)

        return [place(self.order.get(name, ()), row[name]) for name in self.sort]


def pages() -> dict[str, Page]:
    """Every page by its name."""

    def page(name: str, of: str, notes: str = "", **more: Any) -> Page:
        fields = {**TABLES["pages"][of], **more}
        return Page(name=name, **fields | {"notes": TABLES["pages"]["common"] + fields["notes"] + notes})

    ops = {**OPS, "gemm": "the library's matrix product alone"}
    meanings = KERNELS["variants"] | KERNELS["gemm_variants"]
    order = {"op": [*ops], "variant": [*meanings], "gates": [*KERNELS["columns"]], "dtype": DTYPES}
    found = {"kernels": page("kernels", "kernels", order=order, meanings=ops | meanings, draw=draw_kernels)}
    for name, of in DECODED.items():
        order = {"size": [*SUBJECTS[of["subject"]].shapes], "variant": [*of["variants"]], "dtype": DTYPES}
        found[name] = page(name, name, order=order, meanings=of["variants"])
    for name, subject in SUBJECTS.items():
        order = {"size": [*subject.shapes], "variant": [*subject.variants]}
        more = {"title": subject.title, "order": order, "meanings": subject.variants, "draw": draw_steps}
        found[name] = page(name, "step", subject.notes, **more)
    return found


# ---- files


def merge_rows(page: Page, rows: Sequence[Mapping[str, Any]], path: Path, *, whole: bool = False) -> list[Row]:
    """Add `rows` to the CSV at `path`, which need not be there yet: each replaces an older one with the same key, all
    others stay. Lines that lack a part of the key are dropped: nobody knows what they are of. A run of too few rounds
    for an interval does not replace one that has it, nor, if `whole`, one of some variants that of more, since verdicts
    are relative to all of them: its rows are returned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(rows[0])
    merged = {key: row for row in _read(path, columns) if all(key := page.key_of(row))}
    found = {page.key_of(row): row for row in map(_as_text, rows)}
    intervals = [name for name in columns if name.endswith("_uncertainty")]
    lesser = {
        page.turns_of(row)
        for key, row in found.items()
        if any(merged.get(key, {}).get(name) and not row[name] for name in intervals)
    }
    if whole:
        lesser |= {
            page.turns_of(row)
            for key, row in merged.items()
            if key not in found and all(row.get(name) in values for name, values in page.order.items())
        }  # of what can be measured today
    left_out = [row for row in found.values() if page.turns_of(row) in lesser]
    if len(left_out) < len(found):
        merged.update({key: row for key, row in found.items() if page.turns_of(row) not in lesser})
        _write(page, path, columns, list(merged.values()))
    return [*left_out]


def renew_page(page: Page, path: Path) -> list[Path]:
    """Write the CSV `path`, Markdown and figure anew from the CSV's own rows, with today's goals; returns the files.
    None are written where the CSV has no rows, or is of an older version and lacks columns that rows are known by."""
    columns = [*next(iter(_read(path)), ())]
    if not columns or not {*page.key, *page.sort, *page.order} <= set(columns):
        return []
    _write(page, path, columns, _read(path, columns))
    return [path, *write_page(page, path)]


def _write(page: Page, path: Path, columns: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    for row in rows:
        row |= {name: text for name, text in _as_text(goals_of(page.name, row)).items() if name in columns}
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=page.place_of))
    write_text(path, text.getvalue())


def write_page(page: Page, path: Path) -> list[Path]:
    """Write Markdown and figure beside the CSV `path`; returns the files."""
    rows = _read(path)
    figure = page.draw(pd.DataFrame(rows)) if page.draw is not None else None
    written = path.with_suffix(".md")
    write_text(written, markdown(page, rows, is_drawn=figure is not None))
    if figure is None:
        return [written]
    where = f"Measured on {rows[0]['device']}"
    sign(figure, where)
    caption = Caption(page.title, where, (" ".join(page.notes.replace("`", "").split("\n")),))
    return [written, *write_figure(figure, read_text(path), path.parent, path.stem, caption)[:-1]]


def device_folder(device: str) -> str:
    """`NVIDIA H200` as `nvidia-h200`."""
    return re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-").lower()


def _as_text(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in row.items()}


def _read(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, str]]:
    """The rows of a file, with these columns or its own: empty where an older version had none; no rows without a file.
    Raises `UserError` where it is damaged."""
    try:
        return [{name: row.get(name) or "" for name in columns or row} for row in read_csv(path)]
    except FileNotFoundError:
        return []
    except Unreadable as error:
        raise UserError(f"{path} cannot be read: {error}", "Delete it, and measure once more.") from error


def markdown(page: Page, rows: Sequence[Row], *, is_drawn: bool = False) -> str:
    """The page of a CSV's rows."""
    commits = sorted({row["git_commit"] or "unknown" for row in rows if "git_commit" in row})
    lines = [f"# {page.title} on {rows[0]['device']}", "", page.notes.rstrip("\n")]
    lines += [f"Measured at commit {', '.join(commits)}.", ""]
    lines += [f"![{page.title}]({page.name}.png)", ""] if is_drawn else []
    table = {
        (heading, "---:" if " " in how else "---"): [_cell(row, *how.split()) for row in rows]
        for heading, how in page.columns.items()
        if how.split()[0] in rows[0]
    }
    if any(page.verdicts(row) for row in rows):
        table["goals", "---"] = [page.verdicts(row) or "-" for row in rows]
    if len(commits) > 1:
        table["commit", "---"] = [row["git_commit"] or "unknown" for row in rows]
    lines += [f"| {' | '.join(cells)} |" for cells in (*zip(*table, strict=True), *zip(*table.values(), strict=True))]
    return "\n".join([*lines, "", *(f"- `{name}`: {meaning}" for name, meaning in page.meanings.items()), ""])


def _cell(row: Row, name: str, how: str = "") -> str:
    """A column of a row: a word, a number as it stands (`number`), a time with its 10th and 90th percentile (`time`),
    or a number with so many decimals."""
    if not (text := row.get(name)):
        return "-"
    if how == "time":
        decimals = 1 if float(text) >= 10 else 2 if float(text) >= 1 else 3
        ends = [f"{float(end):,.{decimals}f}" for p in ("p10", "p90") if (end := row.get(f"{name}_{p}"))]
        return f"{float(text):,.{decimals}f}" + (f" ({' to '.join(ends)})" if ends else "")
    if not how.isdigit():
        return text
    doubt = ", not settled" if row.get(f"{name}_settled") and not row.get(f"{name}_uncertainty") else ""
    return f"{float(text):,.{how}f}{doubt}"


def beside_goals(results: Path) -> str:
    """Every row below `results` that has a goal, with its verdicts, as a table of Markdown."""
    lines = ["| measured | of | beside its goal |", "| --- | --- | --- |"]
    for name, page in pages().items():
        for path in sorted(results.glob(f"bench/*/{name}.csv")):
            for row in read_csv(path):
                of = ", ".join(row[column] for column in ("size", *page.key) if column not in ("device", "shape"))
                lines += [f"| {name} | {of} | {verdicts} |"] if (verdicts := page.verdicts(row)) else []
    return "\n".join(lines) + "\n"


@contextmanager
def recorded(results: Path) -> Iterator[Callable[[str, list[dict[str, Any]]], None]]:
    """Writes rows below `results` as they come; pages that were written are shown at the end, however that comes. Rows
    that would replace a part of a run of more variants, or one of enough rounds by too few, are shown and not written.
    """
    written: dict[Path, None] = {}
    known = pages()

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        page = known[name]
        path = results / "bench" / device_folder(str(rows[0]["device"])) / f"{name}.csv"
        lesser = merge_rows(page, rows, path, whole=True)
        if len(lesser) < len(rows):
            written.update(dict.fromkeys([path, *write_page(page, path)]))
        if lesser:
            typer.echo(markdown(page, lesser))
            typer.echo(f"not written, since {path} has a run of more variants or rounds: delete it, or choose another "
                       "--results", err=True)  # fmt: skip
        if path.name in (measurements.FILE, measurements.STEP_FILE):
            _keep(page, rows)

    try:
        yield write
    finally:
        for path in written:
            if path.suffix == ".md":
                typer.echo(path.read_text(encoding="utf-8"))
        say_written(written)


def _keep(page: Page, rows: list[dict[str, Any]]) -> None:
    """Add what `kernels: auto` chooses by to the cache folder: wherever one stands, it finds it there. One name may
    stand for processors of several classes, so the class is part of the folder's."""
    folder = device_folder(f"{rows[0]['device']} {rows[0]['device_class']}")
    path = measurements.own_folder() / folder / f"{page.name}.csv"
    if rows[0].get("kernel_hash"):  # a GPU's: what was measured with other kernels or versions stays
        page = replace(page, key=(*page.key, "kernel_hash", "torch", "triton"))
    try:
        if merge_rows(page, rows, path):
            typer.echo("`kernels: auto` keeps to a longer measurement, of which there is an interval", err=True)
    except (OSError, StorageError, UserError, ValueError) as error:  # the results have them all the same
        typer.echo(f"`kernels: auto` will not know of this, {path} cannot be added to: {error}", err=True)


# ---- figures

_COLOURS = {
    "plain": QUIET,
    **dict.fromkeys(("transformers", "torch", "marian"), "#404040"),
    **dict.fromkeys(("comt", "window"), OKABE_ITO[0]),
    **dict.fromkeys(("transponder", "pixel", "highway"), OKABE_ITO[5]),
    **{"sas": OKABE_ITO[3], "grc": OKABE_ITO[4], "laurel": OKABE_ITO[1]},
}
"""By how the name of a variant begins."""
_LINEAR = 10.0
"""Per cent up to which the axis of overheads is linear."""
_LOOKS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "step_ratio_to_best_plain": ("training step", 0.16, {"marker": "o", "markersize": 3.8}),
    # below the steps: filled marks would hide hollow ones
    "forward_ratio_to_best_plain": (
        "forward pass", -0.16, {"marker": "o", "markersize": 3.6, "markerfacecolor": "white"}
    ),
    "goal_step_ratio": (
        "goal of the step", 0.16, {"marker": "|", "markersize": 9, "markeredgewidth": 1.6, "color": OKABE_ITO[2]}
    ),
}  # fmt: skip
"""By column: its meaning, how far above the middle of its line it stands, and its mark."""
_NUMBER = FuncFormatter(lambda number, _: f"{number:g}")


def draw_steps(frame: pd.DataFrame) -> Figure | None:
    """One panel a size and precision, one line a variant: by how many per cent its step (full, above) and its forward
    pass (hollow, below) take longer than the best plain one's, and the goal of the step as a mark. The axis is linear
    up to 10 %, where the goals are, and logarithmic beyond."""
    if (frame := frame[frame["step_ratio_to_best_plain"] != ""]).empty:
        return None
    names = frame["variant"].unique().tolist()[::-1]
    ratios = frame.reindex(columns=[*_LOOKS]).apply(pd.to_numeric, errors="coerce")
    percents = (100 * (ratios - 1)).assign(variant=frame["variant"])
    groups = percents.groupby([frame["size"], frame["precision"]], sort=False)
    across = min(5, len(groups))
    down = -(-len(groups) // across)
    with style():
        figure = page_figure(0.8 + down * (0.6 + 0.16 * len(names)))
        grid = figure.subplots(down, across, squeeze=False, sharey=True)
        for axes, (key, panel) in zip(grid.flat, groups, strict=False):
            _panel(axes, panel, names, is_narrow=across > 3)
            axes.set_title(", ".join(key))
        for axes in list(grid.flat)[len(groups) :]:
            axes.set_axis_off()
        label = "time beyond that of the best plain model, %"
        figure.supxlabel(f"{label} (linear up to {_LINEAR:g} %, shaded; logarithmic beyond)", fontsize=8)
        handles = [
            Line2D([], [], linestyle="none", label=meaning, **{"color": "#404040", **look, "markersize": size})
            for column, (meaning, _, look) in _LOOKS.items()
            for size in [max(look["markersize"], 4.6)]
            if percents[column].notna().any()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


def _panel(axes: Axes, percents: pd.DataFrame, names: list[str], *, is_narrow: bool) -> None:
    for place, name in enumerate(names):
        colour = next((colour for start, colour in _COLOURS.items() if name.startswith(start)), QUIET)
        for order, (column, (_, above, look)) in enumerate(reversed(_LOOKS.items())):
            seen = percents.loc[percents["variant"] == name, column].dropna()
            at, marks = [place + above] * len(seen), {"color": colour, **look}
            axes.plot(seen, at, linestyle="none", zorder=3 + order, **marks)
    low, high = np.nanmin(percents[[*_LOOKS]], initial=0.0), np.nanmax(percents[[*_LOOKS]], initial=_LINEAR)
    axes.axvline(0, color=QUIET, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=1.4)
    axes.set_xlim(low * (1.3 if low < -_LINEAR else 1) - 3, high * 1.3)
    beyond = [100, 1000] if high >= 100 else [50] if is_narrow else [20, 50]  # all have no room beside each other
    axes.xaxis.set_major_locator(FixedLocator([*([-50, -10] if low < -_LINEAR else [-10, -5]), 0, 5, 10, *beyond]))
    axes.axvspan(-_LINEAR, _LINEAR, color="#F4F4F4", zorder=0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(_NUMBER)


def draw_kernels(frame: pd.DataFrame) -> Figure | None:
    """A table for each type: down the operations and the products that they are of, across gates and variants, and in
    each cell how many times the time of the compiled operation without gates a forward and backward pass takes."""
    value = "step_ratio_to_plain_compiled"
    if (frame := frame[(frame["op"] != "gemm") & (frame[value] != "")]).empty:
        return None
    product = frame["shape"].str.rpartition("x")[2].str.partition("-")[2]
    frame = frame.assign(
        ratio=frame[value].astype(float),
        line=frame["op"] + (", " + product).where(product != "", "") + ": " + frame["tokens"] + " x " + frame["width"],
        cell=frame["variant"] + ", " + frame["gates"].replace("none", "no gates"),
    )
    across = [cell for _, of in frame.groupby("gates", sort=False) for cell in of["cell"].unique()]
    types = frame["dtype"].unique().tolist()
    most = max(2.0, frame["ratio"].max(), 1 / frame["ratio"].min())
    with style():
        figure = page_figure(1.75 + 0.135 * frame["line"].nunique())
        grid = figure.subplots(1, len(types), squeeze=False, sharey=True)
        for axes, dtype in zip(grid.flat, types, strict=True):
            of = frame[frame["dtype"] == dtype]
            table = of.pivot_table(index="line", columns="cell", values="ratio", sort=False)
            table = table.reindex(index=frame["line"].unique(), columns=across)
            image = axes.imshow(
                table, norm=LogNorm(1 / most, most), cmap="PuOr_r", aspect="auto", interpolation="nearest"
            )
            for (down, right), ratio in np.ndenumerate(table.to_numpy()):
                if np.isfinite(ratio):
                    colour = "white" if abs(np.log(ratio)) > 0.6 * np.log(most) else "black"
                    text = f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"
                    axes.text(right, down, text, ha="center", va="center", fontsize=5.2, color=colour)
            axes.set_title(dtype)
            axes.set_xticks(range(len(across)), across, rotation=90, fontsize=6)
            axes.set_yticks(range(len(table)), table.index, fontsize=6)
            axes.tick_params(length=0)
            axes.grid(visible=False)
        bar = figure.colorbar(image, ax=grid, pad=0.01, aspect=30)
        bar.set_label("times the compiled one\nwithout gates (log scale)")
        bar.set_ticks([tick for tick in (0.2, 0.5, 1, 2, 5) if 1 / most <= tick <= most])
        bar.ax.yaxis.set_minor_locator(NullLocator())
        bar.ax.yaxis.set_major_formatter(_NUMBER)
    return figure
