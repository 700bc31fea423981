"""The records of a run: its environment, a line per logged step, the table made of them, its result."""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

import torch

from comt_cli import __version__
from comt_cli.commit import git_commit
from comt_cli.errors import StorageError, UserError
from comt_cli.files import open_own, read_json, write_json, write_text
from comt_cli.kernels import products
from comt_cli.kernels.choice import Choice
from comt_cli.kernels.cpu import build
from comt_cli.kernels.measurements import tiles_text
from comt_cli.kernels.triton.tiles import TILES
from comt_cli.models.accounting import cost_of, total_flops
from comt_cli.runs.directory import NUMERICS, PYTORCH, RunDirectory, read_lines
from comt_cli.training.checkpoint import Counters
from comt_cli.training.devices import device_name, peak_memory_bytes
from comt_cli.training.evaluation import Evaluation
from comt_cli.training.parallel import World
from comt_cli.training.speed import counted, mfu
from comt_cli.training.tasks.base import TaskRun

NATIVE = "native"
"""The `instructions` of a start whose C++ kernels, if any, were compiled for this very processor."""


class LineLog:
    """A JSON-lines file that is appended to, and truncated to a known length when a run resumes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: IO[bytes] = self._guard(lambda: os.fdopen(open_own(path, os.O_WRONLY | os.O_APPEND), "ab"))

    def append(self, values: dict[str, Any]) -> None:
        """Add one line; equal values give equal bytes."""
        line = json.dumps(values, allow_nan=False) + "\n"
        self._guard(lambda: self._handle.write(line.encode()))
        self._guard(self._handle.flush)

    def durable_length(self) -> int:
        """Flush to disk; the file's length in bytes.

        Raises:
            UserError: the file was deleted or replaced since it was opened; what is written goes into nothing.
            StorageError: so was the folder of all runs: the next would fare no better.
        """
        self._guard(lambda: os.fsync(self._handle.fileno()))
        if not self._is_here():
            all_runs = self.path.parent.parent
            if not all_runs.is_dir():
                raise StorageError(
                    f"{all_runs}, the folder of the runs, was removed while one was writing to it",
                    "What was trained since is lost. Put it back, then run the same command again.",
                )
            raise UserError(
                f"{self.path} was deleted or replaced while the run was writing to it",
                "Its lines are lost. Put it back and run the same command again, or train anew with --fresh.",
            )
        length: int = self._handle.tell()
        return length

    def _is_here(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._handle.fileno()), self.path.lstat())
        except FileNotFoundError:
            return False

    def truncate(self, length: int) -> None:
        """Drop everything after `length` bytes: what was written after the checkpoint that is resumed. Raises
        `UserError` where there are not that many."""
        if self._handle.tell() < length:
            raise UserError(
                f"{self.path} has lost lines that its checkpoint counts on: {self._handle.tell()} bytes of {length}",
                "Put it back, or train anew with --fresh.",
            )
        self._guard(lambda: self._handle.truncate(length))
        self._handle.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file. A line that the disk refused before is refused again here, which was reported already."""
        with contextlib.suppress(OSError):
            self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guard(self, action: Any) -> Any:
        try:
            return action()
        except OSError as error:
            raise StorageError(
                f"cannot write {self.path}: {error.strerror or error}",
                "The last checkpoint is intact. Make room, then run the same command again.",
            ) from error


