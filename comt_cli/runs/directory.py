"""The run directory: the only interface between training, which writes it, and its readers.

A run is identified by its id, and stored once, in `runs/by-id/<id>`. In addition there is a relative symbolic link
`runs/<paper>/<table>/<row>/<column>/seed<k>-<id>` for every table with this run (see `shared_runs`). If `--set` changed
settings, the link's table is `<table>@<settings>`, whose folder has them in `changed-settings.json`.

spec.json          the run, fully resolved (`RunSpec`)
environment.json   versions, device, git commit: one entry per start of the run
metrics.jsonl      one line per logged step, with nothing that differs between two equal runs
gradients.jsonl    one line per step with logged gradient norms (`train.gradient_norms_every` of an image classifier):
                   {"step": n, "norms": {convolution's weight: L2 norm}}
timings.jsonl      one line per logged step: seconds, tokens or images per second (these do differ)
metrics.csv        metrics.jsonl as a table, written at the end
best-*.pt, weights-*.pt   during training, candidates for the final weights (`train.select`, `train.average_last`); the
                   latter are kept if `train.keep_every` asks for them
outputs/<weights>/ outputs of evaluations per sample, such as translations; `final` are those of the final weights
checkpoint.pt      the newest complete checkpoint, with the tokenizer or the classes, so that it can be used alone
result.json        written last: its presence means that the run is done
name.txt           the name given by `comt runs --name`, which is not part of the run id
error.txt          the error of the last attempt, with its remedy, or the traceback of a defect; removed when another
                   attempt begins
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from comt_cli.errors import StorageError, UserError
from comt_cli.files import if_damaged, make_folder, open_own, parse_json, read_text, write_json, write_text
from comt_cli.runs.plan import BY_ID, CHANGED, RunSpec

LOCKS_NEEDED = "--runs needs a folder that can be written, on a file system with locks."
PYTORCH, ONEDNN = "PyTorch", "oneDNN"
"""The `products` of a result: the library that multiplied large fp32 matrices."""
BATCHED = "batched products"
"""The `attention` of a result that did not use PyTorch's for short sequences (`kernels.attend`)."""
NUMERICS = 2
"""Version of the training code's numerics: kernels, order of sums, optimiser, initialisation, order of samples. Every
change after which equal settings give other bits raises it; run ids do not change. A result without it is older, or was
resumed by another version. It does not cover the run that a run started from."""
READING_ERRORS = (UserError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
"""Exceptions that reading a run directory can raise if it is damaged or of another version."""


FEW = 100  # with fewer samples, a difference between two scores may be due to chance
_SAMPLES = {"sentences": "sentences", "images": "images", "examples": "examples", "samples": "sequences"}


def scored_on(result: Mapping[str, Any], prefix: str = "") -> tuple[int, str] | None:
    """Number and kind of the samples behind the numbers of a `result.json` with this `prefix`; None if it has none."""
    counts = result.get(f"{prefix}evaluation")
    counted = counts if isinstance(counts, dict) else {}
    return next(((counted[key], what) for key, what in _SAMPLES.items() if isinstance(counted.get(key), int)), None)


class BeingTrained(UserError):
    """Another process holds the lock of the run directory; `owner` names it."""

    def __init__(self, message: str, hint: str | None, owner: str) -> None:
        super().__init__(message, hint, owner)
        self.owner = owner


class RunState(StrEnum):
    """State of a run according to its directory."""

    missing = "missing"
    unfinished = "unfinished"
    running = "running"
    done = "done"
    diverged = "diverged"


ENDED = (RunState.done.value, RunState.diverged.value)  # the states in `result.json`


class RunDirectory:
    """One run's folder at `path`, with a lock that lets one process at a time write there. `label` is the path of its
    readable link; None if it is unknown.

    The lock is `flock`'s, which the system releases when its owner dies. Several machines may share the folder if their
    file system shares such locks: NFS (which keeps a dead machine's locks until its lease ends, about 90 seconds),
    Lustre mounted with `flock`, GPFS and CephFS. With local locks (`local_lock=flock`, Lustre's `localflock`) two
    machines could train one run at the same time.
    """

    def __init__(self, path: Path, label: Path | None = None) -> None:
        self.path, self.label = path, label
        self.spec_file = path / "spec.json"
        self.environment_file = path / "environment.json"
        self.metrics_file = path / "metrics.jsonl"
        self.gradients_file = path / "gradients.jsonl"
        self.timings_file = path / "timings.jsonl"
        self.metrics_table = path / "metrics.csv"
        self.checkpoint_file = path / "checkpoint.pt"
        self.result_file = path / "result.json"
        self.error_file = path / "error.txt"
        self.name_file = path / "name.txt"
        self.lock_file = path / ".lock"

    @classmethod
    def of(cls, runs: Path, spec: RunSpec) -> RunDirectory:
        """The directory of `spec` in the folder `runs`."""
        return cls(runs / BY_ID / spec.id, runs / spec.relative_path)

    @property
    def is_begun(self) -> bool:
        """Whether it has a checkpoint or a result, so that its source is no longer needed."""
        return self.checkpoint_file.exists() or self.result_file.exists()

    @property
    def shown(self) -> Path:
        """The path to print: the link that names table, row and column if there is one, else the folder."""
        return self.label if self.label is not None and self._is_linked(self.label) else self.path

    def link(self, changed: Mapping[str, Any]) -> None:
        """Make the readable link, relative so that the folder `runs` can be moved. Any other file there is kept. Also
        writes the `changed` settings of its table (`RunSpec.changed`). Raises `StorageError`."""
        if self.label is None or self._is_linked(self.label):
            return
        target = os.path.relpath(self.path, self.label.parent)
        try:
            self.label.parent.mkdir(parents=True, exist_ok=True)
            if changed:
                write_json(self.label.parents[2] / CHANGED, changed)
            if self.label.is_symlink():
                self.label.unlink(missing_ok=True)  # it had another target
            with contextlib.suppress(FileExistsError):  # made by another process, or not a link
                self.label.symlink_to(target, target_is_directory=True)
        except OSError as error:
            hint = "--runs needs a file system with symbolic links."
            raise StorageError(f"cannot link {self.label}: {error.strerror or error}", hint) from error

    def _is_linked(self, label: Path) -> bool:
        try:
            return str(label.readlink()) == os.path.relpath(self.path, label.parent)
        except OSError:
            return False

    def best_file(self, step: int) -> Path:
        """The file of the weights after a step that was the best by validation."""
        return self.path / f"best-{step}.pt"

    def weights_file(self, step: int) -> Path:
        """The file of the weights after a step, which are averaged at the end."""
        return self.path / f"weights-{step}.pt"

    def remove_weights(self, steps: Iterable[int]) -> None:
        """Remove the weights of `steps` and the best ones; the checkpoint has the run's final weights."""
        self.keep_best(None)
        for step in steps:
            self.weights_file(step).unlink(missing_ok=True)

    def keep_best(self, step: int | None) -> None:
        """Remove the weights of best steps except `step`, to which the checkpoint refers."""
        for path in self.path.glob("best-*.pt"):
            if step is None or path != self.best_file(step):
                path.unlink(missing_ok=True)

    def state(self) -> RunState:
        """Done or diverged if there is a result; else running if a process holds the lock; else unfinished."""
        if (result := self.result()) is not None:
            return RunState(result["state"])
        if not self.path.is_dir():
            return RunState.missing
        if self.owner() is not None:
            return RunState.running
        return RunState.unfinished if self.spec_file.exists() else RunState.missing

    def result(self) -> dict[str, Any] | None:
        """`result.json`, or None while there is none. Raises `UserError` if it is damaged."""
        result = _read_object(self.result_file)
        if result is not None and result.get("state") not in ENDED:
            raise UserError(f"{self.result_file}: state is not {' or '.join(ENDED)}", ANEW)
        return result

    def result_if_done(self) -> dict[str, Any]:
        """`result.json` of a run that is done. Raises `UserError` for any other, which has no weights to evaluate."""
        if (result := self.result()) is None or result["state"] != RunState.done:
            said = "has not ended" if result is None else f"has {result['state']}"
            raise UserError(f"{self.shown} {said}", "Only a run that is done has weights to evaluate.")
        return result

    def spec(self) -> RunSpec:
        """`spec.json`. Raises `UserError` if there is none, or if its settings have another id in this version."""
        data = _read_object(self.spec_file)
        if data is None:
            raise UserError(f"{self.path} is not a run directory", "It has no spec.json.")
        noted, misfit = data.pop("id", None), f"{self.spec_file} does not fit this version of comt"
        try:
            spec = RunSpec.model_validate(data)
        except ValueError as error:
            raise UserError(f"{misfit}: {error}") from None
        if noted != spec.id:
            hint = "It was made by another version, or edited; its checkpoint can still be read by its path."
            raise UserError(f"{misfit}: it has the id {noted}, but its settings have the id {spec.id}", hint)
        return spec

    def metrics(self) -> list[dict[str, Any]]:
        """The logged steps, oldest first. A line cut off by a crash is left out."""
        return read_lines(self.metrics_file)

    def gradients(self) -> list[dict[str, Any]]:
        """The logged gradient norms, oldest first; [] if none were logged."""
        return read_lines(self.gradients_file)

    def timings(self) -> list[dict[str, Any]]:
        """The logged speeds, oldest first."""
        return read_lines(self.timings_file)

    def create(self, spec: RunSpec) -> None:
        """Make the folder and its link, and write `spec.json`. Raises `StorageError`."""
        make_folder(self.path)
        self.link(spec.changed)
        write_json(self.spec_file, {**spec.model_dump(mode="json"), "id": spec.id})
        self.error_file.unlink(missing_ok=True)

    def error(self) -> str | None:
        """The first line of `error.txt`, the reason that the last attempt failed; None if it did not."""
        try:
            return read_text(self.error_file).partition("\n")[0] or None
        except (OSError, ValueError):
            return None

    def remove_outputs(self, after: int, *, is_final: bool) -> None:
        """Remove the outputs of evaluations after this step, and those of final weights unless it `is_final`."""
        for folder in (self.path / "outputs").glob("*"):
            number = folder.name.removeprefix("step-")
            if int(number) > after if number.isdigit() else not is_final:
                shutil.rmtree(folder, ignore_errors=True)

    def note_error(self, reason: str, details: str = "") -> None:
        """Write `error.txt`: the reason in one line, then a remedy or a traceback. A full disk raises nothing."""
        with contextlib.suppress(StorageError):
            write_text(self.error_file, f"{reason}\n\n{details}" if details else f"{reason}\n")

    def lock(self) -> IO[str]:
        """Lock the directory, which is made if it does not exist, for writing. The lock is held until the returned file
        is closed or the process dies. Tries again if another process has the lock, which `state()` holds briefly, or if
        the folder was moved meanwhile. Raises `BeingTrained` if another process trains this run, `StorageError` if the
        folder or the lock cannot be made."""
        refused = 0
        for _ in range(10):
            make_folder(self.path)
            with contextlib.ExitStack() as unless_locked:
                try:
                    handle = os.fdopen(open_own(self.lock_file, os.O_RDWR | os.O_APPEND), "a+")
                    unless_locked.enter_context(handle)
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.fstat(handle.fileno()), self.lock_file.stat()):
                        handle.truncate(0)
                        handle.write(f"process {os.getpid()} on {socket.gethostname()}")
                        handle.flush()
                        unless_locked.pop_all()
                        return handle
                except FileNotFoundError:
                    continue
                except BlockingIOError:
                    refused += 1
                    if refused == 3:
                        raise self.held_by(_owner(handle.fileno())) from None
                    time.sleep(0.05)
                except OSError as error:
                    raise StorageError(f"cannot lock {self.path}: {error.strerror or error}", LOCKS_NEEDED) from error
        raise StorageError(f"cannot lock {self.path}: another process repeatedly removes it")

    def held_by(self, owner: str) -> BeingTrained:
        """The error for a directory that another process holds."""
        message = f"{self.shown} is being trained by {owner}"
        return BeingTrained(message, "Wait for it to end, or stop it; then run the command again.", owner)

    def owner(self) -> str | None:
        """The process that trains the run, such as `process 12 on some-host`, or None. Raises `UserError` if the lock
        cannot be read."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"cannot read the lock {self.lock_file}: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _owner(descriptor)
        except OSError as error:
            said = f"cannot read the lock {self.lock_file}: {error.strerror or error}"
            raise UserError(said, LOCKS_NEEDED) from error
        finally:
            os.close(descriptor)
        return None


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 500, 0).decode("utf-8", errors="replace").strip() or "another process"


ANEW = "Delete the run directory to train the run again."


def _read_object(path: Path) -> dict[str, Any] | None:
    text = _read_text(path)
    return None if text is None else _object(text, str(path))


def _read_text(path: Path) -> str | None:
    try:
        return read_text(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}", if_damaged(ANEW, error)) from None


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError as error:
        raise UserError(f"{where} cannot be read: {error}", ANEW) from None
    if not isinstance(found, dict):
        raise UserError(f"{where} is not a JSON object", ANEW)
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, oldest first; [] if there is none. An unfinished last line is left out. Raises
    `UserError` if another line is not a JSON object, or the file is not text."""
    *lines, _unfinished = (_read_text(path) or "").split("\n")
    return [_object(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
