"""Slurm's programs for tests: shell scripts that keep a queue in a file. A task runs only when a test starts it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SBATCH = """\
if [ -e {folder}/refuses ]; then echo "sbatch: error: invalid partition specified: nope" >&2; exit 1; fi
number=$(($(cat {folder}/count) + 1))
name=$(sed -n 's/^#SBATCH --job-name=//p' "$1")
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
if [ -n "$last" ] && [ "$last" -ge "$(cat {folder}/largest)" ]; then
  echo "sbatch: error: Batch job submission failed: Invalid job array specification" >&2; exit 1
fi
echo $number > {folder}/count
cp "$1" {folder}/$number.sh
if [ -n "$last" ]; then
  for task in $(seq 0 "$last"); do echo "${{number}}_$task|PENDING||$name"; done >> {folder}/queue
else
  echo "$number|PENDING||$name" >> {folder}/queue
fi
echo "Submitted batch job $number"
"""
# Of one number that it does not know the real one says that it is invalid; of several it prints those that it knows.
# Without --array it sums up the tasks of an array that wait.
SQUEUE = """\
if [ -e {folder}/silent ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
summed='s/^\\([0-9]*\\)_[0-9]*|PENDING/\\1_[0-9]|PENDING/'
for argument; do case $argument in --jobs=*) numbers=${{argument#--jobs=}};; --array) summed=;; esac; done
found=$(grep -E "^($(echo $numbers | tr , '|'))(_[0-9]+)?\\|" {folder}/queue)
case $numbers in *,*) ;; *)
  if [ -z "$found" ]; then echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; fi;;
esac
echo "$found" | sed "$summed"
"""
SCONTROL = """\
if [ -e {folder}/silent ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
if [ "$1" = requeue ]; then echo "$2" >> {folder}/requeued; exit; fi
echo "MaxArraySize            = $(cat {folder}/largest)"
"""
# The processes of a task, as many as it says, with the last of the outputs it is given.
SRUN = """\
while true; do
  case $1 in --output) to=$2; shift 2;; --output=*) to=${{1#--output=}}; shift;; --*) shift;; *) break;; esac
done
to=$(echo "$to" | sed "s/%A/$SLURM_ARRAY_JOB_ID/; s/%a/$SLURM_ARRAY_TASK_ID/; s/%j/$SLURM_JOB_ID/; s/%t/0/")
for process in $(seq 0 $((SLURM_NTASKS - 1))); do
  SLURM_PROCID=$process SLURM_LOCALID=$process "$@" >> "$to" 2>&1 & started="$started $!"
done
for each in $started; do wait "$each" || failed=$?; done
exit ${{failed:-0}}
"""


class FakeSlurm:
    """The programs lie in `programs`, the first folder of PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.programs = folder, folder / "bin"
        self.programs.mkdir(parents=True)
        for name, content in (("count", "0"), ("queue", ""), ("largest", "1001")):
            (folder / name).write_text(content, encoding="ascii")
        for name, script in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scontrol", SCONTROL), ("srun", SRUN)):
            path = self.programs / name
            path.write_text(f"#!/bin/sh\n{script.format(folder=folder)}", encoding="ascii")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{self.programs}:{os.environ['PATH']}")

    def script(self, number: str) -> list[str]:
        """What sbatch was given for a job or an array."""
        return (self.folder / f"{number}.sh").read_text(encoding="utf-8").splitlines()

    def begin_at(self, number: int) -> None:
        """The number of the next job."""
        (self.folder / "count").write_text(str(number - 1), encoding="ascii")

    def requeued(self) -> list[str]:
        """The jobs that asked for it, as often as they did."""
        path = self.folder / "requeued"
        return path.read_text(encoding="ascii").split() if path.exists() else []

    def start(self, number: str, *, processes: int = 1) -> subprocess.Popen[bytes]:
        """Run the script of a job or a task, as the head of a session of its own: killing that is a node's failure."""
        array, _, task = number.partition("_")
        self.put(number, "RUNNING", "node7")
        said = {"SLURM_JOB_ID": array, "SLURM_NTASKS": str(processes)}
        said |= {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": task} if task else {}
        said |= {"SLURM_JOB_NODELIST": "localhost"}
        script = str(self.folder / f"{array}.sh")
        return subprocess.Popen(["bash", script], env={**os.environ, **said}, start_new_session=True)

    def put(self, number: str, state: str, node: str = "", name: str | None = None) -> None:
        """Have a queued job or task in another state, or under another name."""
        lines = dict(line.split("|", 1) for line in self.lines())
        before = lines[number].split("|")
        lines[number] = f"{state}|{node}|{name or before[2]}"
        self._write(f"{key}|{value}" for key, value in lines.items())

    def forget(self, number: str) -> None:
        """The job or task has ended."""
        self._write(line for line in self.lines() if not line.startswith(f"{number}|"))

    def lines(self) -> list[str]:
        return (self.folder / "queue").read_text(encoding="utf-8").split()

    def _write(self, lines: object) -> None:
        (self.folder / "queue").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")  # type: ignore[attr-defined]

    def takes_arrays_of(self, size: int) -> None:
        """The cluster's MaxArraySize."""
        (self.folder / "largest").write_text(str(size), encoding="ascii")

    def falls_silent(self) -> None:
        """The controller does not answer."""
        (self.folder / "silent").touch()

    def refuses(self) -> None:
        """sbatch takes no job."""
        (self.folder / "refuses").touch()
