"""`--engine skypilot`: a managed job of SkyPilot (https://docs.skypilot.co) that gives the same command on a rented
machine. Torch-free; SkyPilot is no dependency, its program `sky` starts the job.

The runs of a job are on its disk, since the mount of a bucket has no locks, no appending and no links. The job pulls
those in the bucket first, and pushes checkpoints while it trains: `pull` and `push` only write whole files.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from comt_cli.campaign.queue import TrainingFailed
from comt_cli.commit import git_commit
from comt_cli.errors import UserError
from comt_cli.files import make_folder, write_text
from comt_cli.training.trackers import VARIABLE, trackers_in_use

FOLDER = "skypilot"
"""Folder of the task files, below the runs."""
MOUNT = "/comt-storage"
PUSH_SECONDS = 60
_KEYS = {
    "accelerators": r"[A-Za-z][A-Za-z0-9-]*(:[1-9]\d*)?",
    **{"infra": r"\S+", "use_spot": "true|false", "cpus": r"\d+\+?", "memory": r"\d+\+?", "disk_size": r"\d+"},
    "storage": r"(s3|gs)://[a-z0-9][a-z0-9._-]+(/[A-Za-z0-9][\w.+-]*)+/?",
}
_OF_THIS_MACHINE = {"--engine", "--resources", "--runs", "--results"}

TASK = """\
# {launch}
name: {name}
workdir: .
resources: {resources}
envs: {envs}
file_mounts:
  {mount}: {{source: {bucket}, mode: MOUNT}}
setup: |
  set -e
  command -v uv > /dev/null || pip install --quiet uv
  [ -x .venv/bin/python ] || uv venv --python {python} .venv
  uv pip install --quiet --constraint constraints.txt --editable {project}
run: |
  set -e
  PATH="$PWD/.venv/bin:$PATH"
  comt pull {store}
  (while sleep {seconds}; do comt push {store} || true; done) > push.log 2>&1 &
  status=0
{command} || status=$?
  kill $! || true
  comt push {store} || status=$?
  exit $status
"""


class Engine(NamedTuple):
    """The resources of a job as SkyPilot names them, and the URL of the folder in a bucket that keeps its runs."""

    resources: dict[str, str | int | bool]
    storage: str


def read_engine(engine: str | None, resources: str | None) -> Engine | None:
    """The engine that the options state; None without one. Raises `UserError`."""
    if engine not in (None, "skypilot"):
        raise UserError(f"there is no engine {engine!r}", "Give --engine skypilot, or for Slurm --slurm SITE.YAML.")
    if engine is None and resources is None:
        return None
    hint = "For example --engine skypilot --resources H100:1,use_spot=true,storage=s3://BUCKET/FOLDER."
    if engine is None or resources is None:
        raise UserError("--engine and --resources need each other", hint)
    asked: dict[str, str] = {}
    for part in resources.split(","):
        key, is_key, value = part.partition("=")
        key, value = (key, value) if is_key else ("accelerators", part)
        if key in asked or not re.fullmatch(_KEYS.get(key, "(?!)"), value, re.ASCII):
            keys = f"Keys are {', '.join(_KEYS)}; others can be added to the task file."
            raise UserError(f"--resources {resources}: {part!r} is wrong or repeated", f"{hint} {keys}")
        asked[key] = value
    if (storage := asked.pop("storage", None)) is None:
        raise UserError(f"--resources {resources} names no storage for the runs", hint)
    values = {key: json.loads(value) if key in ("use_spot", "disk_size") else value for key, value in asked.items()}
    return Engine(values, storage.rstrip("/"))


def launch(engine: Engine, recipes: Sequence[Path], runs: Path) -> None:
    """Write the task file of this process's command below `runs`, and start its job if there is a `sky`; else print the
    command. Raises `UserError` if the job would lack a file (nothing was started), or `sky` failed."""
    clone = Path(__file__).resolve().parents[2]
    if not (clone / "pyproject.toml").is_file() or Path.cwd().resolve() != clone:
        where = f"cd {clone}" if (clone / "pyproject.toml").is_file() else "This comt was not installed from a clone."
        raise UserError("--engine skypilot sends the clone to the job, so it must be the current folder", where)
    words, given = [], iter(sys.argv[1:])
    for word in given:
        if (name := word.partition("=")[0]) not in _OF_THIS_MACHINE:
            words.append(word)
        elif name == word:
            next(given)
    for path in [*(path.resolve() for path in recipes), *map(Path, words)]:
        if path.is_absolute() and path.exists() and (clone not in path.parents or str(path) in words):
            raise UserError(f"{path} would not be in the job", f"Put it below {clone}, and give the path from there.")
    table = recipes[0].stem if len(recipes) == 1 else words[0]
    name = re.sub("[^a-z0-9]+", "-", f"comt-{table.lower()}").strip("-")
    file = runs / FOLDER / f"{name}.yaml"
    trackers, bucket = ",".join(trackers_in_use()), "/".join(engine.storage.split("/")[:3])
    command = ["sky", "jobs", "launch", "--detach-run", str(file)]
    task = TASK.format(
        launch=shlex.join(command),
        name=name,
        resources=json.dumps(engine.resources),
        envs=json.dumps({"COMT_COMMIT": git_commit() or "", VARIABLE: trackers}),
        mount=MOUNT,
        bucket=bucket,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        project=shlex.quote(f".[{trackers}]" if trackers else "."),
        store=engine.storage.replace(bucket, MOUNT),
        seconds=PUSH_SECONDS,
        command=textwrap.indent(shlex.join(["comt", *words]), "  "),
    )
    make_folder(file.parent)
    write_text(file, task)
    print(f"wrote {file}")
    if shutil.which("sky") is None:
        print(f"sky is not installed here. To start the job: {shlex.join(command)}")
    else:
        answer = [] if sys.stdin.isatty() else ["--yes"]  # on a terminal, sky shows the price and asks
        if status := subprocess.run([*command, *answer], check=False).returncode:
            raise TrainingFailed(f"sky ended with status {status}", f"Its task is {file}.")
    elsewhere = "" if runs == Path("runs") else f" --runs {shlex.quote(str(runs))}"
    print(f"For its runs: comt pull {engine.storage}{elsewhere}")
    print("Then this command, without --engine and --resources, writes the tables and figures.")
