"""What the training steps of a recipe's rows cost, as `comt bench costs` measured it and as its table shows it.

`<name>-costs.csv` lies beside the recipe's table, with a page. A line is a row under a column; ratios are to the
baseline's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.errors import UserError
from comt_cli.files import Unreadable, canonical_json, read_csv, sha256, write_text
from comt_cli.report import format
from comt_cli.report.frame import csv_text, info_of
from comt_cli.report.markdown import escaped, pipes
from comt_cli.runs.plan import RunSpec

if TYPE_CHECKING:
    import pandas as pd

UNSETTLED = "?"
"""Behind a ratio of times that were taken in too few rounds for an interval."""
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
_NEEDED = ("row", "column", "network", "baseline", "baseline_network", "device", "git_commit", *_RATIOS.values())
_EXPLAINED = (
    "A step is a forward and a backward pass over a batch, or a micro-batch where the recipe has them, and an update. "
    "FLOPs: those of matrix products and convolutions in uncompiled code, counted: a mixture of streams or sources is "
    "in them where it is written as a product, and not where it is written as a sum. Bytes: what the compiled forward "
    "and backward passes read and write, as PyTorch's compiler counts it: every input and output of a fused kernel, of "
    "a matrix product and of an operator of ours; not those of a vocabulary's head with its loss and of the update, "
    "which are not compiled. Saved: what a forward pass, compiled where that is possible, keeps for the backward pass. "
    "Steps took turns; a time is the 20th percentile of its turns, since other work only slows them, and ± the reach "
    "of the ratio's 90 % interval."
)


def network_key(spec: RunSpec) -> str:
    """The hash of the settings that decide a step's cost: the method, the model, what its data gives it, the batch, and
    how it is computed; rate and number of steps are none of them. Nor is the code, whose commit stands in the file."""
    settings, train = spec.settings, spec.settings.train
    batch = [train.batch_size, train.micro_batch_size, train.precision]
    how = [train.kernels, train.compile, train.recomputes, train.gradient_clipping > 0, train.deterministic]
    model = settings.model.model_dump(mode="json")
    told = [spec.command, spec.method, model, spec.task.dimensions(settings), batch, how]
    return sha256(canonical_json(told))[:_DIGITS]


def with_costs(runs: pd.DataFrame, files: Iterable[Path], baseline: str) -> pd.DataFrame:
    """A frame of runs with the costs of those rows whose networks were measured beside its baseline, in `_costs`; from
    the first of the files that has any of them.

    They are ratios to the baseline's training step by `_RATIOS`: counted FLOPs, bytes that compiled passes read and
    write, what is saved for the backward pass, and times of the step, uncompiled and compiled, which may be off by the
    part `..._error` (90 %). None where it was not measured, of an error where there were too few rounds for one.
    `attrs` have the devices and commits of the measurement.

    Raises:
        UserError: a file is not one that `write_costs` wrote.
    """
    networks: dict[tuple[str, str], set[str]] = {}
    known = [(path, lines) for path in files if (lines := costs_lines(path))]
    for spec in (run.spec for run in runs["_run"] if known):
        networks.setdefault((spec.row, spec.column), set()).add(network_key(spec))
    for path, every in known:
        lines = [
            line
            for line in every
            if line["baseline"] == baseline
            and line["network"] in networks.get((line["row"], line["column"]), ())
            and line["baseline_network"] in networks.get((baseline, line["column"]), ())
        ]
        if not lines:
            continue
        try:
            found = {
                (line["row"], line["column"]):
                {key: float(line[name]) if line[name] else None for key, name in _RATIOS.items()}
                for line in lines
            }  # fmt: skip
        except ValueError as error:
            raise _unreadable(path) from error
        measured = runs.copy()
        own: Any = [found.get(cell) for cell in zip(runs["row"], runs["column"], strict=True)]
        measured["_costs"] = own
        devices, commits = (tuple(dict.fromkeys(line[name] for line in lines)) for name in ("device", "git_commit"))
        measured.attrs = {**runs.attrs, "costs_devices": devices, "costs_commits": commits}
        return measured
    return runs


def costs_rule(cells: pd.DataFrame) -> str:
    """The columns of costs in a table, and of which device they are."""
    attrs, every = cells.attrs, [each for each in cells["_costs"] if each is not None]
    commits = f" at commit {format.listing(attrs['costs_commits'])}" if any(attrs["costs_commits"]) else ""
    settled = all(
        each[how] is None or each[f"{how}_error"] is not None for each in every for how in ("step", "compiled")
    )
    doubt = "" if settled else f" {UNSETTLED}: not settled, since too few rounds were timed for an interval."
    return (
        "FLOPs of matrix products, bytes that compiled passes read and write, activations saved for the backward pass, "
        f"and times of a training step, uncompiled and compiled, over those of {info_of(cells).baseline}; ± is the 90 "
        f"% interval of a ratio of times.{doubt} Measured on {format.listing(attrs['costs_devices'])}{commits}."
    )


def other_device(path: Path, device: str) -> str | None:
    """The device that the file is of, where it is another one; None where it is this one, or there is no file."""
    return next((line["device"] for line in costs_lines(path) if line["device"] != device), None)


def costs_lines(path: Path) -> list[dict[str, str]]:
    """The lines of a file of costs; none where there is no file.

    Raises:
        UserError: it is not one.
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
    return UserError(f"{shown} is not what `comt bench costs` writes", "Delete it, and measure once more.")


