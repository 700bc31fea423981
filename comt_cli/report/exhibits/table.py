"""The table of a recipe: every row under every column next to the paper's numbers, with its verdict.

Its cells are finished texts, by key of `_HEADINGS`, the same for Markdown, LaTeX and the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, ClassVar

from comt_cli.report import format
from comt_cli.report.caption import in_latex as tex
from comt_cli.report.caption import in_markdown, notes, pipes, prose, templates
from comt_cli.report.cells import cells_frame
from comt_cli.report.exhibits import Exhibit, ladder
from comt_cli.report.exhibits.costs import UNSETTLED, costs_rule
from comt_cli.report.exhibits.evaluations import Evaluations, grids
from comt_cli.report.frame import Record, TableInfo
from comt_cli.report.statistics import POWER, STANDS, Verdict, excludes_published, stands
from comt_cli.report.words import paper_name
from comt_cli.tasks.base import Metric
from comt_cli.words import in_words

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "-"
Texts = dict[str, str]
_HEADINGS = {
    "method": "method",
    "ours": "{whose} ± s.e. (n)",
    "median": "median",
    "beside": "{beside}",
    "difference": "vs {baseline}, {signs}{interval}",
    "detectable": "detectable, {signs}",
    "equal_time": "at equal time, {signs} [95 %]",
    "paper": "paper",
    "paper_difference": "paper's {signs}",
    "published": "published elsewhere, %",
    "verdict": "verdict",
    "parameters": "parameters",
    "paper_increase": "paper's parameters",
    "flops": "FLOPs, ×",
    "bytes": "bytes, ×",
    "saved": "saved, ×",
    "step": "step, ×",
    "compiled": "compiled step, ×",
    "speed": "{unit}/s",
}
"""The columns from left to right, by key, with their headings."""
_IN_LATEX = ("method", "ours", "beside", "difference", "paper", "paper_difference", "verdict")
"""The other columns are only in the CSV and on the page, since a line of text is narrower. So is the second metric, if
the paper's numbers are shown."""
_FIRST = ("method", "ours", "verdict", "difference", "paper_difference", "paper", "published", "median", "beside")
"""Columns that have priority on a narrow terminal."""
GUIDE = "docs/statistics.md"
"""The explanation of the columns, in comt's repository."""
_SMALLER = "The runs are smaller than the paper's: the verdict holds for this scale only."
_MOST_NAMED = 6  # rows that a verdict names; of more it gives the number
_CONTENT_DIGITS = 12  # digits of a data hash on a page; the CSV of the runs has all


