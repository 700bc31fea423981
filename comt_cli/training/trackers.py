"""Trackers: send a run's logged values to TensorBoard or Weights & Biases, if asked for.

They receive the lines of `metrics.jsonl` and `timings.jsonl`, change no number of a run, and are not part of its id. A
tracker that fails is disabled with one warning. Only a run's main process has trackers.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from comt_cli.errors import UserError
from comt_cli.installing import install_extra
from comt_cli.recipe.problems import nearest
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.logs import SPIKES, WINDOW, is_observed, is_spike, logged
from comt_cli.runs.plan import RunSpec, point_in_words
from comt_cli.training.events import Listener, Note
from comt_cli.training.processes import environment_variable

VARIABLE: Final = "COMT_TRACK"
"""The environment variable with the names of the trackers, which every process of a run inherits."""


Log = Callable[[int, dict[str, float]], object]  # the numbers of a step
Close = Callable[[bool], object]  # whether the run ended without an error


def tensorboard(spec: RunSpec, folder: Path, step: int) -> tuple[Log, Close]:
    """Event files in `tensorboard/` of the run directory; steps that an earlier start logged later are purged."""
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else 0)
    if not step:
        writer.add_text("config", f"```\n{spec.model_dump_json(indent=2)}\n```", 0)

    def log(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # a resumed run does not log earlier steps again

    return log, lambda _: writer.close()


def weights_and_biases(spec: RunSpec, folder: Path, _: int) -> tuple[Log, Close]:
    """A W&B run with this run's id, in the project of WANDB_PROJECT, else `comt`. Every start of the run continues it.
    With WANDB_MODE=offline everything is stored in `wandb/` in the run directory."""
    import wandb

    wait = {"init_timeout": 60.0, "finish_timeout": 60.0}  # seconds, so that a service outage does not delay a run
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "comt"),
        id=spec.id,
        resume="allow",
        name=", ".join(filter(None, (spec.row, spec.column, point_in_words(spec.point), f"seed {spec.seed}"))),
        group=f"{spec.paper}/{spec.table} {spec.scale}",
        config=spec.model_dump(mode="json"),
        dir=str(folder),
        settings=wandb.Settings(console="off", silent=True, **wait),  # prints nothing
    )
    return lambda step, values: run.log(values, step=step), lambda ended: run.finish(exit_code=0 if ended else 1)


TRACKERS: Final = {"tensorboard": tensorboard, "wandb": weights_and_biases}
"""Trackers by name, which is also the name of the required package and of the extra that installs it."""


def tracked(line: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a line of `metrics.jsonl` or `timings.jsonl`, by their names in trackers."""
    kinds, chosen = {"validation": "evaluation", "test": "test"}, "-chosen" if "chosen" in line else ""
    found = {}
    for key, value in line.items():
        split, _, name = key.partition("_")
        if split in kinds:
            found[f"{kinds[split]}{chosen}/{name}"] = value
        elif key in ("loss", "learning_rate", "gradient_norm", *SPIKES) or key.endswith("_per_second"):
            found[f"train/{key}"] = value
        elif is_observed(key):
            found[key.replace(".", "/", 1)] = value
    return {key: float(value) for key, value in found.items() if value is not None}


@contextlib.contextmanager
def tracking(names: Sequence[str] | None) -> Iterator[None]:
    """Set the trackers of runs that are trained or submitted in this context; None: those of the environment. Raises
    `UserError` if a tracker is unknown, its package is not installed, or wandb is not logged in."""
    wanted = list(dict.fromkeys(names)) if names is not None else trackers_in_use()
    for name in wanted:
        if name not in TRACKERS:
            raise UserError(f"--track or {VARIABLE}: there is no tracker {name}", nearest(name, TRACKERS))
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise UserError(f"--track {name}: the package {name} is not installed", install_extra(name)) from None
    if "wandb" in wanted and os.environ.get("WANDB_MODE", "online") in ("online", "shared"):
        import wandb

        try:
            wandb.login()  # asks for the key on a terminal now, not during training
        except Exception as error:
            raise UserError(f"--track wandb: {error}", "Log in with: wandb login; or set WANDB_MODE=offline") from None
    with environment_variable(VARIABLE, ",".join(wanted)):
        yield


def trackers_in_use() -> list[str]:
    """The names in the environment variable."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


class Trackers:
    """The trackers of one run that continues after `step`. A tracker that fails gives one `Note`; no method raises."""

    def __init__(self, names: Sequence[str], spec: RunSpec, folder: Path, step: int, listener: Listener) -> None:
        self._listener = listener
        log = RunDirectory(folder).metrics() if names and step else []
        self._seen = {key: deque((value for _, value in logged(log, of)), WINDOW) for key, of in SPIKES.items()}
        self._open: dict[str, tuple[Log, Close]] = {}
        for name in names:
            with self._guarded(name):
                self._open[name] = TRACKERS[name](spec, folder, step)

    def log(self, line: Mapping[str, Any]) -> None:
        """Send a line of `metrics.jsonl`, with the speed of its step, and whether its loss and gradient norm are
        spikes."""
        if self._open:
            line = {**line, **dict(self._spikes(line))}
        for name, (write, _) in list(self._open.items()):
            with self._guarded(name):
                write(line["step"], tracked(line))

    def _spikes(self, line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        for key, of in SPIKES.items():
            if (value := line.get(of)) is not None:
                spike = is_spike(value, [*self._seen[key]])
                self._seen[key].append(value)
                if spike is not None:
                    yield key, float(spike)

    def close(self, kind: type[BaseException] | None, *more: object) -> None:
        """End this start of the run; a callback of an `ExitStack`."""
        for name, (_, end) in list(self._open.items()):
            with self._guarded(name):
                end(kind is None)

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Disable a tracker that fails. In any case restore the random state, which a tracker must not change."""
        state = random.getstate()
        try:
            yield
        except (Exception, SystemExit) as error:
            self._open.pop(name, None)
            self._listener(Note(f"{name} is disabled from now on: {type(error).__name__}: {error}"))
        finally:
            random.setstate(state)