def write_costs(
    path: Path, rows: Sequence[Mapping[str, Any]], title: str, order: Sequence[str], columns: Sequence[str]
) -> tuple[list[Path], list[str]]:
    """Write what was measured and its page, rows and columns in these orders; rows that were not measured this time
    stay, where they are of the same device and of the same baseline. A column measured in too few rounds for intervals
    does not replace rows that have them, nor one that has not settled rows of more rounds. Returns the files, and the
    columns that were not written.

    Raises:
        UserError: the file that is there is none of these.
        StorageError: it cannot be written.
    """
    measured = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    beside = {line["column"]: (line["baseline"], line["baseline_network"]) for line in measured}
    lines = {
        (line["row"], line["column"]): line
        for line in costs_lines(path)
        if line["device"] == rows[0]["device"]
        and (own := (line["baseline"], line["baseline_network"])) == beside.get(line["column"], own)
    }
    lesser = {
        line["column"]
        for line in measured
        if (older := lines.get((line["row"], line["column"]))) and _is_lesser(line, older)
    }
    measured = [line for line in measured if line["column"] not in lesser]
    if not measured:
        return [], sorted(lesser)
    lines |= {(line["row"], line["column"]): line for line in measured}
    at, under = ({name: number for number, name in enumerate(names)} for names in (order, columns))
    ordered = sorted(lines, key=lambda of: (under.get(of[1], len(under)), at.get(of[0], len(at))))
    found = [{name: lines[of].get(name, "") for name in measured[0]} for of in ordered]
    page = path.with_suffix(".md")
    path.parent.mkdir(parents=True, exist_ok=True)
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
    first, commits = lines[0], sorted({line["git_commit"] or "unknown" for line in lines})
    parts = [
        f"# {escaped(f'Costs: {title}')}",
        f"Measured on {escaped(first['device'])} at commit {escaped(', '.join(commits))}. Beside each number its ratio "
        f"to that of {escaped(first['baseline'])}, measured in the same run. {_EXPLAINED}",
    ]
    heads = ["row", "parameters", "FLOPs", "bytes, MiB", "saved, MiB", "step, ms", "compiled step, ms"]
    for column in dict.fromkeys(line["column"] for line in lines):
        texts = [
            [
                line["row"],
                f"{int(line['parameters']):,}",
                f"{float(line['flops']):.3g} ({float(line['flops_ratio']):.3f})",
                *(_beside(line, kind, unit) for kind, unit in (("bytes", "mib"), ("saved", "mib"), ("step", "ms"))),
                _beside(line, "compiled_step", "ms"),
            ]
            for line in lines
            if line["column"] == column
        ]
        parts += [f"## {escaped(column)}", pipes([heads, *texts])]
    return "\n\n".join(parts) + "\n"


def _beside(line: Mapping[str, str], kind: str, unit: str) -> str:
    """A number with its ratio to the baseline's, and of a time the reach of that."""
    number, ratio, error = line[f"{kind}_{unit}"], line[f"{kind}_ratio"], line.get(f"{kind}_ratio_uncertainty")
    if not number or not ratio:
        return f"{float(number):,.1f}" if number else "-"
    reach = ", not settled" if error == "" else f" ± {100 * float(error):.1f} %" if error and float(error) else ""
    return f"{float(number):,.1f} ({float(ratio):.3f}{reach})"
