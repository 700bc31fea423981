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
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.campaign import skypilot
from comt_cli.campaign.queue import TrainingFailed
from comt_cli.campaign.skypilot import read_resources
from comt_cli.errors import UserError
from comt_cli.tasks import Task
from tests.shelf import DATA

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
        "--also 'a={name: comt}' --device cuda || status=$?"
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
    assert "comt pull /comt-storage/y/z_2 ||" in task["run"]


def test_a_job_with_a_gpu_does_not_fall_back_to_the_cpu(cloned, monkeypatch):
    storage = f"cpus=8,storage={STORAGE}"
    for resources, given, said in (
        (f"H100,{storage}", (), " --device cuda"),
        (f"H100,{storage}", ("--device", "cpu"), " --device cpu"),
        (storage, (), ""),
    ):
        result = comt(monkeypatch, "train-lm", "table3", *given, "--engine", "skypilot", "--resources", resources)
        assert result.exit_code == 0, result.output
        assert f"  comt train-lm table3{said} ||" in Path("runs/skypilot/comt-table3.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "3"], "a batch of 512 rows cannot be divided evenly among 3 processes"),
        (["--gpus", "4", "--jobs", "2"], "--jobs 2 and --gpus 4 cannot be combined"),
        (["--gpus", "2", "--device", "cuda:1"], "--device cuda:1 names one device"),
        (
            ["--gpus", "2", "--set", "train.compile=true", "--set", "train.cuda_graphs=true"],
            "needs one process per run",
        ),
    ],
)
def test_what_cannot_begin_is_not_rented(cloned, monkeypatch, words, said):
    result = comt(monkeypatch, "train-lm", "table3", "--set", "train.batch_size=512", *words, *OPTIONS)
    assert isinstance(result.exception, UserError), result.output
    assert (said in result.exception.message, result.exception.exit_status) == (True, 2)
    assert not Path("runs").exists()


def test_gpus_of_the_job_need_not_be_here(cloned, monkeypatch):
    words = ["--gpus", "8", "--device", "cuda", "--set", "train.batch_size=8"]
    assert comt(monkeypatch, "train-lm", "table3", *words, *OPTIONS).exit_code == 0


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
    assert not list(tmp_path.rglob("skypilot/comt-*.yaml"))
    monkeypatch.chdir(tmp_path)
    result = comt(monkeypatch, "train-lm", "table3", *OPTIONS)
    assert f"cd {cloned}" in result.exception.hint
    (cloned / "pyproject.toml").unlink()
    result = comt(monkeypatch, "train-lm", "table3", *OPTIONS)
    assert "sends a clone of comt" in result.exception.message
    assert not list(tmp_path.rglob("skypilot/comt-*.yaml"))


def test_files_that_settings_name_are_in_the_job_or_refused(cloned, tmp_path, monkeypatch):
    """Texts, tokens, tokenizers, folders of data and weights: below the clone, where git does not ignore them."""
    monkeypatch.setattr(Task, "identify", lambda self, settings: DATA)
    subprocess.run(["git", "init", "--quiet"], check=True)
    Path(".gitignore").write_text("*.bin\nprivate/\n")
    for folder in (tmp_path / "other", Path("data"), Path("private")):
        folder.mkdir()
        for name in ("train.bin", "train.txt", "tokenizer.json", "config.json", "model.safetensors"):
            (folder / name).write_text("{}")
    tokens = [
        "--set",
        "data.tokenizer=data/tokenizer.json",
        "--set",
        "data.dtype=uint16",
        "--set",
        "data.validation_fraction=0.1",
    ]

    def refused(*words: str, verb: str = "train-lm") -> str | None:
        result = comt(monkeypatch, verb, *words, *OPTIONS)
        assert isinstance(result.exception, UserError | None), result.output
        assert result.exception is None or "would not be in the job\n  Put it below" in str(result.exception)
        return None if result.exception is None else result.exception.message.removesuffix(" would not be in the job")

    weights = Path("recipes/comt/table3.yaml").read_text() + "\nstart: {weights: %s, added: paper}\n"
    for name in ("data", "private", f"{tmp_path}/other", "../other"):
        is_sent = name == "data"
        for setting, path in (
            ("data.corpus=files:{}", f"{name}/*.txt"),
            ("data.tokenizer={}", f"{name}/tokenizer.json"),
            ("data.tokenizer={}", f"{name}/"),
        ):
            asked = ["--set", setting.format(path), "--set", "data.vocabulary=2048"]
            assert refused("table3", *asked) == (None if is_sent else path)
        assert refused("table3", *tokens, "--set", f"data.corpus=tokens:{name}/*.bin") == f"{name}/*.bin", (
            "git ignores it"
        )
        assert refused("table1", "--scale", "paper", "--set", f"data.folder={name}", verb="train-resnet") == (
            None if is_sent else name
        )
        Path("mine/started.yaml").write_text(weights % name)
        assert refused("mine/started.yaml") == (None if is_sent else name)
    Path("private/mine.yaml").write_text(Path("recipes/comt/table3.yaml").read_text())
    assert refused("private/mine.yaml") == "private/mine.yaml"


