"""Write results/FINDINGS.md and its figures from the committed results: python docs/findings.py

The article is the template `findings.md.j2`; `findings.csv` lists the rows of its figures. Every number comes from a
table below `results/`. A claim that its numbers no longer support raises `Untrue`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import jinja2

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from comt_cli.files import write_changed  # noqa: E402
from comt_cli.report.overview import GROUPS, Overview, counts, improves, in_paper, ours, values  # noqa: E402
from comt_cli.report.statistics import Verdict, corrected, judge, paired_difference, stands  # noqa: E402
from comt_cli.report.written import Line, Reader, WrittenCell, read_lines  # noqa: E402
from docs.findings_figures import draw, figures, mean, numbers  # noqa: E402

FIGURES = "figures/findings"  # below the results
CLAIMS: Mapping[str, Callable[[WrittenCell], bool]] = {
    "better": lambda cell: improves(cell) is True,
    "worse": lambda cell: improves(cell) is False,
    "not_resolved": lambda cell: cell.verdict is Verdict.not_resolved,
    "agrees": lambda cell: cell.verdict is Verdict.agrees,
    "disagrees": lambda cell: cell.verdict is Verdict.disagrees,
}


class Untrue(Exception):
    """A claim of the article that the results do not support."""


class Facts:
    """Contents of the committed tables, which are named by their path: `evening/comt/table3`."""

    def __init__(self, results: Path = ROOT / "results") -> None:
        self.overview = Overview.of(results, Reader())
        self.tables = {one.path: one for found in self.overview.written.values() for one in found if one.cells}
        self.scales = {scale["name"]: scale for scale in self.overview.scales}

    def cell(self, table: str, row: str, beside: str = "", column: str = "") -> WrittenCell:
        """A row of a table with its difference to the baseline, or to the row `beside`; `column` if there are several.
        Raises `LookupError` where this is not exactly one cell."""
        found = [each for each in self.tables[table].cells if each.row == row and column in ("", each.column)]
        if len(found) != 1:
            raise LookupError(f"{table}: {len(found)} cells of row {row}, column {column or 'not given'}")
        if beside in ("", found[0].baseline):
            return found[0]
        metric, seeds = found[0].metric, partial(self.seeds, table, column=found[0].column)
        apart = paired_difference(seeds(row), seeds(beside), metric.difference)
        states = found[0].state, self.cell(table, beside, column=found[0].column).state
        verdict = judge(apart, metric, diverged="diverged" in " ".join(states))
        return replace(found[0], difference=apart, verdict=verdict, baseline=beside, adjusted=None)

    def runs(self, table: str, row: str, column: str = "") -> list[Line]:
        """The finished runs behind a cell; of a sweep those at the chosen learning rate."""
        at = (row, self.cell(table, row, column=column).column, "done")
        runs = [run for run in self.tables[table].runs if run.get("chosen") != "False"]
        return [run for run in runs if (run["row"], run["column"], run["state"]) == at]

    def seeds(self, table: str, row: str, column: str = "") -> dict[int, float]:
        """The metric of a row's runs by seed."""
        key = self.cell(table, row, column=column).comparison[0]
        return {int(run["seed"]): float(run[key]) for run in self.runs(table, row, column)}

    def mean(self, table: str, row: str, column: str = "") -> str:
        """The mean over a row's seeds: `49.19`."""
        return mean([*self.seeds(table, row, column).values()])

    def paper(self, table: str, row: str) -> str:
        """The published difference, and where it was published: `-11.1 %, c4/130m`."""
        return in_paper(self.cell(table, row)).replace(" (", ", ").rstrip(")")

    def setting(self, table: str, row: str, key: str, column: str = "") -> str:
        """The value of all runs of a cell in a column such as `parameters`, `tokens` or `steps`: `731,520`."""
        (value,) = values(self.runs(table, row, column), key)
        return f"{int(value):,}" if value.isdigit() else value

    def step(self, table: str, row: str, column: str, key: str = "compiled_step_ratio") -> float:
        """A column of the costs of a recipe: by default the ratio of a compiled step's time to the baseline's."""
        costs = read_lines(self.overview.results / f"{table.removesuffix('-sweep')}-costs.csv")
        (found,) = (line[key] for line in costs if (line["row"], line["column"]) == (row, column))
        return float(found)

    def claim(self, claim: str, table: str, row: str, beside: str = "", *, column: str = "", holm: bool = False) -> str:
        """The difference of a cell, `-14.6 % [-17.0, -12.1]`. Raises `Untrue` where `claim` does not hold for it; with
        `holm`, also where it is not resolved after Holm's correction over its table."""
        found = self.cell(table, row, beside, column)
        if not CLAIMS[claim](found) or (holm and not stands(found.adjusted)):
            raise Untrue(
                f"{table} {row} {beside} {column}: {ours(found)} is not {claim}{' after Holm' if holm else ''}"
            )
        return ours(found)

    def compared(self, table: str, beside: str) -> list[WrittenCell]:
        """All other trained rows of a table of one column, compared with a row; Holm's correction is over these."""
        rows = [cell.row for cell in self.tables[table].cells if cell.row != beside]
        cells = [self.cell(table, row, beside) for row in rows if self.seeds(table, row)]
        adjusted = corrected({cell.row: (cell.verdict, cell.difference, cell.metric.difference) for cell in cells})
        return [replace(cell, adjusted=adjusted.get(cell.row)) for cell in cells]

    def count(self, scale: str, group: str = "") -> int:
        """The number of published directions tried at a scale, or of those with one group of verdicts."""
        return sum(not group or cell.verdict in GROUPS[group] for cell in self.scales[scale]["judged"])

    def holm(self, scale: str) -> int:
        """The number of published directions that are resolved after Holm's correction over their table, too."""
        return sum(cell.verdict.is_resolved and stands(cell.adjusted) for cell in self.scales[scale]["judged"])

    def disagreeing(self, scale: str) -> list[tuple[str, WrittenCell]]:
        """Every comparison that disagrees with its paper, once, with a table that has it."""
        found = [(table, cell) for table, one in self.tables.items() for cell in one.cells
                 if one.scale == scale and cell.verdict is Verdict.disagrees]  # fmt: skip
        return [*{cell.comparison: (table, cell) for table, cell in reversed(found)}.values()][::-1]


