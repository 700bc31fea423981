"""sbatch, squeue and srun for tests: shell scripts that keep a queue in a file. What they are given they never run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SBATCH = """\
if [ -e {folder}/refuses ]; then echo "sbatch: error: invalid partition specified: nope" >&2; exit 1; fi
number=$(($(cat {folder}/count) + 1))
echo $number > {folder}/count
cp "$1" {folder}/$number.sh
echo "$number|PENDING||$(sed -n 's/^#SBATCH --job-name=//p' "$1")" >> {folder}/queue
echo "Submitted batch job $number"
"""
# Of one number that it does not know the real one says that it is invalid; of several it prints those that it knows.
SQUEUE = """\
if [ -e {folder}/silent ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
for argument; do case $argument in --jobs=*) numbers=${{argument#--jobs=}};; esac; done
found=$(grep -E "^($(echo $numbers | tr , '|'))\\|" {folder}/queue)
case $numbers in *,*) ;; *)
  if [ -z "$found" ]; then echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; fi;;
esac
echo "$found"
"""


class FakeSlurm:
    """The programs lie in `programs`, the first folder of PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.programs = folder, folder / "bin"
        self.programs.mkdir(parents=True)
        (folder / "count").write_text("0", encoding="ascii")
        (folder / "queue").write_text("", encoding="ascii")
        for name, script in (("sbatch", SBATCH), ("squeue", SQUEUE), ("srun", "exit 0\n")):
            path = self.programs / name
            path.write_text(f"#!/bin/sh\n{script.format(folder=folder)}", encoding="ascii")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{self.programs}:{os.environ['PATH']}")

    def script(self, number: str) -> list[str]:
        """What sbatch was given for a job."""
        return (self.folder / f"{number}.sh").read_text(encoding="utf-8").splitlines()

    def put(self, number: str, state: str, node: str = "", name: str | None = None) -> None:
        """Have a queued job in another state, or under another name."""
        lines = dict(line.split("|", 1) for line in self.lines())
        before = lines[number].split("|")
        lines[number] = f"{state}|{node}|{name or before[2]}"
        self._write(f"{key}|{value}" for key, value in lines.items())

    def forget(self, number: str) -> None:
        """The job has ended."""
        self._write(line for line in self.lines() if not line.startswith(f"{number}|"))

    def lines(self) -> list[str]:
        return (self.folder / "queue").read_text(encoding="utf-8").split()

    def _write(self, lines: object) -> None:
        (self.folder / "queue").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")  # type: ignore[attr-defined]

    def falls_silent(self) -> None:
        """The controller does not answer."""
        (self.folder / "silent").touch()

    def refuses(self) -> None:
        """sbatch takes no job."""
        (self.folder / "refuses").touch()
