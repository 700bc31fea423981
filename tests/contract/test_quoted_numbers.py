"""Numbers that prose quotes are those of the committed results, rounded once.

README's table and the demo's rows in the quick start are compared to the letter. Every `x [low, high]` of README, of
the pages of docs and recipes, of the overview of results, the findings and the notes on tables is computed anew from
the committed runs. It is searched in the tables that its paragraph links to, else its section; in a line that begins
with the name of a row in that row alone. Centre and both ends must be those of one pair of rows.
"""

from __future__ import annotations

import csv
import functools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import fmean, stdev

from comt_cli.report.exhibits.ladder import fitted, gain_of
from comt_cli.report.format import value
from comt_cli.report.statistics import Paired, paired_difference
from comt_cli.report.written import Line, read_lines
from comt_cli.tasks import tasks
from comt_cli.tasks.base import Metric

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLES = ("evening/comt/table3.md", "evening/ours/modern-sweep.md", "evening/ours/table3-tuned-sweep.md")
"""Those with the cells of README's table; of a row in several, the last one has what came out."""


def markdown_tables(text: str) -> list[list[list[str]]]:
    """Every table of a Markdown text, as rows of cells; the line under the heading is left out."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    rows = [[[cell.strip() for cell in line.strip().strip("|").split("|")] for line in b.splitlines()] for b in blocks]
    return [[row for row in table if not set("".join(row)) <= set(":- ")] for table in rows]


def test_the_table_has_cells_of_the_committed_ones():
    """Of README: in every row, what was published and what came out here."""
    _, _, results = README.partition("## Results")
    _, *shown = markdown_tables(results)[0]
    rows = [row for table in TABLES for row in markdown_tables((RESULTS / table).read_text(encoding="utf-8"))[0][1:]]
    assert len(shown) == 6
    for name, published, here in shown:
        of_the_row = [row for row in rows if row[0] == name.split(" ")[0]]
        assert here in of_the_row[-1]
        assert published == "-" or any(published in row for row in of_the_row)


def test_what_the_demo_prints_is_what_seed_1_gave():
    with (ROOT / "results/smoke/comt/table3-runs.csv").open(encoding="utf-8") as handle:
        seed_1 = {run["row"]: run for run in csv.DictReader(handle) if run["seed"] == "1"}
    text = (ROOT / "docs/quick-start.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\n(method .*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.split() for line in block.splitlines()[1:]]
    assert len(lines) > 3
    for row, perplexity, _, bits_per_byte, *_ in lines:
        assert perplexity == value(float(seed_1[row]["perplexity"]))
        assert bits_per_byte == value(float(seed_1[row]["bits_per_byte"]), 3)


PATTERNS = ("README.md", "docs/*.md", "recipes/*.md", "results/*.md", *(
    f"results/{folder}/README.md" for folder in ("evening/*", "smoke/*", "figures", "diagnose")
))  # fmt: skip
PAGES = [path.relative_to(ROOT).as_posix() for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]
SAS, STUDIES = "results/evening/sas/README.md", "results/evening/ours/README.md"

NUMBER = r"[+-]?\d+(?:\.\d+)?"
QUOTED = re.compile(
    rf"(?P<mean>{NUMBER})(?:\s+(?:%|points|BLEU|CIDEr-D))?(?P<way>\s+(?:lower|higher))?\s+"
    rf"\[(?P<low>{NUMBER}),\s+(?P<high>{NUMBER})\](?!\()"
)
LINK = re.compile(r"\]\(([^()#\s:]+)\.\w+\)")
BESIDE = re.compile(r"-(?:runs|rates|trials|costs|costs-figure|curves|figure|ladder)$")
"""What files beside a table's add to its name."""
ROW = re.compile(r"(?:- |\| )([\w.+-]+)(?: at (\S+))?(?::| \|) ")
METRICS: dict[str, Metric] = {key: metric for task in tasks().values() for key, metric in task.metrics.items()}


@dataclass(frozen=True)
class Quotation:
    """A triple as it is printed, in which line, in a paragraph of which words; the tables that it may be of, and all
    of its section, whose metrics it may have."""

    page: str
    line: int
    words: str
    numbers: tuple[str, str, str]
    tables: tuple[str, ...]
    section: tuple[str, ...]

    def is_of(self, found: Paired | None) -> bool:
        """Whether the three numbers round to what is printed, each at its own decimals."""
        return found is not None and all(
            number is not None and float(f"{number:.{len(text.partition('.')[2])}f}") == float(text)
            for text, number in zip(self.numbers, (found.mean, found.low, found.high), strict=True)
        )

    def __str__(self) -> str:
        mean, low, high = self.numbers
        return f"{self.page}:{self.line}: {mean} [{low}, {high}]"


