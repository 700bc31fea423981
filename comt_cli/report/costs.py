"""What the training steps of a recipe's rows cost, as `comt bench costs` measured it and as its table shows it.

`<name>-costs.csv` lies beside the recipe's table. A line is a row under a column; ratios are to the baseline's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.errors import UserError
from comt_cli.files import Unreadable, canonical_json, read_csv, sha256
from comt_cli.report.format import one_line
from comt_cli.runs.plan import RunSpec

if TYPE_CHECKING:
    import pandas as pd

_DIGITS = 12


def is_settled(costs: Mapping[str, float | None]) -> bool:
    """Whether every ratio of times has an interval."""
    return all(costs[how] is None or costs[f"{how}_error"] is not None for how in ("step", "compiled"))


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
    for spec in (run.spec for run in runs["_run"]):
        networks.setdefault((spec.row, spec.column), set()).add(network_key(spec))
    for path in files:
        lines = [
            line
            for line in costs_lines(path)
            if line["baseline"] == baseline
            and line["network"] in networks.get((line["row"], line["column"]), ())
            and line["baseline_network"] in networks.get((baseline, line["column"]), ())
        ]
        if lines:
            break
    else:
        return runs
    try:
        found = {
            (line["row"], line["column"]): {
                key: float(line[name]) if line[name] else None for key, name in _RATIOS.items()
            }
            for line in lines
        }
    except ValueError as error:
        raise _unreadable(path) from error
    measured = runs.copy()
    own: Any = [found.get(cell) for cell in zip(runs["row"], runs["column"], strict=True)]
    measured["_costs"] = own
    devices, commits = (tuple(dict.fromkeys(line[name] for line in lines)) for name in ("device", "git_commit"))
    measured.attrs = {**runs.attrs, "costs_devices": devices, "costs_commits": commits}
    return measured


def other_device(path: Path, device: str) -> str | None:
    """The device that the file is of, where it is another one; None where it is this one, or there is no file."""
    return next((line["device"] for line in costs_lines(path) if line["device"] != device), None)


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


def ratio_columns(how: str) -> tuple[str, str]:
    """The columns of a time's ratio to the baseline's, and of its error."""
    return f"{how}_ratio", f"{how}_ratio_uncertainty"


def _unreadable(path: Path) -> UserError:
    return UserError(
        f"{one_line(str(path))} is not what `comt bench costs` writes", "Delete it, and measure once more."
    )