def holds(text: str, condition: object) -> str:
    """The text, if the condition is true. Raises `Untrue` otherwise."""
    if not condition:
        raise Untrue(text)
    return text


def article(facts: Facts) -> str:
    """The text of the article."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), trim_blocks=True,
                                     undefined=jinja2.StrictUndefined, keep_trailing_newline=True)  # fmt: skip
    environment.filters["short"] = lambda text: text.partition(" [")[0]
    environment.filters["times"] = "{:.2f}".format
    environment.tests |= {"improves": lambda cell, way: improves(cell) is way, "stands": lambda c: stands(c.adjusted)}
    environment.globals |= {claim: partial(facts.claim, claim) for claim in CLAIMS}
    environment.globals |= {"facts": facts, "holds": holds, "ours": ours, "counts": counts, "paper": facts.paper}
    return environment.get_template("findings.md.j2").render()


def main() -> None:
    """Write the article and the CSVs of its figures. A figure is drawn where its CSV has changed."""
    facts = Facts()
    folder = facts.overview.results / FIGURES
    folder.mkdir(parents=True, exist_ok=True)
    for figure, lines in figures(facts).items():
        text, table, picture = numbers(figure, lines), folder / f"{figure}.csv", folder / f"{figure}.png"
        if not (picture.exists() and table.exists() and table.read_text(encoding="utf-8") == text):
            draw(figure, lines, picture)
        write_changed(table, text)
    write_changed(facts.overview.results / "FINDINGS.md", article(facts))


if __name__ == "__main__":
    main()