class Table(Exhibit):
    """A table as CSV, Markdown page and LaTeX."""

    name = ""
    digits: ClassVar[int] = 8

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        return cells_frame(runs)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        return [verdict(frame), *footnotes(frame), *frame.attrs["notes"]]

    def page(self, frame: pd.DataFrame) -> str:
        """Title, networks, verdict, a table for each column with its footnotes, and notes on how to read them.
        `attrs["guide"]` is the address of `GUIDE`, if it is there."""
        info, texts = frame.attrs["table"], texts_of(frame)
        parts = [
            f"# {in_markdown(info.recipe.title)}",
            f"*{in_markdown(frame.attrs['trained'])}*",
            f"**Verdict.** {in_markdown(verdict(frame))}",
        ]
        in_pipes = [_markdown(each, is_best) for each, is_best in zip(texts, frame["_best"], strict=True)]
        for columns in groups_of(frame):
            (head, *rows), several = grid_of(frame, in_pipes, columns), len(columns) > 1
            right = [at > several and title != "verdict" for at, title in enumerate(head)]
            rows = [[line[0], in_markdown(line[1]), *line[2:]] for line in rows] if several else rows
            table = pipes([[*map(in_markdown, head)], *rows], right, are_escaped=True)
            heading = ", ".join(column_name(frame, column) for column in columns)
            of = metrics_of(info, columns)
            of = of if ";" in of else of[0].upper() + of[1:]
            parts += [f"## {in_markdown(heading)}", in_markdown(f"{of}."), table, in_markdown(_setup(frame, columns))]
        if trends := ladder.trends(frame):
            sizes = ladder.texts(trends, list(dict.fromkeys(frame["column"])))
            parts += [f"## {ladder.HEADING}", in_markdown(ladder.rule(frame, trends)), pipes(sizes)]
        if not (tasks := Evaluations().frame(frame)).empty:
            parts += ["## Tasks", *map(in_markdown, Evaluations().sentences(tasks)), *map(pipes, grids(tasks))]
        parts.append(_list(f"[{mark}] {in_markdown(text)}" for mark, text in enumerate(footnotes(frame), start=1)))
        scale = f"Scale {info.scale}: {info.recipe.scales[info.scale].description.rstrip('.')}."
        is_smaller = info.scale != "paper" and info.paper is not None
        said = [*_origin(frame, texts[0], page=True), scale, *([_SMALLER] if is_smaller else []), *frame.attrs["notes"]]
        guide = f"[{GUIDE}]({frame.attrs['guide']})" if frame.attrs.get("guide") else f"`{GUIDE}`"
        parts += ["## Notes", _list([f"How to read the tables: {guide}.", *map(in_markdown, said)])]
        return "\n\n".join(filter(None, parts)) + "\n"

    def latex(self, frame: pd.DataFrame) -> str:
        r"""The float: `\label{tab:<folder>-<name>-<scale>}`, one block of lines a column, footnotes below."""
        info, texts = frame.attrs["table"], texts_of(frame)
        loaded = info.loaded
        keys = [key for key in texts[0] if key in _IN_LATEX and not (key == "beside" and "paper" in texts[0])]
        explained = [*keys, *(["parameters"] if "paper_increase" in texts[0] else [])]
        columns = list(dict.fromkeys(frame["column"]))
        marked = [f"{_superscript(f' [{mark}]')}{tex(text)}" for mark, text in enumerate(footnotes(frame), 1)]
        text = (
            templates()
            .get_template("table.tex.jinja")
            .render(
                file=format.one_line(loaded.file),
                title=tex(info.recipe.title.rstrip(".")),
                said=tex(f"{frame.attrs['trained']}. {' '.join(_origin(frame, explained))}"),
                label=re.sub("[^A-Za-z0-9]", "-", f"{loaded.folder}-{loaded.outputs(info.scale)}-{info.scale}"),
                sides="".join({"method": "l", "verdict": r"p{0.17\textwidth}"}.get(key, "r") for key in keys),
                headings=map(tex, _headings(frame, keys, columns)),
                lines=[line for column in columns for line in _block(frame, texts, column, keys)],
                notes=[*marked, *map(tex, frame.attrs["notes"])],
            )
        )
        return f"{text}\n"


def texts_of(cells: pd.DataFrame) -> list[Texts]:
    """The texts of every cell, without keys that are empty in all of them."""
    shown, marks = _beside(cells), {text: number for number, text in enumerate(footnotes(cells), start=1)}
    every = [_texts(each, shown.get(each["column"]), marks) for each in cells.to_dict("records")]
    keys = [key for key in _HEADINGS if key in ("method", "ours") or any(texts[key] != NOTHING for texts in every)]
    return [{key: texts[key] for key in keys} for texts in every]


def _texts(record: Record, beside: Metric | None, marks: Mapping[str, int]) -> Texts:
    metric, ours, costs = record["_metric"], record["_ours"], record["_costs"] or {}
    is_collapsed = record["_paper_collapsed"] and record["row"] != record["baseline"]

    def shown(value: Any, text: Callable[[Any], str] = lambda it: format.value(it, metric.decimals)) -> str:
        return NOTHING if value is None else text(value)

    def time(key: str) -> str:  # `error` is relative to the ratio
        ratio, error = costs.get(key), costs.get(f"{key}_error")
        end = f" {UNSETTLED}" if error is None else f" ± {ratio * error:.2f}" if error else ""
        return NOTHING if ratio is None else f"{ratio:.2f}{end}"

    value = format.summary(ours, metric.decimals) if ours else record["_cell"].standing(record["metric"])
    speed = next(value for key, value in record.items() if key.endswith("_per_second"))
    return {
        "method": record["row"],
        "ours": value + "".join(f" [{marks[text]}]" for text in record["_remarks"]),
        "median": shown(ours.median if "median" in record and ours is not None and ours.n > 1 else None),
        "beside": NOTHING if beside is None else
        shown(record[metric.beside], lambda it: format.value(it, beside.decimals)),
        "difference": shown(record["_apart"], format.difference),
        "detectable": shown(record["_detectable"], lambda it: ", ".join(map(format.signed, it))),
        "equal_time": shown(record["_equal_time"], format.difference),
        "paper": shown(record["paper"]),
        "paper_difference": "collapsed" if is_collapsed else shown(record["_paper_apart"], format.signed),
        "published": shown(record.get("published_percent"), format.signed),
        "verdict": f"{record['verdict']}{STANDS if stands(record['p_value_holm']) else ''}",
        "parameters": shown(record["extra_parameters_percent"], format.increase),
        "paper_increase": shown(record["paper_increase"] or None, lambda it: f"{it.removesuffix('%')} %"),
        **{key: shown(costs.get(key), "{:.2f}".format) for key in ("flops", "bytes", "saved")},
        **{key: time(key) for key in ("step", "compiled")},
        "speed": shown(speed, format.speed),
    }  # fmt: skip