@dataclass(frozen=True)
class Numbers:
    """The shown runs of a table by row and column, then by seed; the key of each column's metric; the baseline."""

    runs: Mapping[tuple[str, str], Mapping[int, Line]]
    keys: Mapping[str, str]
    baseline: str

    def apart(
        self, row: str, other: str, column: str, key: str | None = None, without: int | None = None
    ) -> Paired | None:
        """The difference of two rows; of another metric than the shown one, or without a seed, where that is said."""
        key = key or self.keys[column]
        ours, theirs = (
            {seed: float(run[key]) for seed, run in self.runs.get((each, column), {}).items()
             if seed != without and run.get(key)} for each in (row, other)
        )  # fmt: skip
        return paired_difference(ours, theirs, METRICS[key].difference)


@functools.cache
def table(name: str) -> Numbers:
    """A committed table by its path, `evening/comt/table3`."""
    cells = read_lines(RESULTS / f"{name}.csv")
    runs: dict[tuple[str, str], dict[int, Line]] = {}
    for run in read_lines(RESULTS / f"{name}-runs.csv"):
        if run["state"] == "done" and run.get("chosen") != "False":
            runs.setdefault((run["row"], run["column"]), {})[int(run["seed"])] = run
    return Numbers(runs, {cell["column"]: cell["metric"] for cell in cells}, cells[0]["baseline"])


@functools.cache
def pairs(name: str, key: str | None = None) -> Sequence[Paired]:
    """The differences of all pairs of rows of a table, at every column; of a metric that its runs may not have."""
    numbers = table(name)
    found = (numbers.apart(row, other, column, key) for (row, column), (other, at) in permutations(numbers.runs, 2)
             if at == column)  # fmt: skip
    return [each for each in found if each is not None]


@functools.cache
def beside(name: str) -> Sequence[Paired]:
    """Differences of a sweep's table of rates, of runs that no CSV lists; of a ladder the slopes at each row's rate and
    at the recipe's, fitted to the gains of the rows over the baseline."""
    path = RESULTS / f"{name}-rates.csv"
    if not path.exists():
        return []
    rates = read_lines(path)
    found = []
    gains: dict[tuple[str, str], dict[str, float]] = {}
    for line in rates:
        for kind in ("recipe", "baseline", "own"):
            of = [line.get(f"{kind}.{key}") for key in ("difference_percent", "interval_low", "interval_high")]
            if all(of):
                found.append(Paired(*map(float, of), n=int(line[f"{kind}.n"])))
                gains.setdefault((line["row"], kind), {})[line["column"]] = gain_of(
                    float(of[0]), METRICS[line["metric"]]
                )
    if (ladder := RESULTS / f"{name}-ladder.csv").exists():
        flops = {line["column"]: float(line["flops"]) for line in read_lines(ladder)}
        lines = [fitted([flops[column] for column in each], list(each.values())) for each in gains.values()
                 if len(each) == len(flops)]  # fmt: skip
        found += [Paired(line["slope"], line["low"], line["high"], len(flops)) for line in lines]
    return found


