"""The task file of `--engine skypilot`: what SkyPilot is asked for, and that its scripts do what they should."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.campaign import skypilot
from comt_cli.campaign.queue import TrainingFailed
from comt_cli.campaign.skypilot import read_resources
from comt_cli.errors import UserError

ROOT = Path(__file__).parents[3]
STORAGE = "s3://my-bucket/tables/table3"
OPTIONS = ["--engine", "skypilot", "--resources", f"H100:1,use_spot=true,storage={STORAGE}"]

Check = Callable[[Any], bool]


def text(pattern: str) -> Check:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


# The keys that we use of `get_task_schema`, `get_resources_schema` and `get_storage_schema` in SkyPilot's
# sky/utils/schemas.py, and the checks of sky/task.py: names, and paths of mounts that do not end with a slash. Its
# documentation takes an empty value in `envs` for one that `sky` must be given.
TASK: dict[str, Check] = {
    "name": text(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*"),
    "workdir": text(r".+"),
    "resources": lambda value: isinstance(value, dict),
    "envs": lambda value: (
        all(text(r"[a-zA-Z_][a-zA-Z0-9_]*")(name) for name in value)
        and all(isinstance(each, str) and each for each in value.values())
    ),
    "file_mounts": lambda value: isinstance(value, dict) and all(text(r"/.*[^/]")(path) for path in value),
    "setup": text(r"(?s).+"),
    "run": text(r"(?s).+"),
}
CLOUD = "aws|gcp|azure|k8s|kubernetes|lambda|runpod|nebius|slurm"
RESOURCES: dict[str, Check] = {
    "accelerators": text(r"[A-Za-z][A-Za-z0-9-]*(:\d+)?"),
    "infra": text(rf"({CLOUD})(/.+)?"),
    "use_spot": lambda value: isinstance(value, bool),
    "cpus": lambda value: re.fullmatch(r"\d+\+?", str(value)) is not None,
    "memory": lambda value: re.fullmatch(r"\d+\+?", str(value)) is not None,
    "disk_size": lambda value: isinstance(value, int) and not isinstance(value, bool),
}
STORE: dict[str, Check] = {"source": text(r"(s3|gs)://[^/]+"), "mode": text("MOUNT|COPY|MOUNT_CACHED")}


def assert_fits(value: dict[str, Any], schema: dict[str, Check]) -> None:
    assert set(value) <= set(schema)
    assert [key for key, each in value.items() if not schema[key](each)] == []


@pytest.fixture
def cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the program takes for its clone, with a recipe of its own."""
    clone = tmp_path / "clone"
    (clone / "mine").mkdir(parents=True)
    (clone / "pyproject.toml").write_text("")
    shutil.copytree(ROOT / "recipes", clone / "recipes")
    shutil.copy(ROOT / "recipes/comt/table3.yaml", clone / "mine/Table 3!.yaml")
    monkeypatch.setattr(skypilot, "__file__", str(clone / "comt_cli/campaign/skypilot.py"))
    monkeypatch.setattr(skypilot, "git_commit", lambda: "0123456789ab-dirty")
    monkeypatch.chdir(clone)
    monkeypatch.setenv("PATH", os.pathsep.join(["/usr/bin", "/bin"]))
    return clone