def test_all_files_of_pairs_are_looked_at():
    data = SimpleNamespace(corpus="pairs:a.en,a.de", validation_files="v.en,v.de", test_files=None)
    spec = SimpleNamespace(start=None, settings=SimpleNamespace(data=data))
    assert {*skypilot._read_by([spec])} == {"a.en", "a.de", "v.en", "v.de"}


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
        counters = {"step": step, "metrics_bytes": run.metrics_file.stat().st_size}
        state = {"format": 1, "spec": {}, "id": spec.id, "model": {}, "progress": counters}
        torch.save(state, run.path / "new")
        (run.path / "new").replace(run.checkpoint_file)
    while step == 24 and not begun:
        time.sleep(1)  # the first machine is lost here at the latest
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
    while not any(path.stat().st_size for path in store.glob("*/*/manifest.json")):
        assert first.poll() is None, "nothing was pushed while it trained"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    shutil.rmtree(tmp_path / "first")
    manifests = [path for path in store.glob("*/*/manifest.json") if path.stat().st_size]
    whole = [path.with_name("metrics.jsonl") for path in manifests]
    pushed = max(len(path.read_text().splitlines()) for path in whole)
    assert 5 <= pushed <= 25
    assert machine("second").wait(120) == 0
    assert [int(line) for line in starts.read_text().split()] == [0, pushed]
    (result,) = store.glob("*/*/result.json")
    lines = (result.parent / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [*range(40)]


@pytest.mark.parametrize(("trained", "fails", "status"), [(0, 2, 0), (0, 3, 5), (7, 1, 7), (7, 3, 7)])
def test_pushes_that_fail_are_in_the_log_and_given_again(cloned, tmp_path, monkeypatch, trained, fails, status):
    monkeypatch.setattr(skypilot, "PUSH_SECONDS", 1)
    comt(monkeypatch, "train-lm", "table3", *OPTIONS)
    script = task_in(cloned / "runs/skypilot/comt-table3.yaml")["run"].replace("sleep 5", "sleep 0")
    programs = tmp_path / "machine/.venv/bin"
    programs.mkdir(parents=True)
    (programs / "comt").write_text(f"""#!/bin/sh
case $1 in
  push) echo "no access to the bucket" >&2
        [ /dev/fd/1 -ef push.log ] && echo p >> early && exit 1
        echo p >> last; [ $(wc -l < last) -gt {fails} ] || exit 5;;
  train-lm) touch early
        for turn in $(seq 600); do [ $(wc -l < early) -ge 2 ] && break; sleep 0.1; done; exit {trained};;
esac
""")
    (programs / "comt").chmod(0o755)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path / "machine", capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "no access to the bucket" in done.stdout, "of a push during training"
    assert done.stderr.count("no access to the bucket") == min(fails + 1, 3)


def test_the_log_of_a_job_ends_with_it(cloned, tmp_path, monkeypatch):
    monkeypatch.setattr(skypilot, "PUSH_SECONDS", 9)
    comt(monkeypatch, "train-lm", "table3", *OPTIONS)
    script = task_in(cloned / "runs/skypilot/comt-table3.yaml")["run"]
    program = tmp_path / "machine/.venv/bin/comt"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n[ $1 != pull ] || [ -e pulled ] || { touch pulled; exit 1; }\n")
    program.chmod(0o755)
    script = script.replace("sleep 5", "sleep 0")  # between two pulls
    machine = tmp_path / "machine"  # capturing waits for the end of the output
    subprocess.run(["bash", "-c", script], cwd=machine, timeout=7, capture_output=True, check=True)