ALMANAC = "almanac-en-vi/tiny"
OTHERWISE = {
    (SAS, "+1.5 [-0.1, +3.1]"): lambda: table("evening/sas/table3").apart("sas", "baseline", ALMANAC, without=5),
    (SAS, "+1.8 [+0.2, +3.3]"): lambda: table("evening/sas/table3").apart(
        "sas", "baseline", ALMANAC, "last_test_bleu_intl"
    ),
}
"""What is said of a part of a table's seeds, or of a metric that no table shows."""


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, headings, bullets and rows of tables, each with the number of its first line."""
    start, held = 1, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if held and (not line.strip() or re.match(r"\s*(?:- |#|\|)", line)):
            yield start, "\n".join(held)
            held = []
        if line.strip():
            start = start if held else number
            held.append(line)


def linked(page: str, text: str) -> dict[str, None]:
    """The tables that a text of a page links to."""
    links = (posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in LINK.findall(text))
    stems = (BESIDE.sub("", link.removeprefix("results/")) for link in links if link.startswith("results/"))
    names = dict.fromkeys(name for stem in stems for name in (stem, f"{stem}-sweep"))
    return {
        name: None for name in names if (RESULTS / f"{name}-runs.csv").exists() and (RESULTS / f"{name}.csv").exists()
    }


def quotations(page: str, text: str) -> Iterator[Quotation]:
    """All of a page, in its order."""
    parts = list(paragraphs(text.replace("\\", "")))
    of_section: list[dict[str, None]] = [{}]
    for _, part in parts:
        if part.startswith("#"):
            of_section.append({})
        of_section[-1] |= linked(page, part)
    section = 0
    for start, part in parts:
        section += part.startswith("#")
        for match in QUOTED.finditer(part):
            mean = f"-{match['mean']}" if "lower" in (match["way"] or "") else match["mean"]
            line = start + part[: match.start()].count("\n")
            whole = tuple(of_section[section])
            tables, numbers = tuple(linked(page, part)) or whole, (mean, match["low"], match["high"])
            yield Quotation(page, line, part, numbers, tables, whole)


def is_found(one: Quotation) -> bool:
    """Whether the committed runs give a quotation."""
    mean, low, high = one.numbers
    if other := OTHERWISE.get((one.page, f"{mean} [{low}, {high}]")):
        return one.is_of(other())
    if begins := ROW.match(one.words):
        row, column = begins.groups()
        for numbers in map(table, one.tables):
            columns = [at for (each, at) in numbers.runs if each == row and column in (None, at)]
            if columns:
                return any(one.is_of(numbers.apart(row, numbers.baseline, at)) for at in columns)
    shown = {key for name in one.section for key in table(name).keys.values()}
    return any(
        one.is_of(found)
        for name in one.tables
        for found in (*pairs(name), *beside(name), *(each for key in shown for each in pairs(name, key)))
    )


def wrong(page: str, text: str) -> list[str]:
    """The quotations of a page that no committed run gives."""
    return [str(one) for one in quotations(page, text) if not is_found(one)]


def test_every_interval_that_prose_quotes_is_that_of_the_runs():
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    assert sum(len(list(quotations(page, text))) for page, text in texts.items()) > 500
    assert [each for page, text in texts.items() for each in wrong(page, text)] == []


def test_an_interval_that_is_not_is_found():
    """Rounded twice, of another row, with one end of another."""
    said = "[table](gate-start.md)\n\n- It has {}.\n"
    assert wrong(STUDIES, said.format("-4.5 % [-6.6, -2.4]")) == []
    assert wrong(STUDIES, said.format("-4.5 % [-6.7, -2.4]")) == [f"{STUDIES}:3: -4.5 [-6.7, -2.4]"]
    section = "[table3.md](evening/comt/table3.md)\n\n- {}: 16.2 % lower \\[-17.6, -14.8\\].\n"
    assert wrong("results/README.md", section.format("mix-ln")) == []
    assert wrong("results/README.md", section.format("post-ln")) != []
    assert wrong("results/README.md", section.format("mix-ln").replace("-14.8", "-15.6")) != []


def test_what_bf16_costs_is_what_the_runs_say():
    """Each row of the table in the notes: means over three seeds, and differences of the same seed to fp32."""
    fp32 = read_lines(RESULTS / "evening/ours/precision-fp32.csv")
    found = {("fp32", line["row"], line["seed"]): float(line["perplexity"]) for line in fp32}
    found |= {
        (line["column"], line["row"], line["seed"]): float(line["perplexity"])
        for line in read_lines(RESULTS / "evening/ours/precision-runs.csv")
    }
    _, _, section = (ROOT / STUDIES).read_text(encoding="utf-8").partition("## bf16")
    ((_, *rows), *_) = markdown_tables(section)
    assert len(rows) == 9
    for name, *cells in rows:
        by = {c: [found[c, name, seed] for seed in "123"] for c in ("fp32", "bf16-mixed", "bf16-pure")}
        expected = [f"{fmean(by['fp32']):.2f}"]
        for column in ("bf16-mixed", "bf16-pure"):
            apart = [100 * (other / base - 1) for base, other in zip(by["fp32"], by[column], strict=True)]
            error = stdev(apart) / len(apart) ** 0.5
            expected += [f"{fmean(by[column]):.2f}", f"{fmean(apart):+.1f} ± {error:.1f}"]
        assert cells == expected, name