@pytest.fixture
def sky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `sky` on the PATH that notes its arguments."""
    noted, program = tmp_path / "noted", tmp_path / "bin/sky"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$PWD" "$@" > {noted}\nexit ${{SKY_STATUS:-0}}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return noted


def comt(monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    monkeypatch.setattr(sys, "argv", ["comt", *words])
    result = CliRunner().invoke(app, words)
    if not isinstance(result.exception, UserError | SystemExit | None):
        raise result.exception
    return result


def task_in(path: Path) -> dict[str, Any]:
    task: dict[str, Any] = YAML(typ="safe", pure=True).load(path)
    assert_fits(task, TASK)
    assert_fits(task["resources"], RESOURCES)
    for each in task["file_mounts"].values():
        assert_fits(each, STORE)
    return task


def test_the_task_gives_the_same_command(cloned, sky, monkeypatch):
    words = ["train-lm", "--recipe", "mine/Table 3!.yaml", *OPTIONS, "--runs=elsewhere", "--results", "x", "--rows"]
    result = comt(monkeypatch, *words, "pre-ln,pre-ln+comt", "--set", "train.steps=7", "--also", "a={name: comt}")
    assert result.exit_code == 0, result.output
    file = cloned / "elsewhere/skypilot/comt-table-3.yaml"
    task = task_in(file)
    assert sky.read_text().splitlines() == [
        *(str(cloned), "jobs", "launch", "--detach-run", "elsewhere/skypilot/comt-table-3.yaml", "--yes")
    ]
    assert task["resources"] == {"accelerators": "H100:1", "use_spot": True}
    assert task["file_mounts"] == {"/comt-storage": {"source": "s3://my-bucket", "mode": "MOUNT"}}
    assert task["envs"] == {"COMT_COMMIT": "0123456789ab-dirty"}
    assert task["workdir"] == "."
    (line,) = [line for line in task["run"].splitlines() if line.startswith("comt train-lm")]
    assert line == (
        "comt train-lm --recipe 'mine/Table 3!.yaml' --rows pre-ln,pre-ln+comt --set train.steps=7 "
        "--also 'a={name: comt}' || status=$?"
    )
    assert f"uv venv --python {sys.version_info.major}.{sys.version_info.minor} .venv" in task["setup"]
    assert "--constraint constraints.txt --editable .\n" in task["setup"]
    assert f"comt pull {STORAGE} --runs elsewhere" in result.output
    assert not list(cloned.glob("runs/by-id")), "nothing is trained here"
    for script in (task["setup"], task["run"]):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_without_sky_the_command_is_printed(cloned, monkeypatch):
    result = comt(monkeypatch, "train-lm", "table3", *OPTIONS, "--track", "tensorboard")
    assert result.exit_code == 0
    assert "wrote runs/skypilot/comt-table3.yaml" in result.output
    assert "To start the job: sky jobs launch --detach-run runs/skypilot/comt-table3.yaml" in result.output
    task = task_in(cloned / "runs/skypilot/comt-table3.yaml")
    assert "--editable '.[tensorboard]'" in task["setup"]
    assert task["envs"]["COMT_TRACK"] == "tensorboard"


def test_every_training_verb_has_the_engine(cloned, monkeypatch):
    for words in (
        ["ablate", "hidden-size", "comt/table5"],
        ["reproduce", "--papers", "comt"],
        ["train-resnet", "table1"],
    ):
        result = comt(monkeypatch, *words, *OPTIONS)
        assert result.exit_code == 0, result.output
        assert f"comt {words[0]} " in task_in(Path(re.search(r"wrote (\S+)", result.output)[1]))["run"]


def test_a_dry_run_writes_nothing(cloned, sky, monkeypatch):
    assert comt(monkeypatch, "train-lm", "table3", "--rows", "pre-ln", "--dry-run", *OPTIONS).exit_code == 0
    assert not Path("runs").exists()
    assert not sky.exists()


def test_a_failure_of_sky_is_told(cloned, sky, monkeypatch):
    monkeypatch.setenv("SKY_STATUS", "3")
    result = comt(monkeypatch, "train-lm", "table3", *OPTIONS)
    assert isinstance(result.exception, TrainingFailed)
    assert "sky ended with status 3" in result.exception.message
    assert "runs/skypilot/comt-table3.yaml" in result.exception.hint


def test_resources(cloned, monkeypatch):
    asked = "A100-80GB:8,infra=k8s/my-context,use_spot=false,cpus=8+,memory=64,disk_size=500"
    resources = f"storage=gs://b.1-x/y/z_2,{asked}"
    assert comt(monkeypatch, "train-lm", "table3", "--engine", "skypilot", "--resources", resources).exit_code == 0
    task = task_in(cloned / "runs/skypilot/comt-table3.yaml")
    assert task["resources"] == {
        **{"accelerators": "A100-80GB:8", "infra": "k8s/my-context", "use_spot": False},
        **{"cpus": "8+", "memory": 64, "disk_size": 500},
    }
    assert task["file_mounts"]["/comt-storage"]["source"] == "gs://b.1-x"
    assert "comt pull /comt-storage/y/z_2\n" in task["run"]


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ("H100:1", "storage must be a folder in a bucket"),
        ("H100:", "'H100:' is wrong or repeated\n  For example --engine"),
        ("H100,,cpus=1", "'' is wrong or repeated"),
        ("H100,A100", "'A100' is wrong or repeated"),
        ("H100,spot", "'spot' is wrong or repeated"),
        ("H100,cpus=1\n", "is wrong or repeated"),
        ("H100,labels={a: b}", "is wrong or repeated"),
        ("accelerators=H100 && rm", "is wrong or repeated"),
        ("H100,storage=my-bucket/x", "storage must be"),
        ("H100,storage=s3://my-bucket", "storage must be"),
        ("H100,storage=s3://my-bucket/a/../b", "storage must be"),
        ("H100,storage=s3://my-bucket/a b;c", "is wrong or repeated"),
        ("H100,storage=ssh://host/x", "storage must be"),
    ],
)
def test_wrong_resources(resources, said):
    with pytest.raises(UserError) as raised:
        read_resources(resources)
    assert said in str(raised.value)
    assert raised.value.exit_status == 2


@pytest.mark.parametrize("options", [OPTIONS[:2], OPTIONS[2:], ["--engine", "slurm", *OPTIONS[2:]]])
def test_wrong_options(cloned, monkeypatch, options):
    result = comt(monkeypatch, "train-lm", "table3", *options)
    status = result.exception.exit_status if isinstance(result.exception, UserError) else result.exit_code
    assert status == 2
    assert not Path("runs").exists()


def test_what_the_job_would_lack_is_refused(cloned, tmp_path, monkeypatch):
    outside = tmp_path / "outside.yaml"
    shutil.copy(ROOT / "recipes/comt/table3.yaml", outside)
    site = tmp_path / "site.yaml"
    site.write_text("time: 60\n")
    (tmp_path / "text.txt").write_text("A text of my own.\n")
    for words, said in (
        ([str(outside)], f"{outside} would not be in the job"),
        ([str(cloned / "mine/Table 3!.yaml")], "would not be in the job"),
        (["table3", "--set", f"data.corpus=files:{tmp_path}/*.txt"], f"{tmp_path}/*.txt would not be in the job"),
        (["table3", "--set", "data.corpus=files:../*.txt"], "../*.txt would not be in the job"),
        (["table3", "--also", "a={name:\n comt}"], "cannot hold"),
        (["table3", "--fresh"], "--engine cannot be combined with --fresh"),
        (["table3", "--slurm", str(site)], "--engine cannot be combined with"),
    ):
        result = comt(monkeypatch, "train-lm", *words, *OPTIONS)
        assert isinstance(result.exception, UserError), result.output
        assert said in result.exception.message
    monkeypatch.chdir(tmp_path)
    result = comt(monkeypatch, "train-lm", "table3", *OPTIONS)
    assert f"cd {cloned}" in result.exception.hint
    (cloned / "pyproject.toml").unlink()
    result = comt(monkeypatch, "train-lm", "table3", *OPTIONS)
    assert "sends a clone of comt" in result.exception.message
    assert not list(tmp_path.rglob("skypilot/comt-*.yaml"))


# ---- the script of a job, with a program that trains in the place of comt train-lm

TRAIN = """\
#!/usr/bin/env python3
# A run of 40 steps that saves every fifth of them; push and pull are comt's.
import json, os, runpy, sys, time
from pathlib import Path
from comt_cli.runs.directory import RunDirectory
from comt_cli.exchange.checkpoint import read_state
from comt_cli.files import write_json
from comt_cli.tasks import Task

