"""A Slurm of one node on this machine, all in a temporary folder: its own ports, no authentication, ended by its pids.

Needs the programs of Debian's package slurm-wlm, and nothing of how that package sets itself up.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from comt_cli.campaign.executor import free_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
# cred_expire: a requeued job waits as long as its old credential may live. Slurm takes no less than 5 s.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ReturnToService=2
KillWait=3
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=500 State=UNKNOWN
PartitionName=short Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """A cluster for tests. `environment` makes the Slurm programs speak to it."""

    folder: Path
    environment: dict[str, str]

    def ask(self, *command: str) -> str:
        """Output of a Slurm program."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    def wait(self, what: str, happened: Callable[[], bool], seconds: float = 120.0) -> None:
        """Wait for something that the cluster does; fail with what its daemons wrote."""
        end = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > end:
                logs = [path for name in ("slurmctld.log", "slurmd.log") if (path := self.folder / name).exists()]
                written = "\n".join(f"{path.name}:\n{path.read_text(encoding='utf-8')[-3000:]}" for path in logs)
                pytest.fail(f"{what}: not within {seconds:.0f} s\n{written}")
            time.sleep(0.1)


@contextlib.contextmanager
def one_node_slurm(folder: Path) -> Iterator[Cluster]:
    """Start a controller and a node's daemon; end them, and whatever they started, on the way out."""
    missing = [name for name in PROGRAMS if _program(name) is None]
    if missing:
        pytest.skip(f"Slurm is not installed here ({missing[0]} is missing; Debian's package slurm-wlm has it)")
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    controller, daemon = free_port(), free_port()
    configuration = folder / "slurm.conf"
    values = {"host": host, "controller": controller, "daemon": daemon, "user": getpass.getuser(), "folder": folder}
    configuration.write_text(CONFIGURATION.format(**values), encoding="utf-8")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n", encoding="utf-8")
    cluster = Cluster(folder, {"SLURM_CONF": str(configuration)})
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for name, *options in (["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            with (folder / f"{name}.out").open("wb") as out:
                command = [str(_program(name)), *options, "-f", str(configuration)]
                daemons.append(
                    subprocess.Popen(
                        command, stdout=out, stderr=out, env={**os.environ, **cluster.environment}, cwd=folder
                    )
                )
        cluster.wait("the node is idle", lambda: _is_idle(cluster))
        yield cluster
        with contextlib.suppress(subprocess.SubprocessError):
            cluster.ask("scancel", "--user", getpass.getuser())
            cluster.wait("the queue is empty", lambda: not cluster.ask("squeue", "--noheader"), 30.0)
    finally:
        for process in reversed(daemons):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_idle(cluster: Cluster) -> bool:
    try:
        return "idle" in cluster.ask("sinfo", "--noheader", "--format=%t")
    except subprocess.CalledProcessError:  # the controller does not answer yet
        return False


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
