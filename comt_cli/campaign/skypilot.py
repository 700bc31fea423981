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

FOLDER = "skypilot"
"""Folder of the task files, below the runs."""
MOUNT = "/comt-storage"
PUSH_SECONDS = 60
_KEYS = {"infra": r"\S+", "use_spot": "true|false", "cpus": r"\d+\+?", "memory": r"\d+\+?", "disk_size": r"\d+"}
_ACCELERATOR = r"[A-Za-z][A-Za-z0-9-]*(:[1-9]\d*)?"
_STORAGE = re.compile(r"(?P<bucket>(s3|gs)://[a-z0-9][a-z0-9._-]+)(?P<folder>(/[A-Za-z0-9][\w.+-]*)+)/?", re.ASCII)
_OF_THIS_MACHINE = {"--engine", "--resources", "--storage", "--runs", "--results"}

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
  kill $!
  comt push {store} || status=$?
  exit $status
"""


class Engine(NamedTuple):
    """The resources of a job as SkyPilot names them, the bucket, and the folder of runs in it."""

    resources: dict[str, str | int | bool]
    bucket: str
    folder: str


def read_engine(engine: str | None, resources: str | None, storage: str | None) -> Engine | None:
    """The engine that the options state; None without one. Raises `UserError`."""
    if engine is None:
        if resources is None and storage is None:
            return None
        raise UserError(f"--{'storage' if resources is None else 'resources'} needs --engine skypilot")
    if engine != "skypilot":
        raise UserError(f"there is no engine {engine!r}", "Give --engine skypilot, or for Slurm --slurm SITE.YAML.")
    if resources is None or storage is None:
        wrong = f"--engine skypilot needs --{'resources' if resources is None else 'storage'}"
        raise UserError(wrong, "For example --resources H100:1,use_spot=true --storage s3://BUCKET/FOLDER.")
    asked: dict[str, str | int | bool] = {}
    for part in resources.split(","):
        key, is_key, value = part.partition("=")
        key, value = (key, value) if is_key else ("accelerators", part)
        if key in asked or not re.fullmatch({"accelerators": _ACCELERATOR, **_KEYS}.get(key, "(?!)"), value, re.ASCII):
            hint = f"For example H100:1,use_spot=true. Keys are {', '.join(_KEYS)}; other ones belong in the task file."
            raise UserError(f"--resources {resources}: {part!r} is wrong or repeated", hint)
        asked[key] = value == "true" if key == "use_spot" else int(value) if key == "disk_size" else value
    if (found := _STORAGE.fullmatch(storage)) is None:
        hint = "Give s3://BUCKET/FOLDER or gs://BUCKET/FOLDER; the bucket must exist."
        raise UserError(f"--storage {storage} is no folder in a bucket", hint)
    return Engine(asked, found["bucket"], found["folder"])


def launch(engine: Engine, recipes: Sequence[Path], runs: Path, trackers: Sequence[str]) -> None:
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
    name = f"comt-{re.sub('[^a-z0-9]+', '-', table.lower()).strip('-')}"
    file = runs / FOLDER / f"{name}.yaml"
    command = ["sky", "jobs", "launch", "--detach-run", str(file)]
    task = TASK.format(
        launch=shlex.join(command),
        name=name,
        resources=json.dumps(engine.resources),
        envs=json.dumps({"COMT_COMMIT": git_commit() or ""}),
        mount=MOUNT,
        bucket=engine.bucket,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        project=shlex.quote(f".[{','.join(trackers)}]" if trackers else "."),
        store=MOUNT + engine.folder,
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
    print(f"For its runs: comt pull {engine.bucket}{engine.folder}{elsewhere}")
    print("Then this command, without --engine, --resources and --storage, writes the tables and figures.")
