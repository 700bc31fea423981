"""Figures of results/FINDINGS.md: their lines, their CSVs and their drawings (see `findings.py`)."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.report import format
from comt_cli.report.figures.style import OKABE_ITO, QUIET, page_figure, style
from comt_cli.report.overview import improves, ours
from comt_cli.report.statistics import summarise
from comt_cli.report.written import read_lines

if TYPE_CHECKING:
    from docs.findings import Facts

OF_VALUES = "warm-up"  # the figure that shows the value of each seed; the others show differences


def figures(facts: Facts) -> dict[str, list[dict[str, Any]]]:
    """The lines of each figure: group, label, cell, and the value of each seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(Path(__file__).with_name("findings.csv")):
        cell = facts.cell(line["table"], line["row"], line["beside"], line["column"])
        seeds = facts.seeds(line["table"], line["row"], line["column"])
        found.setdefault(line["figure"], []).append({**line, "cell": cell, "seeds": seeds})
    return found


def numbers(figure: str, lines: list[dict[str, Any]]) -> str:
    """The CSV of what a figure shows."""
    keys = ["seed", "value"] if figure == OF_VALUES else ["beside", "difference", "unit", "low", "high", "n", "verdict"]
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["group", "label", "table", "row", "column", *keys])
    for line in lines:
        cell, apart, unit = line["cell"], line["cell"].difference, line["cell"].metric.difference.name
        shown = [*line["seeds"].items()] if figure == OF_VALUES else [
            (cell.baseline, apart.mean, unit, apart.low, apart.high, apart.n, cell.verdict.value)]  # fmt: skip
        for each in shown:
            named = [line["group"], line["label"], line["table"], cell.row, cell.column]
            table.writerow([*named, *map(format.machine, each)])
    return out.getvalue()


def draw(figure: str, lines: list[dict[str, Any]], path: Path) -> None:
    """Draw a figure: a line for each row, below the name of its group; the numbers at the right."""
    colours = {True: OKABE_ITO[0], False: OKABE_ITO[5], None: QUIET}
    groups = {line["group"]: [each for each in lines if each["group"] == line["group"]] for line in lines}
    ticks = [each for group, members in groups.items() for each in ({"label": group}, *members)]
    metric = lines[0]["cell"].metric
    with style():
        page = page_figure(0.18 * len(ticks) + 0.55)
        axes: Any = page.subplots()
        for y, line in enumerate(ticks):
            if not (cell := line.get("cell")):
                continue
            values, apart = [*line["seeds"].values()], cell.difference
            text = f"mean {mean(values)}, n = {len(values)}" if figure == OF_VALUES else f"{ours(cell)}, n = {apart.n}"
            if figure == OF_VALUES:
                axes.plot(values, [y] * len(values), "o", color=OKABE_ITO[0], markersize=4, alpha=0.7)
            else:
                reach = [[apart.mean - apart.low], [apart.high - apart.mean]]
                look = {"fmt": "o", "color": colours[improves(cell)], "markersize": 4, "elinewidth": 1.2}
                axes.errorbar([apart.mean], [y], xerr=reach, **look)
            axes.text(1.01, y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=7)
        axes.set_yticks(range(len(ticks)), [line["label"] for line in ticks])
        for tick, line in zip(axes.get_yticklabels(), ticks, strict=True):
            tick.set_fontweight("normal" if "cell" in line else "bold")
        axes.set_ylim(len(ticks) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        if figure == OF_VALUES:
            axes.set_xscale("log")
            axes.set_xticks([50, 100, 200, 400], ["50", "100", "200", "400"])
            axes.minorticks_off()
            axes.set_xlabel(f"{metric.words}, one point per seed; {metric.better} is better")
        else:
            axes.axvline(0, color="black", linewidth=0.8)
            unit = metric.difference.spoken
            axes.set_xlabel(f"difference in {metric.brief}, {unit}, with 95 % interval; {metric.better} is better")
        page.savefig(path)


def mean(values: list[float]) -> str:
    """The mean of values as tables print it."""
    summary = summarise(values)
    return format.value(summary.mean) if summary else "-"