def write_metrics_table(directory: RunDirectory) -> None:
    """`metrics.csv`: the lines of `metrics.jsonl` with one column a quantity, empty where a line has none."""
    lines = read_lines(directory.metrics_file)
    columns = list(dict.fromkeys(key for line in lines for key in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(directory.metrics_table, text.getvalue())


def record_environment(
    directory: RunDirectory, task: TaskRun[Any], step: int, kernels: Mapping[str, Choice]
) -> dict[str, Any]:
    """Append to `environment.json` the environment of this start of the run, after `step`; returns the new entry.

    `kernels` says for each operation of the model, and for the loss, what computes it, in which tiles. The entry's
    `differs` names what, of all that affects bitwise reproducibility, was not the same in every start since the one at
    step 0.

    Raises:
        UserError: the file is damaged.
    """
    world, start = task.world, task.spec.start
    entry: dict[str, Any] = {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "step": step,
        "comt": __version__,
        "numerics": NUMERICS,
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": device_name(world.device),
        "processes": world.size,
        "threads": torch.get_num_threads(),
        "products": products.multiplier() if world.device.type == "cpu" else PYTORCH,
        "attention": task.attention,
        "kernels": {op: str(choice) for op, choice in kernels.items()},
        "tiles": {op: text for op, choice in kernels.items() if choice.fused and (text := _tuned(choice))},
        "instructions": _instructions(world, kernels),
        "compiled": task.settings.compile,
        "captured": task.captured,
        "sharding": task.sharding,
        **({} if start is None else {"start": start.run.id}),
    }
    before = _earlier_starts(directory)
    beginnings = [index for index, each in enumerate(before) if each.get("step") == 0]
    counted = before[beginnings[-1] if beginnings else 0 :] if step else []
    entry["differs"] = [
        key for key in DECIDES_BITS if any(_recorded(each, key) != _recorded(entry, key) for each in counted)
    ]
    write_json(directory.environment_file, [*before, entry])
    return entry


DECIDES_BITS = (
    *("numerics", "device", "processes", "threads", "torch"),
    *("products", "attention", "captured", "sharding", "kernels", "tiles", "instructions"),
)
"""Entries that must be the same at every start of a run for it to end as one never stopped, to the last bit."""


def _tuned(choice: Choice) -> str:
    """The tiles that are not the defaults."""
    return tiles_text((key, tile) for key, tile in choice.tiles if tile != TILES[key[:2]][0])


def _instructions(world: World, kernels: Mapping[str, Choice]) -> str:
    """For which processor the C++ kernels in use were compiled: `ATEN_CPU_CAPABILITY` may name one without this one's
    instructions for bf16, in the same class (`cpu.build`)."""
    has_kernels = world.device.type == "cpu" and any(choice.fused for choice in kernels.values())
    return build.target().partition("=")[2] if has_kernels else NATIVE


def _recorded(start: dict[str, Any], key: str) -> Any:
    """The recorded value of a setting that affects bitwise reproducibility.

    Starts without a record of sharding were not sharded, those without one of CUDA graphs not captured, those without
    one of tiles had the defaults, those without one of instructions this processor's; without one of products or of
    attention these were PyTorch's; without a numerical version it is another, unknown one. Of the kernels only those
    count that are not the reference, and not the reasons, which change with every measurement. Starts that record them
    as one text had none.
    """
    if key != "kernels":
        absent = {"captured": False, "products": PYTORCH, "attention": PYTORCH, "tiles": {}, "instructions": NATIVE}
        return start.get(key, absent.get(key, "none"))
    kernels = start.get("kernels")
    if not isinstance(kernels, dict):
        return set()
    return {op for op, choice in kernels.items() if str(choice).startswith("fused")}


def _earlier_starts(directory: RunDirectory) -> list[dict[str, Any]]:
    try:
        starts = read_json(directory.environment_file)
    except FileNotFoundError:
        return []
    except ValueError:
        starts = None
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        raise UserError(f"{directory.environment_file} is damaged", "Delete it; the run resumes without it.")
    return starts


def done_result(
    task: TaskRun[Any],
    counters: Counters,
    environment: dict[str, Any],
    evaluation: Evaluation,
    evaluation_rows: int,
) -> dict[str, Any]:
    """Result of a run that reached its last step; `evaluation_rows` are those of one batch of one process."""
    chosen: dict[str, Any] = {}  # of which steps the weights are that it ended with, where they are not simply the last
    if task.settings.averaged_steps:
        chosen = {"averaged_steps": list(task.settings.averaged_steps)}
    elif task.settings.select == "best":
        chosen = {"chosen_step": counters.best_step}
    return {
        "state": "done",
        **_common(task, counters, environment),
        "train_loss": counters.last_finite_loss,
        **evaluation.numbers(),
        **chosen,
        "evaluation": {**evaluation.extent, "batch_size": evaluation_rows, "processes": task.world.size},
    }


def diverged_result(task: TaskRun[Any], counters: Counters, environment: dict[str, Any]) -> dict[str, Any]:
    """Result of a run whose loss was not finite at the step of the counters."""
    ending = {"diverged_at": counters.step, "last_finite_loss": counters.last_finite_loss}
    return {"state": "diverged", **_common(task, counters, environment), **ending}


def _common(task: TaskRun[Any], counters: Counters, environment: dict[str, Any]) -> dict[str, Any]:
    spec, world, unit = task.spec, task.world, task.spec.task.unit
    cost = cost_of(spec)
    # Steps that were timed: a divergence can be noticed some steps later, and those took time too.
    timed_targets = round(counters.tokens * counters.timed_steps / max(1, counters.step))
    rate = counted(spec, counters.timed_steps, timed_targets) / max(counters.seconds, 1e-9)
    return {
        "id": spec.id,
        "data_content": spec.data_content,
        **({} if spec.start is None else {"start": spec.start.run.id}),
        "step": counters.step,
        "steps": spec.settings.train.steps,
        unit.name: counters.tokens,
        "parameters": cost.parameters,
        "extra_parameters": cost.extra_parameters,
        "extra_parameters_percent": cost.extra_parameters_percent,
        "flops": total_flops(spec),
        "train_seconds": round(counters.seconds, 3),
        unit.per_second: round(rate, 1),
        "mfu": mfu(spec, world, rate),
        "peak_memory_bytes": peak_memory_bytes(world.device),
        "waiting_share": round(counters.waiting_seconds / max(counters.seconds, 1e-9), 5),
        "device": environment.get("device"),
        "products": environment.get("products"),
        "attention": environment.get("attention"),
        "numerics": None if "numerics" in environment.get("differs", ()) else environment.get("numerics"),
        "processes": world.size,
        "git_commit": environment.get("git_commit"),
        "mixed_environment": bool(environment.get("differs")),
    }
