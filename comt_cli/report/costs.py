"""What the training steps of a recipe's rows cost, as `comt bench costs` measured it and as its table shows it.

`<name>-costs.csv` lies beside the recipe's table. A line is a row under a column; ratios are to the baseline's.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from comt_cli.errors import UserError
from comt_cli.files import canonical_json, read_text, sha256
from comt_cli.report.format import one_line
from comt_cli.runs.plan import RunSpec

_DIGITS = 12


@dataclass(frozen=True)
class RowCosts:
    """Ratios to the baseline's training step: `flops`, `bytes` that compiled passes read and write, `kept` for the
    backward pass, and the `step`'s time, which may be off by the part `error` (90 %). None where it was not measured,
    of an error where there were too few rounds for one."""

    flops: float | None
    bytes: float | None
    kept: float | None
    step: float | None
    error: float | None


@dataclass(frozen=True)
class Costs:
    """Those of a table: by row and column, and what they were measured on. `compiled`: steps under torch.compile."""

    of: Mapping[tuple[str, str], RowCosts]
    devices: tuple[str, ...]
    commits: tuple[str, ...]
    compiled: bool

    @property
    def how(self) -> str:
        """What the times are of."""
        return "of a compiled training step" if self.compiled else "of a training step"


def network_key(spec: RunSpec) -> str:
    """The hash of what decides a step's cost: the method, the model, what its data gives it, batch and precision."""
    settings, train = spec.settings, spec.settings.train
    batch = [train.batch_size, train.micro_batch_size, train.precision]
    model = settings.model.model_dump(mode="json")
    told = [spec.command, spec.method, model, spec.task.dimensions(settings), batch]
    return sha256(canonical_json(told))[:_DIGITS]


def read_costs(path: Path, specs: Sequence[RunSpec]) -> Costs | None:
    """The costs of those rows of a plan whose networks were measured; None where there is no file, or none of them.

    Raises:
        UserError: the file is not one that `write_costs` wrote.
    """
    keys = {(spec.row, spec.column): network_key(spec) for spec in specs}
    lines = [line for line in costs_lines(path) if keys.get((line["row"], line["column"])) == line["network"]]
    if not lines:
        return None
    compiled = all(line["compiled_step_ratio"] for line in lines)
    how = "compiled_step" if compiled else "step"
    try:
        found = {
            (line["row"], line["column"]): RowCosts(
                *(float(line[name]) if line[name] else None for name in (*_COUNTED, *ratio_columns(how)))
            )
            for line in lines
        }
    except ValueError as error:
        raise _unreadable(path) from error
    devices, commits = (tuple(dict.fromkeys(line[name] for line in lines)) for name in ("device", "git_commit"))
    return Costs(found, devices, commits, compiled)


def other_device(path: Path, device: str) -> str | None:
    """The device that the file is of, where it is another one; None where it is this one, or there is no file."""
    return next((line["device"] for line in costs_lines(path) if line["device"] != device), None)


_COUNTED = ("flops_ratio", "bytes_ratio", "saved_ratio")
_NEEDED = ("row", "column", "network", "baseline", "device", "git_commit", *_COUNTED)


def costs_lines(path: Path) -> list[dict[str, str]]:
    """The lines of a file of costs; none where there is no file.

    Raises:
        UserError: it is not one.
    """
    if not path.exists():
        return []
    lines = list(csv.DictReader(io.StringIO(read_text(path))))
    needed = (*_NEEDED, *ratio_columns("step"), *ratio_columns("compiled_step"))
    if any(line.get(name) is None for line in lines for name in needed):
        raise _unreadable(path)
    return lines


def ratio_columns(how: str) -> tuple[str, str]:
    """The columns of a time's ratio to the baseline's, and of its error."""
    return f"{how}_ratio", f"{how}_ratio_uncertainty"


def _unreadable(path: Path) -> UserError:
    return UserError(
        f"{one_line(str(path))} is not what `comt bench costs` writes", "Delete it, and measure once more."
    )
