"""Costs of training steps of a recipe's rows, as `comt bench costs` measured them: their file, and the differences to
the baseline against them.

`<name>-costs.csv` lies beside the recipe's table, with a page. A line is a row under a column; ratios are to the
baseline's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.errors import UserError
from comt_cli.files import Unreadable, canonical_json, make_folder, read_csv, sha256, write_text
from comt_cli.report import format
from comt_cli.report.caption import notes, prose, templates
from comt_cli.report.cells import cells_frame
from comt_cli.report.exhibits import Exhibit
from comt_cli.report.frame import Record, TableInfo, csv_text
from comt_cli.report.statistics import Paired
from comt_cli.runs.plan import RunSpec
from comt_cli.words import in_words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

UNSETTLED = "?"  # behind a ratio of times that were taken in too few rounds for an interval
_DIGITS = 12
_RATIOS = {
    "flops": "flops_ratio",
    "bytes": "bytes_ratio",
    "saved": "saved_ratio",
    "step": "step_ratio",
    "step_error": "step_ratio_uncertainty",
    "compiled": "compiled_step_ratio",
    "compiled_error": "compiled_step_ratio_uncertainty",
}
"""The columns of the file by key of `_costs`."""
_TIMES = ("step", "compiled")
_NEEDED = ("row", "column", "network", "baseline", "baseline_network", "device", "git_commit", *_RATIOS.values())
LEAST = 3  # rows beside the baseline below which a figure says no more than the table
FAR = 2.0  # times the 90 % quantile of the differences' sizes: the end of their axis


class Costs(Exhibit):
    """The time of a training step, over the baseline's, and the difference to it. Times are of compiled steps where all
    rows have one."""

    name = "costs-figure"

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """One line for each row with a difference to the baseline and a measured step, and for the baseline, at a step
        of 1 and a difference of 0; `on_front` says that no other row of its column is better and no slower. Empty
        where fewer than `LEAST` rows have both."""
        import pandas as pd

        if "_costs" not in runs:
            return pd.DataFrame()
        cells = cells_frame(runs)
        info: TableInfo = cells.attrs["table"]
        is_compiled = all(each["compiled"] is not None for each in cells["_costs"] if each is not None)
        key = "compiled" if is_compiled else "step"
        lines: list[Record] = []
        for each in cells.to_dict("records"):
            costs = each["_costs"] or {}
            step, error = costs.get(key), costs.get(f"{key}_error")
            apart = Paired(0.0, None, None, 0) if each["row"] == info.baseline else each["_apart"]
            if step is not None and error is not None and apart is not None:  # a time without an interval is none
                where = {"row": each["row"], "column": each["column"], "step": step, "error": error}
                lines.append({**where, "difference": apart.mean, "low": apart.low, "high": apart.high})
        if sum(line["row"] != info.baseline for line in lines) < LEAST:
            return pd.DataFrame()
        for line in lines:
            sign = 1 if info.metrics[line["column"]].better == "lower" else -1
            others = [each for each in lines if each["column"] == line["column"] and each["step"] <= line["step"]]
            line["on_front"] = all(sign * each["difference"] >= sign * line["difference"] for each in others)
        frame = pd.DataFrame(lines).astype({"error": float, "low": float, "high": float})
        metrics = list(dict.fromkeys(info.metrics[column] for column in frame["column"]))
        how = f"of a {'compiled ' if is_compiled else ''}training step"
        frame.attrs = {
            "title": f"{info.recipe.title}: differences against the time {how}",
            "trained": cells.attrs["trained"],
            "how": how,
            "rule": costs_rule(cells),
            "baseline": info.baseline,
            "unit": "/".join(dict.fromkeys(metric.difference.sign for metric in metrics)),
            "lower": {column: info.metrics[column].better == "lower" for column in frame["column"]},
        }
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        several = frame["column"].nunique() > 1
        best = frame.loc[frame["on_front"], ["row", "column"]].itertuples(index=False)
        names = [f"{row} at {column}" if several else str(row) for row, column in best]
        return notes("costs", frame.attrs, names=names)

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Two panels a column with a line a row, the best at the top: differences and times. A difference far beyond
        the others, of a row that did not train, is an arrow with its number at the edge."""
        from comt_cli.report.figures.style import OKABE_ITO, QUIET, page_figure, style

        baseline, columns = frame.attrs["baseline"], [*frame.groupby("column", sort=False)]
        heights = [0.3 + 0.14 * len(here) for _, here in columns]
        with style():
            figure = page_figure(0.5 + sum(heights))
            panels = figure.subplots(len(columns), 2, squeeze=False, sharex="col", sharey="row", height_ratios=heights)
            for (apart, time), (column, here) in zip(panels, columns, strict=True):
                ordered = here.sort_values("difference", ascending=not frame.attrs["lower"][column], kind="stable")
                edge = FAR * here["difference"].abs().quantile(0.9)
                for place, each in enumerate(ordered.to_dict("records")):
                    look: Any = {"fmt": "o", "color": OKABE_ITO[5 if each["on_front"] else 0], "markersize": 3.6}
                    difference = each["difference"]
                    if abs(difference) > edge:
                        at, marker, shift, side = (
                            (edge, ">", -5, "right") if difference > 0 else (-edge, "<", 5, "left")
                        )
                        apart.plot(at, place, marker=marker, color=look["color"], markersize=3.6)
                        apart.annotate(f"{difference:+.0f}", (at, place), ha=side, va="center", fontsize=6.5,
                                       xytext=(shift, 0), textcoords="offset points")  # fmt: skip
                    else:
                        bar = [[difference - each["low"]], [each["high"] - difference]]
                        apart.errorbar(difference, place, xerr=bar, **look)
                    time.errorbar(each["step"], place, xerr=each["step"] * each["error"], **look)
                apart.axvline(0, color=QUIET, linewidth=0.6)
                time.axvline(1, color=QUIET, linewidth=0.6)
                apart.set_yticks(range(len(ordered)), ordered["row"], fontsize=6.5)
                apart.set_ylim(-0.5, len(ordered) - 0.5)
                apart.set_title(in_words(str(column)) if len(columns) > 1 else "", loc="left")
            panels[-1, 0].set_xlabel(f"difference to {baseline}, {frame.attrs['unit']}")
            panels[-1, 1].set_xlabel(f"time {frame.attrs['how']},\nover that of {baseline}")
        return figure


