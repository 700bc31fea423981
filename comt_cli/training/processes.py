"""This process among others: its launcher, the signals that stop its run, and its end. Does not import torch."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, NoReturn, Self

from comt_cli.errors import UserError


def rank_and_size() -> tuple[int, int] | None:
    """This process's rank and the number of processes from a launcher's environment variables; None without them.
    Raises `UserError` if they are not as torchrun sets them."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    numbers = (rank, size, os.environ.get("LOCAL_RANK", rank))
    are_numbers = all(re.fullmatch("[0-9]{1,9}", each) for each in numbers)
    if not (are_numbers and int(rank) < int(size) and os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT")):
        said = f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are not as torchrun sets them"
        raise UserError(said, "Start comt with torchrun; or as one process: env -u RANK -u WORLD_SIZE comt ...")
    return int(rank), int(size)


def is_main_process() -> bool:
    """Whether this process prints and writes tables: it is the only one, or the first of torchrun's."""
    return (rank_and_size() or (0, 1))[0] == 0


def check_device(device_name: str | None, processes: int) -> None:
    """Raises `UserError` if `device_name` is a single device for several processes, each of which needs its own."""
    if processes > 1 and device_name is not None and ":" in device_name:
        raise UserError(
            f"--device {device_name} names one device, but there are {processes} processes",
            "Use --device cuda, and select the GPUs with CUDA_VISIBLE_DEVICES.",
        )


def share_of_batch(batch_size: int, processes: int) -> int:
    """Rows of the global batch per process. Raises `UserError` if the batch does not divide evenly."""
    if batch_size % processes:
        raise UserError(
            f"a batch of {batch_size} rows cannot be divided evenly among {processes} processes",
            "Give --gpus a divisor of train.batch_size; with --slurm, the site file's gpus times nodes.",
        )
    return batch_size // processes


def check_graphs(captures: bool | str, processes: int) -> None:
    """Raises `UserError` if the recipe insists on CUDA graphs and a run has several processes."""
    if captures is True and processes > 1:
        raise UserError(
            f"train.cuda_graphs: true needs one process per run, and there are {processes}",
            "Use --set train.cuda_graphs=false, or leave out --gpus: then each GPU trains another run.",
        )


@contextlib.contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Set the variable in this context, and so for processes started in it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class StopSignal:
    """While it is open, a signal of `SIGNALS` sets `number` instead of ending the process.

    SIGHUP is sent when a terminal is closed; under nohup it stays ignored. Slurm sends SIGUSR2 before a job's time
    limit. A second signal is handled as before, so that a step that hangs can be ended. A second signal within
    `ECHO_SECONDS` repeats the first: a terminal signals every process, and launchers forward signals. The handler calls
    `announce(again)`, with True for the second signal.

    Signals are forwarded to the processes of `children`. If there are any, a second signal kills them, and the third
    ends this process.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP)
    ECHO_SECONDS = 1.0

    def __init__(
        self,
        announce: Callable[[bool], None] = lambda _: None,
        children: Callable[[], Iterable[BaseProcess]] = lambda: (),
    ) -> None:
        self.number: int | None = None
        self.has_killed = False
        self._announce, self._children = announce, children
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                if not _is_ignored(number):
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        here = [child for child in self._children() if child.is_alive()]
        if self.number is None:
            self.number, self._since = number, time.monotonic()
            self._announce(False)
        elif time.monotonic() - self._since > self.ECHO_SECONDS:
            self._announce(True)
            if here and not self.has_killed:
                self.has_killed, self._since = True, time.monotonic()
                for child in here:
                    child.kill()
                return
            self.__exit__()
            signal.raise_signal(number)
        for child in here:
            if child.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, number)


def _is_ignored(number: int) -> bool:
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def begin_as_worker() -> None:
    """Set up a process that trains for its parent and was started with the signals of `StopSignal` blocked: it dies
    with its parent, and ends on a signal without a traceback."""
    die_with_parent()
    for number in StopSignal.SIGNALS:
        if not _is_ignored(number):
            signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":  # else the resource tracker warns about the lock of Inductor's progress bar
        multiprocessing.set_start_method("fork", force=True)


def die_with_parent() -> None:
    """End this process when its parent is killed: an orphan would keep its run locked. On Linux the kernel
    does so (`prctl`); a process forked by a forkserver, which may outlive the parent, waits for it in a thread."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    elif sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if parent is not None and not parent.is_alive():  # it was already killed
        os._exit(1)


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def end_process(status: int) -> NoReturn:
    """End a process that has saved everything, without finalising the interpreter: gloo's threads outlive it
    (`parallel.join_world`), and might make C++ abort."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader is gone
            stream.flush()
    os._exit(status)
