"""The files of a run that its main process writes: environment, logged steps, checkpoints, result; and its speed."""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from comt_cli import __version__
from comt_cli.commit import git_commit
from comt_cli.errors import StorageError, UserError
from comt_cli.exchange.checkpoint import write_state
from comt_cli.files import open_own, read_json, write_json, write_text
from comt_cli.kernels import products
from comt_cli.kernels.choice import Choice
from comt_cli.kernels.measurements import tiles_text
from comt_cli.kernels.triton.tiles import TILES
from comt_cli.models.accounting import cost_of, total_flops
from comt_cli.models.pretrained import LORA, merged
from comt_cli.runs.directory import NUMERICS, PYTORCH, RunDirectory, read_lines
from comt_cli.runs.plan import RunSpec
from comt_cli.training.checkpoint import Counters, full_optimizer_state, random_states
from comt_cli.training.devices import device_name, peak_flops, peak_memory_bytes, synchronise
from comt_cli.training.evaluation import Evaluation, finite
from comt_cli.training.events import Listener
from comt_cli.training.parallel import World, full_tensors, local_tensor
from comt_cli.training.tasks import TaskRun
from comt_cli.training.trackers import Trackers, trackers_in_use


class LineLog:
    """A JSON-lines file to append to after its first `length` bytes: lines after the checkpoint from which a run
    resumes are dropped. Raises `UserError` if the file is shorter."""

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self._handle: IO[bytes] = self._guard(lambda: os.fdopen(open_own(path, os.O_WRONLY | os.O_APPEND), "ab"))
        if (found := self._handle.tell()) < length:
            self.close()
            raise UserError(
                f"{path} has {found} bytes, but its checkpoint expects at least {length}: lines were lost",
                "Restore the file, or train again with --fresh.",
            )
        self._guard(lambda: self._handle.truncate(length))
        self._handle.seek(0, os.SEEK_END)

    def append(self, values: dict[str, Any]) -> None:
        """Add one line; equal values give equal bytes."""
        line = json.dumps(values, allow_nan=False) + "\n"
        self._guard(lambda: self._handle.write(line.encode()))
        self._guard(self._handle.flush)

    def durable_length(self) -> int:
        """Flush to disk; returns the file's length in bytes. Raises `UserError` if the file was deleted or replaced,
        `StorageError` if the folder of all runs was, because the next run would fail too."""
        self._guard(lambda: os.fsync(self._handle.fileno()))
        if not self.path.exists() or not os.path.samestat(os.fstat(self._handle.fileno()), self.path.lstat()):
            hint = "Later lines are lost. Restore it and run the same command again, or use --fresh."
            if not (all_runs := self.path.parent.parent).is_dir():
                raise StorageError(f"{all_runs}, the folder of the runs, was removed during training", hint)
            raise UserError(f"{self.path} was deleted or replaced during training", hint)
        return self._handle.tell()

    def close(self) -> None:
        """Close the file. A line that could not be written fails again here, but that was already reported."""
        with contextlib.suppress(OSError):
            self._handle.close()

    def _guard(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except OSError as error:
            raise StorageError(
                f"cannot write {self.path}: {error.strerror or error}",
                "The last checkpoint is intact. Make room, then run the same command again.",
            ) from error


def record_environment(
    directory: RunDirectory, task: TaskRun[Any], step: int, kernels: Mapping[str, Choice]
) -> dict[str, Any]:
    """Append the environment of this start of the run, after `step`, to `environment.json`; returns the new entry. Its
    `differs` names the entries that affect bitwise reproducibility and have changed since the start at step 0. Raises
    `UserError` if the file is damaged."""
    world = task.world
    fused = {op: choice for op, choice in kernels.items() if choice.fused}
    tiles = {  # those that are not the defaults
        op: tiles_text((key, tile) for key, tile in choice.tiles if tile != TILES[key[:2]][0])
        for op, choice in fused.items()
    }
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
        "tiles": {op: text for op, text in tiles.items() if text},
        "instructions": os.environ.get("ATEN_CPU_CAPABILITY") or "native",  # those that PyTorch uses
        "compiled": task.settings.compile,
        "captured": task.captured,
        "sharding": task.sharding,
        **({} if task.spec.start is None else {"start": task.spec.begun_with}),
    }
    try:
        before = read_json(directory.environment_file)
    except FileNotFoundError:
        before = []
    except ValueError:
        before = None
    if not isinstance(before, list) or not all(isinstance(each, dict) for each in before):
        raise UserError(f"{directory.environment_file} is damaged", "Delete it; the run can resume without it.")
    beginnings = [index for index, each in enumerate(before) if each.get("step") == 0]
    counted = before[beginnings[-1] if beginnings else 0 :] if step else []
    own, others = _deciding(entry), list(map(_deciding, counted))
    entry["differs"] = [key for key in DECIDES_BITS if any(other[key] != own[key] for other in others)]
    write_json(directory.environment_file, [*before, entry])
    return entry


