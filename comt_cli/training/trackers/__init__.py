"""Trackers: what a run logs, passed on to TensorBoard or Weights & Biases. Off unless asked for.

They receive the lines of `metrics.jsonl` and `timings.jsonl`, change no number of a run, and are not part of its id.
A tracker that fails is left out from then on, with one warning; the run continues. Only a run's main process has any.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

from comt_cli.errors import UserError
from comt_cli.installing import install_extra
from comt_cli.recipe.problems import nearest
from comt_cli.runs.plan import RunSpec
from comt_cli.training.processes import environment_variable

NAMES: Final = ("tensorboard", "wandb")
"""Each is also the name of the package that it needs, and of the extra that installs it."""
VARIABLE: Final = "COMT_TRACK"
"""The environment variable with the names in use: every process that is started for a run inherits it, a cluster's job
too."""

_OF_TRAINING: Final = ("loss", "learning_rate", "gradient_norm")


def name_of(key: str, *, chosen: bool = False) -> str | None:
    """What a tracker calls a key of `metrics.jsonl` or `timings.jsonl`; None for what is not passed on. `chosen`: it is
    of the weights that the run ends with, where these are not the last."""
    split, _, name = key.partition("_")
    if split in ("validation", "test"):
        return f"{'evaluation' if split == 'validation' else split}{'-chosen' if chosen else ''}/{name}"
    return f"train/{key}" if key in _OF_TRAINING or key.endswith("_per_second") else None


class Tracker(Protocol):
    """One run at one service."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step, by name."""

    def flush(self) -> None:
        """A checkpoint is saved: what was logged must not be lost, since the run resumes from there."""

    def close(self, *, ended: bool) -> None:
        """Nothing more will come. `ended`: the run has its result."""


def check_trackers(names: Sequence[str]) -> None:
    """Find out before anything starts that a tracker cannot be used. Raises `UserError` where there is no such tracker,
    its package is not installed, or wandb is not logged in."""
    for name in names:
        if name not in NAMES:
            raise UserError(f"--track {name}: there is no such tracker", nearest(name, NAMES))
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise UserError(
                f"--track {name} needs the package {name}, which is not installed here", install_extra(name)
            ) from None
    if "wandb" in names:
        from comt_cli.training.trackers.wandb import log_in

        log_in()


@contextlib.contextmanager
def tracking(names: Sequence[str] | None) -> Iterator[None]:
    """Runs that are trained, or submitted, in this context have these trackers; None: those of the environment.

    Raises:
        UserError: see `check_trackers`.
    """
    wanted = list(dict.fromkeys(names)) if names is not None else trackers_in_use()
    check_trackers(wanted)
    with environment_variable(VARIABLE, ",".join(wanted)):
        yield


def trackers_in_use() -> list[str]:
    """The names that the environment holds."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


class Trackers:
    """The trackers of one run that continues after `step`. None of its methods raises.

    `folder` is the run's; `warn` is called once for each tracker that fails.
    """

    def __init__(
        self, names: Sequence[str], spec: RunSpec, folder: Path, step: int, warn: Callable[[str], None]
    ) -> None:
        self._warn = warn
        self._open: dict[str, Tracker] = {}
        for name in names:
            with self._guarded(name):
                self._open[name] = _open(name, spec, folder, step)

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of `metrics.jsonl`, with the speed of its step; what is no finite number is left out."""
        named = ((name_of(key, chosen="chosen" in line), value) for key, value in line.items())
        values = {name: float(value) for name, value in named if name is not None and value is not None}
        self._each(lambda tracker: tracker.log(line["step"], values))

    def flush(self) -> None:
        """A checkpoint is saved."""
        self._each(lambda tracker: tracker.flush())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._each(lambda tracker: tracker.close(ended=kind is None))

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            with self._guarded(name):
                action(tracker)

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Whatever a tracker does, the run keeps its random states, and continues."""
        state = random.getstate()
        try:
            yield
        except (Exception, SystemExit) as error:
            self._open.pop(name, None)
            self._warn(f"{name} is left out from here on: {type(error).__name__}: {error}")
        finally:
            random.setstate(state)


def _open(name: str, spec: RunSpec, folder: Path, step: int) -> Tracker:
    if name == "tensorboard":
        from comt_cli.training.trackers.tensorboard import TensorBoard

        return TensorBoard(spec, folder, step)
    if name == "wandb":
        from comt_cli.training.trackers.wandb import WeightsAndBiases

        return WeightsAndBiases(spec, folder)
    raise UserError(f"${VARIABLE} names {name}: there is no such tracker", nearest(name, NAMES))
