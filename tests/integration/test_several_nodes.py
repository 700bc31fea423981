"""One run on two nodes under torchrun: two launchers on this machine; and, where it can make them, two network
namespaces joined by a virtual cable."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from dying import wait_until
from tiny_recipe import quick_recipe
from worlds import DEPENDS_ON_PROCESSES, assert_close, comt

from comt_cli.campaign.executor import free_port
from comt_cli.runs.directory import RunDirectory

pytestmark = pytest.mark.timeout(500)


@dataclass(frozen=True)
class Node:
    """This machine (without a `name`), or a network namespace with one interface."""

    rank: int
    name: str | None = None

    @property
    def interface(self) -> str:
        return f"{self.name}-0"

    @property
    def address(self) -> str:
        return f"10.77.0.{self.rank + 1}"

    def start(self, log: Path, port: int, *command: str) -> subprocess.Popen[bytes]:
        """One of the two launchers, with one process."""
        master = Node(0).address if self.name else "127.0.0.1"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        launcher += [f"--node-rank={self.rank}", f"--master-addr={master}", f"--master-port={port}", "-m", "comt_cli"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if self.name:
            launcher[:0] = ["ip", "netns", "exec", self.name]
            environment["GLOO_SOCKET_IFNAME"] = self.interface
        with log.open("ab") as file:
            return subprocess.Popen([*launcher, *command], env=environment, stdout=file, stderr=file)

    def fail(self) -> None:
        """Kill everything that runs in the namespace."""
        for process in ip("netns", "pids", str(self.name)).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)


class Launches:
    """A recipe that two nodes train together, below `runs`, at a time."""

    def __init__(self, nodes: tuple[Node, Node], corpus: str, folder: Path, **train: int) -> None:
        self.nodes, self.runs, self.alone = nodes, folder / "together", folder / "alone"
        self.logs = [folder / f"node{node.rank}.log" for node in nodes]
        recipe = folder / "one.yaml"
        train = {"log_every": 1, **train}
        recipe.write_text(quick_recipe("one", corpus, {"comt": "comt"}, train), encoding="utf-8")
        self.given = (
            "train-lm",
            "--recipe",
            str(recipe),
            "--device",
            "cpu",
            "--results",
            str(folder / "results"),
            "--runs",
        )

    def start(self) -> list[subprocess.Popen[bytes]]:
        port, command = free_port(), (*self.given, str(self.runs))
        return [node.start(log, port, *command) for node, log in zip(self.nodes, self.logs, strict=True)]

    def said(self) -> str:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace")[-3000:] for log in self.logs)

    def directory(self) -> RunDirectory:
        (path,) = self.runs.glob("by-id/*")
        return RunDirectory(path)

    def assert_as_alone(self) -> None:
        """The run is that of one process."""
        comt(*self.given, str(self.alone))
        mine = self.directory()
        other = RunDirectory(self.alone / "by-id" / mine.path.name)
        assert_close(mine.metrics(), other.metrics(), 1e-5, but=DEPENDS_ON_PROCESSES)
        assert (mine.result()["processes"], other.result()["processes"]) == (2, 1)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def namespaces() -> Iterator[tuple[Node, Node]]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the program ip (Debian's package iproute2)")
    both = Node(0, f"comt{os.getpid()}a"), Node(1, f"comt{os.getpid()}b")
    try:
        try:
            for node in both:
                ip("netns", "add", str(node.name))
            first, second = ((node.interface, "netns", str(node.name)) for node in both)
            ip("link", "add", *first, "type", "veth", "peer", "name", *second)
            for node in both:
                ip("-n", str(node.name), "addr", "add", f"{node.address}/24", "dev", node.interface)
                for interface in ("lo", node.interface):
                    ip("-n", str(node.name), "link", "set", interface, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
        yield both
    finally:
        for node in both:
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                node.fail()
                ip("netns", "delete", str(node.name))


def test_a_run_of_two_launchers_is_that_of_one_process(tiny_corpus, tmp_path):
    launches = Launches((Node(0), Node(1)), tiny_corpus, tmp_path, steps=8)
    started = launches.start()
    try:
        assert [each.wait(200) for each in started] == [0, 0], launches.said()
    finally:
        for each in started:
            each.terminate()
    launches.assert_as_alone()
    reports = ["seed 1" in log.read_text(encoding="utf-8") for log in launches.logs]
    assert reports == [True, False], "the first process reports"


@pytest.mark.slow
@pytest.mark.parametrize("fails", [0, 1])
def test_a_run_on_two_nodes_is_that_of_one_process_also_after_a_node_fails(namespaces, tiny_corpus, tmp_path, fails):
    launches = Launches(namespaces, tiny_corpus, tmp_path, steps=120, save_every=20, evaluate_every=60)
    launchers = launches.start()
    wait_until(lambda: bool([*launches.runs.glob("by-id/*/checkpoint.pt")]), 200)
    namespaces[fails].fail()
    assert launchers[fails].wait(60) == -signal.SIGKILL
    assert launchers[1 - fails].wait(60) == 1, launches.said()
    directory = launches.directory()
    assert directory.result() is None
    lost = f"comt: process {1 - fails} of 2 cannot reach another one: "
    lines = launches.logs[1 - fails].read_text(encoding="utf-8").splitlines()
    assert [line.startswith(lost) for line in lines].count(True) == 1, launches.said()

    assert [each.wait(200) for each in launches.start()] == [0, 0], launches.said()
    assert directory.environment_file.read_text(encoding="utf-8").count('"started"') == 2
    launches.assert_as_alone()
