"""Files of a run that its main process writes: lines, checkpoints, the result. Others write nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.files import write_json
from comt_cli.kernels.choice import Choice
from comt_cli.runs.directory import RunDirectory
from comt_cli.training.checkpoint import Counters, save_checkpoint, save_weights
from comt_cli.training.evaluation import Evaluation, finite
from comt_cli.training.parallel import World, local_tensor
from comt_cli.training.record import LineLog, record_environment, write_metrics_table
from comt_cli.training.speed import Clock
from comt_cli.training.tasks.base import TaskRun
from comt_cli.training.trackers import Trackers, trackers_in_use


class RunWriter:
    """Opens the files of a run that resumes from `counters`, and drops later lines.

    `kernels` says what computes the model's operations (`models.kernels.use_kernels`).

    Attributes:
        environment: that of this start (see `record_environment`); {} where nothing is written.
    """

    def __init__(
        self,
        task: TaskRun[Any],
        directory: RunDirectory,
        counters: Counters,
        resources: contextlib.ExitStack,
        warn: Callable[[str], None],
        kernels: Mapping[str, Choice],
    ) -> None:
        self._task, self._directory, self._counters = task, directory, counters
        self._world = world = task.world
        self._unit = task.spec.task.unit
        self._observed = list(task.observed()) if task.norms_every is not None else []
        self.environment: dict[str, Any] = {}
        files = {"metrics": directory.metrics_file, "timings": directory.timings_file}
        if self._observed:
            files["gradients"] = directory.gradients_file
        self._logs: dict[str, LineLog] = {}
        if world.is_main:
            for name, file in files.items():
                self._logs[name] = resources.enter_context(LineLog(file))
                self._logs[name].truncate(getattr(counters, f"{name}_bytes"))
            for leftover in directory.path.glob(".*.tmp"):  # of a process that was killed while saving
                leftover.unlink(missing_ok=True)
            self.environment = record_environment(directory, task, counters.step, kernels)
        names = trackers_in_use() if world.is_main else []
        self._trackers = resources.enter_context(Trackers(names, task.spec, directory.path, counters.step, warn))

    def step(self, loss: float, rate: float, norm: Tensor | None, clock: Clock) -> None:
        """A logged step: its loss, learning rate and gradient norm, and how fast it went."""
        if not self._world.is_main:
            return
        counters = self._counters
        line = {
            "step": counters.step,
            self._unit.name: counters.tokens,
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": None if norm is None else finite(float(norm)),
        }
        timing = {
            "step": counters.step,
            "seconds": round(counters.seconds, 4),
            self._unit.per_second: round(clock.rate, 1),
            "waiting_share": round(clock.waiting_share, 5),
        }
        self._logs["metrics"].append(line)
        self._logs["timings"].append(timing)
        self._trackers.log({**timing, **line})

    def gradients(self, norms: Tensor) -> None:
        """The norms of the gradients of the task's observed parameters, in their order, at the step at hand."""
        if "gradients" in self._logs:
            by_name = {name: finite(norm) for name, norm in zip(self._observed, norms.tolist(), strict=True)}
            self._logs["gradients"].append({"step": self._counters.step, "norms": by_name})

    def evaluation(self, evaluation: Evaluation, split: str = "validation") -> None:
        """An evaluation of the step at hand, or of the weights that were chosen after it, on a split of the data."""
        if self._world.is_main:
            chosen = {"chosen": 1} if self._counters.chosen else {}
            line = {"step": self._counters.step, **chosen, **evaluation.line(split)}
            self._logs["metrics"].append(line)
            self._trackers.log(line)

    def checkpoint(self, optimizer: torch.optim.Optimizer | None) -> bool:
        """Save the step at hand, and wait until it is; False, in all processes, if the weights are not finite.

        A gradient can overflow where the loss did not yet. The next step finds it; no such weights replace good ones.
        """
        task = self._task
        if not _all_finite(task.model, self._world):
            return False
        counters, is_main = self._counters, self._world.is_main
        for name, log in self._logs.items():
            setattr(counters, f"{name}_bytes", log.durable_length())
        file, parts = self._directory.checkpoint_file, task.checkpoint_parts() if is_main else {}
        self._trackers.flush()  # before it is saved: a run that resumes here does not log these steps again
        save_checkpoint(file, task.spec, parts, task.model, optimizer, vars(counters), writes=is_main)
        if is_main:
            self._directory.keep_best(counters.best_step)
        self._world.barrier()
        return True

    def weights(self, path: Path) -> None:
        """Save the weights of the step at hand alone, and wait until they are."""
        save_weights(path, self._task.spec, self._counters.step, self._task.model, writes=self._world.is_main)
        self._world.barrier()

    def result(self, result: dict[str, Any]) -> dict[str, Any]:
        """The end of the run; returns its result."""
        if self._world.is_main:
            for log in self._logs.values():
                log.durable_length()  # the result must not outlive its lines
            write_metrics_table(self._directory)
            write_json(self._directory.result_file, result)
            self._directory.remove_weights(self._task.settings.passing_steps)
        self._world.barrier()
        return result


def _all_finite(model: nn.Module, world: World) -> bool:
    finite = torch.stack([torch.isfinite(local_tensor(parameter)).all() for parameter in model.parameters()]).all()
    return int(world.sum(finite.long())) == world.size
