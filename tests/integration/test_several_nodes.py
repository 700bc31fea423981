"""One run on two nodes under torchrun: two network namespaces of this machine, joined by a virtual cable."""

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

from comt_cli.runs.directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@dataclass(frozen=True)
class Node:
    """A network namespace with one interface."""

    rank: int
    name: str

    @property
    def interface(self) -> str:
        return f"{self.name}-0"

    @property
    def address(self) -> str:
        return f"10.77.0.{self.rank + 1}"

    def start(self, log: Path, *command: str) -> subprocess.Popen[bytes]:
        """One of the two launchers, with one process."""
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        launcher += [f"--node-rank={self.rank}", "--master-addr=10.77.0.1", "--master-port=29500", "-m", "comt_cli"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": self.interface, "OMP_NUM_THREADS": "1"}
        with log.open("ab") as file:
            inside = ["ip", "netns", "exec", self.name, *launcher, *command]
            return subprocess.Popen(inside, env=environment, stdout=file, stderr=file)

    def fail(self) -> None:
        """Kill everything that runs on it."""
        for process in ip("netns", "pids", self.name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the program ip (Debian's package iproute2)")
    both = Node(0, f"comt{os.getpid()}a"), Node(1, f"comt{os.getpid()}b")
    try:
        try:
            for node in both:
                ip("netns", "add", node.name)
            first, second = ((node.interface, "netns", node.name) for node in both)
            ip("link", "add", *first, "type", "veth", "peer", "name", *second)
            for node in both:
                ip("-n", node.name, "addr", "add", f"{node.address}/24", "dev", node.interface)
                for interface in ("lo", node.interface):
                    ip("-n", node.name, "link", "set", interface, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
        yield both
    finally:
        for node in both:
            with contextlib.suppress(subprocess.CalledProcessError):
                node.fail()
                ip("netns", "delete", node.name)


def test_a_run_on_two_nodes_is_that_of_one_process_also_after_a_node_fails(nodes, tiny_corpus, tmp_path):
    recipe, together, alone = (tmp_path / name for name in ("one.yaml", "together", "alone"))
    train = {"steps": 120, "log_every": 1, "save_every": 20, "evaluate_every": 60}
    recipe.write_text(quick_recipe("one", tiny_corpus, {"comt": "comt"}, train), encoding="utf-8")
    logs = [tmp_path / f"node{node.rank}.log" for node in nodes]
    given = ("train-lm", "--recipe", str(recipe), "--device", "cpu", "--runs")

    def start() -> list[subprocess.Popen[bytes]]:
        return [node.start(log, *given, str(together)) for node, log in zip(nodes, logs, strict=True)]

    def said() -> str:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace")[-3000:] for log in logs)

    launchers = start()
    wait_until(lambda: bool([*together.glob("by-id/*/checkpoint.pt")]), 200)
    nodes[1].fail()
    assert [each.wait(60) for each in launchers] == [1, -signal.SIGKILL], said()
    (path,) = together.glob("by-id/*")
    directory = RunDirectory(path)
    assert directory.result() is None
    lost = "comt: process 0 of 2 lost the connection to another one: "
    assert [line.startswith(lost) for line in logs[0].read_text(encoding="utf-8").splitlines()].count(True) == 1

    assert [each.wait(200) for each in start()] == [0, 0], said()
    assert directory.environment_file.read_text(encoding="utf-8").count('"started"') == 2
    comt(*given, str(alone))
    other = RunDirectory(alone / "by-id" / path.name)
    assert_close(directory.metrics(), other.metrics(), 1e-5, but=DEPENDS_ON_PROCESSES)
    assert (directory.result()["processes"], other.result()["processes"]) == (2, 1)
