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
from comt_cli.campaign.skypilot import Engine, read_engine
from comt_cli.errors import UserError

ROOT = Path(__file__).parents[3]
STORAGE = "s3://my-bucket/tables/table3"
OPTIONS = ["--engine", "skypilot", "--resources", f"H100:1,use_spot=true,storage={STORAGE}"]

Check = Callable[[Any], bool]


def text(pattern: str) -> Check:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


# The keys that we use of `get_task_schema`, `get_resources_schema` and `get_storage_schema` in SkyPilot's
# sky/utils/schemas.py, and the checks of sky/task.py: names, and paths of mounts that do not end with a slash.
TASK: dict[str, Check] = {
    "name": text(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*"),
    "workdir": text(r".+"),
    "resources": lambda value: isinstance(value, dict),
    "envs": lambda value: (
        all(text(r"[a-zA-Z_][a-zA-Z0-9_]*")(name) for name in value)
        and all(isinstance(each, str) for each in value.values())
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
    "cpus": text(r"\d+\+?"),
    "memory": text(r"\d+\+?"),
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
    assert task["envs"] == {"COMT_COMMIT": "0123456789ab-dirty", "COMT_TRACK": ""}
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


def test_resources_and_storage():
    asked = "A100-80GB:8,infra=k8s/my-context,use_spot=false,cpus=8+,memory=64,disk_size=500"
    expected = {
        **{"accelerators": "A100-80GB:8", "infra": "k8s/my-context", "use_spot": False},
        **{"cpus": "8+", "memory": "64", "disk_size": 500},
    }
    assert read_engine("skypilot", f"storage=gs://b.1-x/y/z_2/,{asked}") == Engine(expected, "gs://b.1-x/y/z_2")
    assert read_engine("skypilot", f"cpus=4,storage={STORAGE}") == Engine({"cpus": "4"}, STORAGE)
    assert_fits(expected, RESOURCES)
    assert read_engine(None, None) is None


@pytest.mark.parametrize(
    ("engine", "resources", "said"),
    [
        ("slurm", "H100:1", "no engine 'slurm'\n  Give --engine skypilot, or for Slurm --slurm SITE.YAML"),
        (None, "H100:1", "--engine and --resources need each other"),
        (
            "skypilot",
            None,
            "--engine and --resources need each other\n  For example --engine skypilot --resources H100:1",
        ),
        ("skypilot", "H100:1", "names no storage"),
        ("skypilot", "H100:0", "'H100:0' is wrong or repeated"),
        ("skypilot", "H100:x", "'H100:x' is wrong or repeated"),
        ("skypilot", "H100,,cpus=1", "'' is wrong or repeated"),
        ("skypilot", "H100,A100", "'A100' is wrong or repeated"),
        ("skypilot", "H100,spot", "'spot' is wrong or repeated"),
        ("skypilot", "H100,use_spot=yes", "'use_spot=yes' is wrong or repeated"),
        ("skypilot", "H100,region=eu", "'region=eu' is wrong or repeated\n  For example --engine"),
        ("skypilot", "H100,cpus=1\n", "is wrong or repeated"),
        ("skypilot", "accelerators=H100 && rm", "is wrong or repeated"),
        ("skypilot", "H100,storage=my-bucket/x", "'storage=my-bucket/x' is wrong"),
        ("skypilot", "H100,storage=s3://my-bucket", "'storage=s3://my-bucket' is wrong"),
        ("skypilot", "H100,storage=s3://my-bucket/a/../b", "is wrong"),
        ("skypilot", "H100,storage=s3://my-bucket/a b;c", "is wrong"),
        ("skypilot", "H100,storage=ssh://host/x", "is wrong"),
    ],
)
def test_wrong_options(engine, resources, said):
    with pytest.raises(UserError) as raised:
        read_engine(engine, resources)
    assert said in str(raised.value)
    assert raised.value.exit_status == 2


def test_what_the_job_would_lack_is_refused(cloned, tmp_path, monkeypatch):
    outside = tmp_path / "outside.yaml"
    shutil.copy(ROOT / "recipes/comt/table3.yaml", outside)
    site = tmp_path / "site.yaml"
    site.write_text("time: 60\n")
    for words, said in (
        ([str(outside)], f"{outside} would not be in the job"),
        ([str(cloned / "mine/Table 3!.yaml")], "would not be in the job"),
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
    assert "not installed from a clone" in result.exception.hint
    assert not list(tmp_path.rglob("skypilot/comt-*.yaml"))


# ---- the script of a job, with a program that trains in the place of comt train-lm

TRAIN = """\
#!/usr/bin/env python3
# A run of 40 steps that saves every fifth of them; push and pull are comt's.
import json, os, pickle, runpy, sys, time, zipfile
from pathlib import Path
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.transfer import logged_bytes
from comt_cli.files import write_json
from comt_cli.tasks import Task

Task.identify = lambda self, settings: ("asked-feed", "c0ffee0123456789")
if sys.argv[1] != "train-lm":
    sys.exit(runpy.run_module("comt_cli", run_name="__main__"))

from comt_cli.verbs.plan import plan_recipe
spec = plan_recipe("table3", "smoke", None, rows="pre-ln", columns=None, seeds="1").specs[0]
run = RunDirectory.of(Path("runs"), spec)
run.create(spec)
begun = 0
if run.checkpoint_file.exists():
    with run.checkpoint_file.open("rb") as handle, run.metrics_file.open("rb+") as log:
        log.truncate(logged_bytes(handle, run.checkpoint_file)["metrics.jsonl"])
    begun = len(run.metrics())
with open(os.environ["STARTS"], "a") as starts:
    print(begun, file=starts)
for step in range(begun, 40):
    with run.metrics_file.open("a") as log:
        log.write(json.dumps({"step": step}) + "\\n")
    if step % 5 == 4:
        counters = {"metrics_bytes": run.metrics_file.stat().st_size}
        with zipfile.ZipFile(run.path / "new", "w") as archive:
            archive.writestr("a/data.pkl", pickle.dumps(counters, protocol=2))
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