DECIDES_BITS = (
    *("numerics", "device", "processes", "threads", "torch"),
    *("products", "attention", "captured", "sharding", "kernels", "tiles", "instructions"),
)
"""Entries that must be equal at every start of a run for bitwise the same result as without interruption."""


def _deciding(start: dict[str, Any]) -> dict[str, Any]:
    """These entries of a start; of the kernels only the fused ones, since reasons change with every measurement."""
    kernels = start.get("kernels")
    fused = {op for op, choice in kernels.items() if choice.startswith("fused")} if isinstance(kernels, dict) else None
    return {key: start.get(key) for key in DECIDES_BITS} | {"kernels": fused}


class Clock:
    """Adds the time of steps to a run's counters. `rate` is the number of units (`Task.counts_targets`) per second over
    all devices in the steps before the last lap, `waiting_share` the share of time spent waiting for data."""

    def __init__(self, device: torch.device, counters: Counters, spec: RunSpec) -> None:
        self.rate = self.waiting_share = 0.0
        self._device, self._counters, self._spec = device, counters, spec

    def start(self, waited: float) -> None:
        """Begin to time steps; `waited` are the seconds spent waiting for the loader so far."""
        self._time, self._waited = time.perf_counter(), waited
        self._step, self._tokens = self._counters.step, self._counters.tokens

    def lap(self, waited: float) -> None:
        """Wait for the device, add the time since the last `start` or `lap`, and begin to time the next steps."""
        synchronise(self._device)
        counters = self._counters
        seconds, waiting, steps = time.perf_counter() - self._time, waited - self._waited, counters.step - self._step
        counters.seconds += seconds
        counters.waiting_seconds += waiting
        counters.timed_steps += steps
        self.rate = counted(self._spec, steps, counters.tokens - self._tokens) / max(seconds, 1e-9)
        self.waiting_share = waiting / max(seconds, 1e-9)
        self.start(waited)


def counted(spec: RunSpec, steps: int, targets: int) -> int:
    """The units of speed in `steps` steps of a run with `targets` targets, over all devices."""
    if spec.task.counts_targets:
        return targets
    return steps * spec.settings.train.batch_size * spec.task.positions(spec.settings)


def mfu(spec: RunSpec, world: World, per_second: float) -> float | None:
    """Model FLOP/s at a speed measured by `Clock`, over the peak of all devices; None if the peak is unknown."""
    peak = peak_flops(world.device, spec.settings.train.precision)
    if peak is None:
        return None
    return per_second * cost_of(spec).flops_per_row / spec.task.positions(spec.settings) / (peak * world.size)


