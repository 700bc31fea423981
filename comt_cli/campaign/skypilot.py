"""`--engine skypilot`: a managed job of SkyPilot (https://docs.skypilot.co) that gives the same command on a rented
machine. SkyPilot is no dependency; its program `sky` starts the job.

The runs of a job are on its disk, since the mount of a bucket has no locks, no appending and no links. The job pulls
those in the bucket first, and pushes checkpoints while it trains: `pull` and `push` only write whole files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from comt_cli.campaign.queue import TrainingFailed
from comt_cli.commit import git_commit
from comt_cli.data.text.corpora.local_files import matching_files
from comt_cli.errors import UserError
from comt_cli.files import make_folder, write_text
from comt_cli.runs.plan import RunSpec, WeightsStart, with_sources
from comt_cli.training.trackers import VARIABLE, trackers_in_use

MOUNT, PUSH_SECONDS = "/comt-storage", 60
EXAMPLE = "For example --engine skypilot --resources H100:1,use_spot=true,storage=s3://BUCKET/FOLDER."
_FOLDER = r"(s3|gs)://[a-z0-9][\w.-]+(/\w[\w.+-]*)+"
_OF_THIS_MACHINE = {"--engine", "--resources", "--runs", "--results"}


def read_resources(text: str) -> dict[str, str]:
    """The values of `--resources`, by keys of SkyPilot's `resources`, and the URL `storage`. Raises `UserError`."""
    asked: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = part.rpartition("=")
        if (key := key or "accelerators") in asked or not re.fullmatch(
            r"\w+=\w([\w.:/@+-]*[\w+])?", f"{key}={value}", re.A
        ):
            raise UserError(f"--resources {text}: {part!r} is wrong or repeated", EXAMPLE)
        asked[key] = value
    if not re.fullmatch(_FOLDER, asked.get("storage", ""), re.ASCII):
        raise UserError(f"--resources {text}: storage must be a folder in a bucket for the runs", EXAMPLE)
    return asked


def _read_by(specs: Sequence[RunSpec]) -> dict[str, list[Path]]:
    """The files and folders of this machine that runs read, by what their settings name."""
    asked: set[str | None] = {start.weights for spec in specs if isinstance(start := spec.start, WeightsStart)}
    read: dict[str, list[Path]] = {}
    for data in {repr(spec.settings.data): spec.settings.data for spec in specs}.values():
        kind, _, pattern = str(getattr(data, "corpus", "")).partition(":")
        if kind in ("files", "tokens"):
            named, _, files = matching_files(f"{kind}:{pattern}", pattern, pattern.rpartition("#")[0])
            read[named] = files
        asked |= {*pattern.split(",")} if kind == "pairs" else set()
        for key in ("validation_files", "test_files"):
            asked |= {*(getattr(data, key, None) or "").split(",")}
        asked |= {getattr(data, key, None) for key in ("tokenizer_file", "weights", "folder", "glue_folder")}
    return read | {name: [Path(name)] for name in asked if name and not name.startswith(("hf:", "hub:", "package:"))}


def launch(resources: dict[str, str], recipes: Sequence[Path], specs: Sequence[RunSpec], runs: Path) -> None:
    """Write the task file of this process's command below `runs`, and start its job if there is a `sky`; else print the
    command. Raises `UserError` if the job would lack a file (nothing was started), or `sky` failed."""
    clone = Path(__file__).resolve().parents[2]
    if not (clone / "pyproject.toml").is_file() or Path.cwd().resolve() != clone:
        raise UserError(
            f"--engine skypilot sends a clone of comt, but {Path.cwd()} is not that of this comt", f"cd {clone}"
        )
    words, given = [], iter(sys.argv[1:])
    for word in given:
        if (name := word.partition("=")[0]) not in _OF_THIS_MACHINE:
            words.append(word)
        elif name == word:
            next(given)
    if "accelerators" in resources and not any(re.match("--device(=|$)", word) for word in words):  # never the CPU then
        words += ["--device", "cuda"]
    values = [word.partition("=")[2] if word.startswith("--") and "=" in word else word for word in words]
    read = {word: [Path(word)] for word in values if "/" in word and Path(word).exists()}
    read |= {os.path.relpath(path): [path] for path in recipes} | _read_by(with_sources(specs))
    for text, files in read.items():
        asked = ["git", "-C", str(clone), "check-ignore", "-z", "--stdin"]
        names = "\0".join(map(os.path.abspath, files))
        is_outside = text.startswith(("/", "~")) or any(clone not in path.resolve().parents for path in files)
        git = shutil.which("git") and subprocess.run(asked, input=names.encode(), capture_output=True, check=False)
        if is_outside or (git and git.returncode == 0):
            hint = f"Put it below {clone}, where git does not ignore it, and give the path from there."
            raise UserError(f"{text} would not be in the job", hint)
    if odd := [word for word in [*words, str(runs)] if not word.isprintable()]:
        raise UserError(f"the argument {odd[0]!r} has characters that a task file cannot hold", "Leave them out.")
    table = recipes[0].stem if len(recipes) == 1 else words[0]
    name = re.sub("[^a-z0-9]+", "-", f"comt-{table.lower()}").strip("-")
    file, trackers = runs / "skypilot" / f"{name}.yaml", ",".join(trackers_in_use())
    scheme, _, bucket, folder = resources["storage"].split("/", 3)
    command, store = ["sky", "jobs", "launch", "--detach-run", str(file)], f"{MOUNT}/{folder}"
    environment = {"COMT_COMMIT": git_commit(), VARIABLE: trackers}  # sky takes "" for a value that must be given
    machine = "\n  ".join(f"{key}: {value}" for key, value in resources.items() if key != "storage")
    task = f"""\
# {shlex.join(command)}
name: {name}
workdir: .
resources:
  {machine}
envs: {json.dumps({key: value for key, value in environment.items() if value})}
file_mounts:
  {MOUNT}: {{source: {scheme}//{bucket}, mode: MOUNT}}
setup: |
  set -e
  command -v uv > /dev/null || pip install --quiet uv
  [ -x .venv/bin/python ] || uv venv --python {sys.version_info.major}.{sys.version_info.minor} .venv
  uv pip install --quiet --constraint constraints.txt --editable {shlex.quote(f".[{trackers}]" if trackers else ".")}
run: |
  set -e
  PATH="$PWD/.venv/bin:$PATH"
  comt pull {store} || {{ sleep 5; comt pull {store}; }}
  (while sleep {PUSH_SECONDS} > /dev/null 2>&1; do  # what it prints would hold the log open after the job's end
    comt push {store} > push.log 2>&1 || tail -n 5 push.log || true
  done) &
  status=0
  {shlex.join(["comt", *words])} || status=$?
  kill $! || true
  for attempt in 1 2 3; do
    comt push {store} && pushed=0 && break || pushed=$?
    sleep 5
  done
  exit $((status ? status : pushed))
"""
    make_folder(file.parent)
    write_text(file, task)
    print(f"wrote {file}")
    if shutil.which("sky") is None:
        print(f"sky is not installed here. To start the job: {shlex.join(command)}")
    else:
        answer = [] if sys.stdin.isatty() else ["--yes"]  # on a terminal, sky shows the price and asks
        if status := subprocess.run([*command, *answer], check=False).returncode:
            raise TrainingFailed(f"sky ended with status {status}", f"Its task is {file}.")
    print(f"For its runs: comt pull {resources['storage']} --runs {shlex.quote(str(runs))}")
    print("Then this command, without --engine and --resources, writes the tables and figures.")