def network_key(spec: RunSpec) -> str:
    """The hash of the settings that determine a step's cost: the method, the model, its data dimensions, the batch, and
    the computation; not the rate, the number of steps, or the code, whose commit is in the file."""
    settings, train = spec.settings, spec.settings.train
    batch = [train.batch_size, train.micro_batch_size, train.precision]
    how = [train.kernels, train.compile, train.recomputes, train.gradient_clipping > 0, train.deterministic]
    model = settings.model.model_dump(mode="json")
    told = [spec.command, spec.method, model, spec.task.dimensions(settings), batch, how]
    return sha256(canonical_json(told))[:_DIGITS]


def with_costs(runs: pd.DataFrame, files: Iterable[Path]) -> pd.DataFrame:
    """A frame of runs with the costs in `_costs` of the rows whose networks were measured with its baseline, from the
    first of the files that has any. `attrs` have the devices and commits of the measurement.

    They are ratios to the baseline's training step by `_RATIOS`; the relative error of times is `..._error` (90 %).
    None if not measured; the error is None if there were too few repetitions.

    Raises:
        UserError: a file was not written by `write_costs`.
    """
    baseline = runs.attrs["table"].baseline
    known = [(path, lines) for path in files if (lines := costs_lines(path))]
    networks = {(run.spec.row, run.spec.column, network_key(run.spec)) for run in runs["_run"] if known}
    for path, every in known:
        lines = [line for line in every if line["baseline"] == baseline
                 and (line["row"], line["column"], line["network"]) in networks
                 and (baseline, line["column"], line["baseline_network"]) in networks]  # fmt: skip
        try:
            found = {(line["row"], line["column"]):
                     {key: float(line[name]) if line[name] else None for key, name in _RATIOS.items()}
                     for line in lines}  # fmt: skip
        except ValueError as error:
            raise _unreadable(path) from error
        if found:
            own: Any = [found.get(cell) for cell in zip(runs["row"], runs["column"], strict=True)]
            measured = runs.assign(_costs=own)
            devices, commits = (tuple(dict.fromkeys(line[key] for line in lines)) for key in ("device", "git_commit"))
            measured.attrs = {**runs.attrs, "costs_devices": devices, "costs_commits": commits}
            return measured
    return runs