class RunWriter:
    """Writes the files of a run that resumes from `counters`; later lines in them are dropped. `environment` is this
    start's; {} in processes that do not write."""

    def __init__(
        self,
        task: TaskRun[Any],
        directory: RunDirectory,
        counters: Counters,
        resources: contextlib.ExitStack,
        listener: Listener,
        kernels: Mapping[str, Choice],
    ) -> None:
        self._task, self._directory, self._counters = task, directory, counters
        self._world = world = task.world
        self._unit = task.spec.task.unit
        self._named = {"spec": task.spec.model_dump(mode="json"), "id": task.spec.id}
        self._observed = list(task.observed()) if task.norms_every is not None else []
        self.environment: dict[str, Any] = {}
        self._logs: dict[str, LineLog] = {}
        if world.is_main:
            for name in ("metrics", "timings", "gradients") if self._observed else ("metrics", "timings"):
                file = getattr(directory, f"{name}_file")
                self._logs[name] = LineLog(file, getattr(counters, f"{name}_bytes"))
                resources.callback(self._logs[name].close)
            for leftover in directory.path.glob(".*.tmp"):  # of a process killed while saving
                leftover.unlink(missing_ok=True)
            self.environment = record_environment(directory, task, counters.step, kernels)
        names = trackers_in_use() if world.is_main else []
        self._trackers = Trackers(names, task.spec, directory.path, counters.step, listener)
        resources.push(self._trackers.close)

    def step(self, loss: float, rate: float, norm: Tensor | None, clock: Clock) -> None:
        """Log a step: its loss, learning rate, gradient norm and speed."""
        if not self._world.is_main:
            return
        counters = self._counters
        line: dict[str, Any] = {"step": counters.step, self._unit.name: counters.tokens, "loss": loss}
        line |= {"learning_rate": rate, "gradient_norm": None if norm is None else finite(float(norm))}
        timing: dict[str, Any] = {"step": counters.step, "seconds": round(counters.seconds, 4)}
        timing |= {self._unit.per_second: round(clock.rate, 1), "waiting_share": round(clock.waiting_share, 5)}
        self._logs["metrics"].append(line)
        self._logs["timings"].append(timing)
        self._trackers.log({**timing, **line})

    def gradients(self, norms: Tensor | None) -> None:
        """Log the gradient norms of the task's observed parameters, in their order, at steps that have them."""
        if norms is not None and "gradients" in self._logs:
            by_name = {name: finite(norm) for name, norm in zip(self._observed, norms.tolist(), strict=True)}
            self._logs["gradients"].append({"step": self._counters.step, "norms": by_name})

    def observation(self, values: Mapping[str, float | None]) -> None:
        """Log what `observe` has found at the current step."""
        if self._world.is_main:
            line = {"step": self._counters.step, self._unit.name: self._counters.tokens, **values}
            self._logs["metrics"].append(line)
            self._trackers.log(line)

    def evaluation(self, evaluation: Evaluation, split: str = "validation") -> None:
        """Log an evaluation on a split, of the current step or of the weights chosen after it."""
        if self._world.is_main:
            chosen = {"chosen": 1} if self._counters.chosen else {}
            line = {"step": self._counters.step, **chosen, **evaluation.line(split)}
            self._logs["metrics"].append(line)
            self._trackers.log(line)

    def checkpoint(self, optimizer: torch.optim.Optimizer | None) -> bool:
        """Save the current step and wait for it. If the weights are not finite, nothing is saved, and all processes
        return False."""
        task = self._task
        finite_ones = [torch.isfinite(local_tensor(parameter)).all() for parameter in task.model.parameters()]
        if int(self._world.sum(torch.stack(finite_ones).all().long())) < self._world.size:
            return False
        counters, is_main = self._counters, self._world.is_main
        for name, log in self._logs.items():
            setattr(counters, f"{name}_bytes", log.durable_length())
        # First of all: reading a sharded model's state reshards the units that an evaluation has left gathered.
        weights = full_tensors(task.model.state_dict(), keep=is_main)
        state = None if optimizer is None else full_optimizer_state(task.model, optimizer, keep=is_main)
        if is_main:
            progress = {"progress": vars(counters), "random": random_states(self._world.device)}
            if optimizer is None:  # LoRA's matrices are merged, and B is zero (`merge_lora`)
                weights = {name: weight for name, weight in weights.items() if LORA not in name}
            saved = {**self._named, **task.checkpoint_parts(), "model": weights, "optimizer": state, **progress}
            write_state(self._directory.checkpoint_file, saved)
            self._directory.keep_best(counters.best_step)
        self._world.barrier()
        return True

    def weights(self, path: Path) -> None:
        """Save only the weights of the current step, for `load_weights`, and wait for it."""
        weights = full_tensors(self._task.model.state_dict(), keep=self._world.is_main)
        if self._world.is_main:
            weights = merged(weights, self._task.settings)
            write_state(path, {**self._named, "step": self._counters.step, "model": weights})
        self._world.barrier()

    def result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write the run's result, and return it."""
        if self._world.is_main:
            for log in self._logs.values():
                log.durable_length()  # the result must not outlive its lines
            lines, table = read_lines(self._directory.metrics_file), io.StringIO()
            writer = csv.DictWriter(table, dict.fromkeys(key for line in lines for key in line), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
            write_text(self._directory.metrics_table, table.getvalue())
            write_json(self._directory.result_file, result)
            self._directory.remove_weights(self._task.settings.temporary_steps)
        self._world.barrier()
        return result

    def done(self, evaluation: Evaluation, rows: int) -> dict[str, Any]:
        """The result of a run that reached its last step; `rows` is the batch size per process in evaluations."""
        settings, counters = self._task.settings, self._counters
        return {
            "state": "done",
            **self._common(),
            "train_loss": counters.last_finite_loss,
            **{"loss": evaluation.loss, **evaluation.metrics, **evaluation.signed},
            **({"averaged_steps": list(settings.averaged_steps)} if settings.averaged_steps else {}),
            **({"chosen_step": counters.best_step} if settings.select == "best" else {}),
            "evaluation": {**evaluation.extent, "batch_size": rows, "processes": self._world.size},
        }

    def diverged(self) -> dict[str, Any]:
        """Write and return the result of a run whose loss was not finite at the step of the counters."""
        ending = {"diverged_at": self._counters.step, "last_finite_loss": self._counters.last_finite_loss}
        return self.result({"state": "diverged", **self._common(), **ending})

    def _common(self) -> dict[str, Any]:
        spec, world, unit = self._task.spec, self._world, self._unit
        counters, environment = self._counters, self.environment
        cost = cost_of(spec)
        # Over the timed steps, which may go beyond the diverged step: it is noticed some steps later.
        timed_targets = round(counters.tokens * counters.timed_steps / max(1, counters.step))
        rate = counted(spec, counters.timed_steps, timed_targets) / max(counters.seconds, 1e-9)
        return {
            "id": spec.id,
            "data_content": spec.data_content,
            **self._task.facts,
            **({} if spec.start is None else {"start": spec.begun_with}),
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
            **{key: environment.get(key) for key in ("device", "products", "attention")},
            "numerics": None if "numerics" in environment.get("differs", ()) else environment.get("numerics"),
            "processes": world.size,
            "git_commit": environment.get("git_commit"),
            "mixed_environment": bool(environment.get("differs")),
        }