Task.identify = lambda self, settings: ("asked-feed", "c0ffee0123456789")
if sys.argv[1] != "train-lm":
    sys.exit(runpy.run_module("comt_cli", run_name="__main__"))

import torch
from comt_cli.verbs.plan import plan_recipe
spec = plan_recipe("table3", "smoke", None, rows="pre-ln", columns=None, seeds="1").specs[0]
run = RunDirectory.of(Path("runs"), spec)
run.create(spec)
begun = 0
if run.checkpoint_file.exists():
    with run.metrics_file.open("rb+") as log:
        log.truncate(read_state(run.checkpoint_file)["progress"]["metrics_bytes"])
    begun = len(run.metrics())
with open(os.environ["STARTS"], "a") as starts:
    print(begun, file=starts)
for step in range(begun, 40):
    with run.metrics_file.open("a") as log:
        log.write(json.dumps({"step": step}) + "\\n")
    if step % 5 == 4:
        counters = {"metrics_bytes": run.metrics_file.stat().st_size}
        state = {"format": 1, "spec": {}, "id": spec.id, "model": {}, "progress": counters}
        torch.save(state, run.path / "new")
        (run.path / "new").replace(run.checkpoint_file)
    time.sleep(0.25)
write_json(run.result_file, {"state": "done", "perplexity": 1.0})
"""


def test_a_preempted_job_loses_what_was_not_pushed_and_no_more(cloned, tmp_path, monkeypatch):
    """Two machines, one after the other, with disks of their own and one bucket. The first is lost in the middle."""
    monkeypatch.setattr(skypilot, "MOUNT", str(tmp_path / "bucket"))
    monkeypatch.setattr(skypilot, "PUSH_SECONDS", 1)
    (tmp_path / "bucket").mkdir()
    comt(monkeypatch, "train-lm", "table3", "--rows", "pre-ln", *OPTIONS)
    script = task_in(cloned / "runs/skypilot/comt-table3.yaml")["run"]
    starts, store = tmp_path / "starts", tmp_path / "bucket/tables/table3"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "STARTS": str(starts), "COMT_CACHE": str(tmp_path / "cache")}

    def machine(name: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        (folder / ".venv/bin").mkdir(parents=True)
        (folder / ".venv/bin/train").write_text(TRAIN)
        (folder / ".venv/bin/comt").write_text(f'#!/bin/sh\nexec {sys.executable} .venv/bin/train "$@"\n')
        (folder / ".venv/bin/comt").chmod(0o755)
        return subprocess.Popen(["bash", "-c", script], cwd=folder, env=environment, start_new_session=True)

    first = machine("first")
    deadline = time.monotonic() + 90
    while not list(store.glob("*/*/manifest.json")):
        assert first.poll() is None, "nothing was pushed while it trained"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    shutil.rmtree(tmp_path / "first")
    pushed = max(len(path.read_text().splitlines()) for path in store.glob("*/*/metrics.jsonl"))
    assert machine("second").wait(120) == 0
    begun = [int(line) for line in starts.read_text().split()]
    assert begun[0] == 0
    assert begun[1] in range(5, pushed + 1, 5)
    (result,) = store.glob("*/*/result.json")
    lines = (result.parent / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [*range(40)]