def _headings(cells: pd.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> list[str]:
    info, others = cells.attrs["table"], _beside(cells)
    has_interval = any(apart is not None and apart.low is not None for apart in cells["_apart"])
    named = {
        "baseline": info.baseline,
        "signs": "/".join(dict.fromkeys(info.metrics[column].difference.sign for column in columns)),
        "interval": " [95 %]" if has_interval else "",
        "whose": "mean" if info.paper is None else "ours",
        "beside": "/".join(dict.fromkeys(others[column].label for column in columns if column in others)),
        "unit": info.task.unit.name,
    }
    return [_HEADINGS[key].format(**named) for key in keys]


def _beside(cells: pd.DataFrame) -> dict[str, Metric]:
    info, specs, found = cells.attrs["table"], cells.attrs["specs"], {}
    for column in dict.fromkeys(cells["column"]):
        key = info.metrics[column].beside
        own = any(info.keys[name] == key and spec.request == specs[column].request for name, spec in specs.items())
        if key is not None and not own:
            found[column] = info.task.metrics[key]
    return found


def column_name(cells: pd.DataFrame, column: str) -> str:
    """A column's name; for runs with another text than the recipe's, with the name of that text."""
    data, (_, slash, rest) = cells.attrs["specs"][column].settings.data, column.partition("/")
    text = str(getattr(data, "corpus", ""))
    is_other = ":" in text or any(each.startswith("data.corpus=") for each in cells.attrs["table"].changed)
    return f"{text}{slash}{rest}" if is_other and slash else column


def groups_of(cells: pd.DataFrame) -> list[list[str]]:
    """The columns, grouped if they show metrics of the same runs with differences in one unit."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for column, own in cells.groupby("column", sort=False)["_cell"]:
        runs = (run.spec.request for cell in own for run in cell.every)
        groups.setdefault((cells.attrs["table"].metrics[str(column)].difference.sign, *runs), []).append(str(column))
    return list(groups.values())


def grid_of(cells: pd.DataFrame, texts: Sequence[Texts], columns: Sequence[str]) -> list[list[str]]:
    """The texts of `columns` (`groups_of`) as a table, the headings first: one line per row; for several columns one
    table column each, and for every row one line per key that is not empty."""
    here = {name: [each for each, at in zip(texts, cells["column"], strict=True) if at == name] for name in columns}
    first = here[columns[0]]
    heads = _headings(cells, list(first[0]), columns)
    if len(columns) == 1:
        return [heads, *([*each.values()] for each in first)]
    made, names = [["method", "", *columns]], dict(zip(first[0], heads, strict=True))
    for line in zip(*here.values(), strict=True):
        keys = [key for key in line[0] if key != "method" and any(each[key] != NOTHING for each in line)]
        for key in keys:
            row = line[0]["method"] if key == keys[0] else ""
            made.append([row, names[key], *(each[key] for each in line)])
    return made


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def metrics_of(info: TableInfo, columns: Iterable[str]) -> str:
    """The metric of each column, and which direction is better."""
    metrics: dict[Metric, list[str]] = {}
    for column in columns:
        metrics.setdefault(info.metrics[column], []).append(column)
    return prose("cells", metrics=metrics)


def _origin(cells: pd.DataFrame, shown: Collection[str], *, page: bool = False) -> list[str]:
    """Sentences on the source of the table, the columns that are `shown`, and the runs. The metrics are in them unless
    a `page` has them above its tables."""
    info, columns = cells.attrs["table"], list(dict.fromkeys(cells["column"]))
    metrics = list(dict.fromkeys(info.metrics[column] for column in columns))
    trains = (spec.settings.train for spec in cells.attrs["specs"].values())
    beside = (info.task.metrics[metric.beside].remark for metric in metrics if metric.beside)
    return notes(
        "origin",
        cells.attrs,
        page=page,
        shown=shown,
        source=source(info),
        cells=metrics_of(info, columns),
        pairings=dict.fromkeys(metric.difference.paired(info.baseline) for metric in metrics),
        endings=dict.fromkeys((each.select, each.averaged_steps) for each in trains),
        best=info.task.metrics[info.task.metric].brief,
        rules="".join(f"● {rule}" for rule in _rules(cells)),
        beside=dict.fromkeys(filter(None, beside)),
        has_increase=any(cells["paper_increase"]),
        costs=costs_rule(cells) if {"step", "compiled"} & {*shown} else "",
        power=POWER,
        contents=[each[:_CONTENT_DIGITS] for each in cells.attrs["contents"]],
    )


def _rules(cells: pd.DataFrame) -> list[str]:
    stars, bold = any(map(stands, cells["p_value_holm"])), any(cells["_best"])
    return notes("rules", mark=STANDS, stars=stars, bold=bold, baseline=cells.attrs["table"].baseline)


def _setup(cells: pd.DataFrame, columns: Sequence[str]) -> str:
    """Model, data and length of the runs of columns, in a sentence: the baseline's, which all rows share."""
    here, spec = cells.loc[cells["column"] == columns[0], "_cell"], cells.attrs["specs"][columns[0]]
    parameters = next(cell.average("parameters") for cell in here if cell.row == spec.row)
    size = f", {format.short_count(parameters)} parameters" if parameters else ""
    done = [run for cell in here for run in cell.runs if (run.result or {}).get("state") == "done"]
    seen = [number for run in done if (number := run.number(spec.task.unit.name)) is not None]
    between = dict.fromkeys(format.short_count(end) for end in (min(seen), max(seen))) if seen else ()
    described = spec.task.describe(spec.settings, size, " to ".join(between))
    return f"{described}. {_papers_columns(cells, columns)}".rstrip()


def _papers_columns(cells: pd.DataFrame, columns: Sequence[str]) -> str:
    info = cells.attrs["table"]
    compared = [in_words(name) for column in columns if (name := info.compared.get(column))]
    none = "" if info.paper is None else "The paper has no such column."
    return f"Paper: {', '.join(dict.fromkeys(compared))}." if compared else none


def source(info: TableInfo) -> str:
    """The name of a table: `Table 3 of CoMT (recipe comt/table3.yaml)`, or for your own its recipe only."""
    if info.paper is None:
        return f"Recipe {info.loaded.file}"
    number = re.fullmatch(r"table([A-Z]?\d+)", info.recipe.table or "")
    return f"{f'Table {number[1]} of ' if number else ''}{paper_name(info.paper)} (recipe {info.loaded.file})"


def verdict(cells: pd.DataFrame) -> str:
    """The number of rows of each verdict, with the names of a few: first rows with a published direction, then those
    with a printed value but no direction, then all others; and the number that remains after Holm's correction."""
    info: TableInfo = cells.attrs["table"]
    judged = [each for each in cells.to_dict("records") if each["row"] != info.baseline]
    several = cells["column"].nunique() > 1
    found = [each["_verdict"] for each in judged]
    for each in judged:
        each["_name"] = f"{each['row']} at {each['column']}" if several else each["row"]
    directed = [each for each in judged if each["_direction"]]
    outside = [each["_name"] for each in directed
               if excludes_published(each["_verdict"], each["_apart"], each["_paper_apart"])]  # fmt: skip
    own = f"Relative to {info.baseline}{'' if info.paper is None else ', without a published value'}:"
    parts: dict[str, dict[Verdict, list[str]]] = {
        f"Of {format.plural(len(directed), 'published direction')} relative to {info.baseline},": {},
        "With a printed value but no direction:": {},
        own: {},
    }
    for each in sorted(judged, key=lambda each: list(Verdict).index(each["_verdict"])):
        part = [*parts.values()][0 if each["_direction"] else 2 if each["paper"] is None else 1]
        part.setdefault(each["_verdict"], []).append(each["_name"])
    return prose(
        "verdict",
        parts=parts,
        most=_MOST_NAMED,
        outside=outside,
        has_one_seed=any(each.is_of_one_seed for each in found),
        resolved=sum(each.is_resolved for each in found),
        standing=sum(stands(each["p_value_holm"]) for each in judged),
    )


def footnotes(cells: pd.DataFrame) -> list[str]:
    """The remarks of all cells in order of appearance, each once; marks in a table count them from 1."""
    return list(dict.fromkeys(text for remarks in cells["_remarks"] for text in remarks))


def _markdown(texts: Texts, is_best: bool) -> Texts:
    ours, mark, marks = texts["ours"].partition(" [")
    bold = f"**{in_markdown(ours)}**" if is_best else in_markdown(ours)
    return {**{key: in_markdown(text) for key, text in texts.items()}, "ours": f"{bold}{mark}{marks}"}


def _superscript(marks: str) -> str:
    return re.sub(r" \[(\d+)\]", r"\\textsuperscript{\1}", marks)


def _block(cells: pd.DataFrame, texts: Sequence[Texts], column: str, keys: Sequence[str]) -> Iterator[str]:
    wide = rf"\multicolumn{{{len(keys)}}}"
    yield rf"\midrule {wide}{{@{{}}l}}{{\textit{{{tex(column_name(cells, column))}}}}} \\"
    beside = []
    for line, at, is_best in zip(texts, cells["column"], cells["_best"], strict=True):
        if at != column:
            continue
        ours, mark, marks = line["ours"].partition(" [")
        # a sign becomes a minus, a lone dash stays one
        shown = {key: tex(text.replace("-", "−") if re.search(r"\d", text) else text) for key, text in line.items()}
        shown["method"] = tex(line["method"])
        shown["ours"] = (r"\textbf{%s}" if is_best else "%s") % tex(ours) + _superscript(mark + marks)
        if "verdict" in line:  # a baseline alone has none
            shown["verdict"] = rf"\raggedright {tex(line['verdict'])}"
        yield " & ".join(shown[key] for key in keys) + r" \tabularnewline"
        increases = line.get("parameters", NOTHING), line.get("paper_increase", NOTHING)
        beside += [f"{line['method']} {increases[0]} ({increases[1]})"] if {*increases} != {NOTHING} else []
    if any(cells.loc[cells["column"] == column, "paper_increase"]):
        said = tex(f"Extra parameters (the paper's): {'; '.join(beside)}.")
        yield rf"{wide}{{@{{}}p{{0.95\textwidth}}@{{}}}}{{{said}}} \\"


def print_table(cells: pd.DataFrame, file: IO[str] | None = None) -> None:
    """Print the title, the networks, a grid for each column, footnotes, notes and the verdict. A narrow terminal shows
    the columns that fit."""
    from comt_cli.report.terminal import console_for, print_texts, say

    width, texts = console_for(file).width, texts_of(cells)
    info: TableInfo = cells.attrs["table"]
    left_out: dict[str, None] = {}
    say(info.recipe.title, file, "bold")
    say(f"{cells.attrs['trained']}; {source(info)}", file, "dim")
    for columns in groups_of(cells):
        several = len(columns) > 1
        shown = ", ".join(f"{column_name(cells, column)}: {info.metrics[column].label}" for column in columns)
        print(file=file)
        say(f"{shown}. {_papers_columns(cells, columns)}".rstrip(". ") + ".", file, "dim")
        heads = dict(zip(texts[0], _headings(cells, list(texts[0]), columns), strict=True))
        keys = list(texts[0]) if several else _fitting(texts, heads, width)
        left_out |= {heads[key]: None for key in texts[0] if key not in keys}
        head, *lines = grid_of(cells, [{key: each[key] for key in keys} for each in texts], columns)
        best = cells.loc[cells["column"] == columns[0], "_best"]
        left = [at < 1 + several or head[at] == "verdict" for at in range(len(head))]
        print_texts(head, lines, file, width, left=left, bold=() if several else list(best))
    print(file=file)
    for mark, text in enumerate(footnotes(cells), start=1):
        say(f"[{mark}] {text}", file)
    if rules := _rules(cells):
        say(" ".join(rules), file, "dim")
    if left_out:
        say(f"Too narrow for {', '.join(left_out)}; see the files.", file, "dim")
    for sentence in ladder.sentences(ladder.trends(cells)):
        say(f"{ladder.HEADING}, {sentence}.", file)
    for text in (*cells.attrs["notes"], verdict(cells)):
        say(text, file)


def _fitting(texts: Sequence[Texts], heads: dict[str, str], width: int) -> list[str]:
    chosen: dict[str, int] = {}
    for key in (*(key for key in _FIRST if key in heads), *(key for key in heads if key not in _FIRST)):
        needed = 2 + max(map(len, [*(each[key] for each in texts), *heads[key].split()]))
        if key in _FIRST[:3] or sum(chosen.values()) + needed - 2 <= width:
            chosen[key] = needed
    return [key for key in heads if key in chosen]