def costs_rule(cells: pd.DataFrame) -> str:
    """The sentence on the cost columns of a table and the device."""
    attrs, every = cells.attrs, [each for each in cells["_costs"] if each is not None]
    is_open = any(each[key] is not None and each[f"{key}_error"] is None for each in every for key in _TIMES)
    about = {"baseline": attrs["table"].baseline, "is_open": is_open, "mark": UNSETTLED}
    return prose("costs_rule", **about, devices=attrs["costs_devices"], commits=attrs["costs_commits"])


def other_device(path: Path, device: str) -> str | None:
    """The other device that the file was measured on; None if it is this one, or there is no file."""
    return next((line["device"] for line in costs_lines(path) if line["device"] != device), None)


def costs_lines(path: Path) -> list[dict[str, str]]:
    """The lines of a file of costs; none without a file.

    Raises:
        UserError: it is not such a file.
    """
    try:
        lines = read_csv(path)
    except FileNotFoundError:
        return []
    except Unreadable as error:
        raise _unreadable(path) from error
    if any(line.get(name) is None for line in lines for name in _NEEDED):
        raise _unreadable(path)
    return lines


def _unreadable(path: Path) -> UserError:
    shown = format.one_line(str(path))
    return UserError(f"{shown} is not what `comt bench costs` writes", "Delete it, and measure again.")


def write_costs(
    path: Path, rows: Sequence[Mapping[str, Any]], title: str, order: Sequence[str], columns: Sequence[str]
) -> tuple[list[Path], list[str]]:
    """Write the measurements and their page, rows and columns in these orders. Older rows of the same device and
    baseline stay. A column measured in too few rounds for intervals does not replace rows that have them, nor an
    unsettled one rows of more rounds. Returns the files, and the columns that were not written.

    Raises:
        UserError: the existing file is not one of these.
        StorageError: it cannot be written.
    """
    measured = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    beside = {line["column"]: (line["baseline"], line["baseline_network"]) for line in measured}
    lines = {(line["row"], line["column"]): line for line in costs_lines(path)
             if line["device"] == rows[0]["device"]
             and (own := (line["baseline"], line["baseline_network"])) == beside.get(line["column"], own)}  # fmt: skip
    lesser = {line["column"] for line in measured
              if (older := lines.get((line["row"], line["column"]))) and _is_lesser(line, older)}  # fmt: skip
    measured = [line for line in measured if line["column"] not in lesser]
    if not measured:
        return [], sorted(lesser)
    lines |= {(line["row"], line["column"]): line for line in measured}
    rank = {name: number for number, name in enumerate((*columns, *order))}
    ordered = sorted(lines, key=lambda of: (rank.get(of[1], len(rank)), rank.get(of[0], len(rank))))
    found = [{name: lines[of].get(name, "") for name in measured[0]} for of in ordered]
    page = path.with_suffix(".md")
    make_folder(path.parent)
    write_text(path, csv_text(found))
    write_text(page, _page(found, title))
    return [path, page], sorted(lesser)


def _is_lesser(line: Mapping[str, str], older: Mapping[str, str]) -> bool:
    """Whether a ratio lacks the interval of the older one, or has not settled in fewer rounds. Old files have none."""
    fewer = int(line.get("rounds") or 0) < int(older.get("rounds") or 0)
    intervals = {name: name.removesuffix("_uncertainty") for name in line if name.endswith("_uncertainty")}
    return any(
        line[ratio] and ((older.get(name) and not line[name]) or (fewer and line.get(f"{ratio}_settled") == "False"))
        for name, ratio in intervals.items()
    )


def _page(lines: Sequence[Mapping[str, str]], title: str) -> str:
    tables: dict[str, list[Mapping[str, str]]] = {}
    for line in lines:
        tables.setdefault(line["column"], []).append(line)
    commits = sorted({line["git_commit"] or "unknown" for line in lines})
    of = {**lines[0], "title": title, "commits": commits, "tables": tables}
    return templates().get_template("costs.md.jinja").render(of)
