"""Trains a run in a process that dies in the middle of it, as under kill -9.

The processes are forked from one that has imported everything and computes with one thread (`forkserver`), so each
starts within a moment. This module is what that server loads.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import sacrebleu.metrics  # noqa: F401 - translations are scored
import sacremoses  # noqa: F401
import torch
import torch._dynamo  # every optimiser imports it
from tiny_runs import MODEL, train

import comt_cli.training.tasks.glue
import comt_cli.training.tasks.images
import comt_cli.training.tasks.masked_lm
import comt_cli.training.tasks.translation  # noqa: F401 - these are trained too
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.models.flops import parameter_count
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.language import ModelSettings
from comt_cli.training.record import LineLog

Moment = tuple[str, int]
"""What happens, and the how-manieth time since the process started."""


def warm_up() -> None:
    """Imports of a first model, paid before the fork."""
    model = empty_network(ModelSettings(**MODEL), wiring_of({"name": "comt"}), vocabulary=258)
    materialise(model, torch.device("cpu"), 0)
    assert parameter_count(model)


class Deaths:
    """Kills this process at a moment."""

    def __init__(self, at: Moment | None) -> None:
        self.at = at
        self.seen: Counter[str] = Counter()
        self.checkpoint = ""

    def maybe(self, happening: str) -> None:
        self.seen[happening] += 1
        if (happening, self.seen[happening]) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def arrange(self) -> None:
        """Have the functions that write tell `maybe`."""
        replace, append, save, fsync = Path.replace, LineLog.append, torch.save, os.fsync

        def dying_replace(path: Path, target: Path) -> None:
            name = self.checkpoint if target.name == "checkpoint.pt" else target.name
            self.maybe(f"before {name} is renamed")
            replace(path, target)
            self.maybe(f"after {name} is renamed")

        def dying_append(log: LineLog, values: dict[str, Any]) -> None:
            half = json.dumps(values)[:-7]
            if (f"half a line of {log.path.name}", self.seen[f"half a line of {log.path.name}"] + 1) == self.at:
                with log.path.open("a") as handle:
                    handle.write(half)
            self.maybe(f"half a line of {log.path.name}")
            append(log, values)
            self.maybe(f"after a line of {log.path.name}")

        def dying_save(state: Any, handle: Any) -> None:
            self.checkpoint = _name(state)
            self.maybe(f"before {self.checkpoint} is written")
            content = io.BytesIO()
            save(state, content)
            handle.write(content.getvalue()[: len(content.getvalue()) // 2])
            handle.flush()
            self.maybe(f"half of {self.checkpoint} is written")
            handle.write(content.getvalue()[len(content.getvalue()) // 2 :])

        def dying_fsync(descriptor: int) -> None:
            fsync(descriptor)
            self.maybe("after a flush to disk")

        Path.replace, LineLog.append, torch.save, os.fsync = dying_replace, dying_append, dying_save, dying_fsync  # type: ignore[assignment,method-assign]


def _name(state: dict[str, Any]) -> str:
    """Name of what is saved, by what it holds."""
    if "optimizer" not in state:
        return "weights"
    return "the final checkpoint" if state["optimizer"] is None else "a checkpoint"


def train_until_death(spec_json: str, runs: str, cache: str, at: Moment | None) -> None:
    """The process's work: train the run, and die at a moment (None: not by itself)."""
    torch.set_num_threads(1)
    os.environ["COMT_CACHE"] = cache
    Deaths(at).arrange()
    train(RunSpec.model_validate_json(spec_json), Path(runs))


class Nursery:
    """Starts such processes."""

    def __init__(self) -> None:
        self.started: list[BaseProcess] = []
        # One that an earlier test's command started has that test's PATH, and blocks signals.
        multiprocessing.forkserver._forkserver._stop()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["dying"])
        with pytest.MonkeyPatch.context() as patch:
            here = Path(__file__).parent  # and the tree that these tests are of, wherever the package is installed
            folders = [str(folder) for folder in (here, here.parent, here.parents[1])]
            patch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
            patch.setenv("OMP_NUM_THREADS", "1")
            multiprocessing.forkserver.ensure_running()

    def start(self, target: Any, *arguments: Any) -> BaseProcess:
        process = self.context.Process(target=target, args=arguments)
        process.start()
        self.started.append(process)
        return process

    def end_all(self) -> None:
        """Kill what a failed test left behind, even if it was halted: pytest would wait for it."""
        while self.started:
            process = self.started.pop()
            process.kill()
            process.join()

    def kill_at_each(self, moments: list[Moment], spec: RunSpec, runs: Path) -> RunDirectory:
        """Train `spec`, killed at one moment after the other; its directory, not yet whole."""
        directory = RunDirectory.of(runs, spec)
        for moment in moments:
            assert self.run(spec, runs, moment) == -signal.SIGKILL, moment
            assert directory.state() is RunState.unfinished
        return directory

    def run(self, spec: RunSpec, runs: Path, at: Moment | None = None) -> int | None:
        """Train `spec` until it dies; the exit code."""
        process = self.start(train_until_death, spec.model_dump_json(), str(runs), os.environ["COMT_CACHE"], at)
        process.join()
        return process.exitcode


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def is_training(directory: RunDirectory) -> bool:
    """Whether a run has come as far as its first line."""
    return directory.metrics_file.exists() and directory.metrics_file.stat().st_size > 0


if __name__ == "dying" and os.environ.get("OMP_NUM_THREADS") == "1" and multiprocessing.parent_process() is None:
    warm_up()
