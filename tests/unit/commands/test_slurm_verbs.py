"""`--slurm` and `--track` of the verbs that train, and what `comt status` says of jobs. The Slurm here is a fake."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from typer.testing import CliRunner

import comt_cli.campaign.executor
from comt_cli.app import app
from comt_cli.commands.planning import plan_recipe
from comt_cli.errors import UserError
from comt_cli.files import read_json, write_json
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.directory import RunDirectory
from comt_cli.training.trackers import VARIABLE

CONTENT = "c0ffee0123456789"
RECIPE = """
title: One
paper: mine
table: {table}
command: train-lm
baseline: pre-ln
seeds: [1]
settings:
  model: {{size: tiny}}
  data: {{corpus: "files:{folder}/*.txt", tokenizer: bytes}}
  train: {{steps: 480}}
rows:
  post-ln: {{method: post-ln, in_paper: false}}
  pre-ln: {{method: pre-ln, in_paper: false}}
columns:
  tiny: {{}}
scales:
  smoke: {{description: Small}}
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    (tmp_path / "text.txt").write_text("a text", encoding="utf-8")
    (tmp_path / "site.yaml").write_text("time: 1:00:00\npartition: gpu\n", encoding="utf-8")
    folder = tmp_path / "recipes" / "mine"
    folder.mkdir(parents=True)
    for table in ("one", "two"):
        (folder / f"{table}.yaml").write_text(RECIPE.format(folder=tmp_path, table=table), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    return FakeSlurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data is on this machine, so that runs have their ids, and their folders, before a job begins."""
    monkeypatch.setattr(
        "comt_cli.tasks.base.Task.identify", lambda self, settings: (self.fingerprint(settings), CONTENT)
    )


def comt(*arguments: str):
    return CliRunner().invoke(app, arguments)


TRAIN = ("train-lm", "--recipe", "mine/one", "--slurm", "site.yaml")


def said(result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_train_lm_submits_and_says_how_to_follow(slurm):
    following = [
        "To follow them: comt status, with the same --set, --seeds and --also",
        "The table, of what is done: comt report mine/one --scale smoke, with the same options",
    ]
    assert said(comt(*TRAIN)) == [
        "job 1: mine/one post-ln, tiny, seed 1",
        "job 2: mine/one pre-ln, tiny, seed 1",
        "2 runs: 2 submitted",
        *following,
    ]
    assert not Path("results").exists()
    (noted,) = (path for path in Path("runs/slurm").glob("*/job.json") if read_json(path) == {"job": "1"})
    (spec,) = (spec for spec in plan_recipe("mine/one", "smoke").specs if spec.request == noted.parent.name)
    trained = spec.with_content(CONTENT)  # as the job does, once it has prepared the data
    RunDirectory.of(Path("runs"), trained).create(trained)
    write_json(RunDirectory.of(Path("runs"), trained).result_file, {"state": "done"})
    slurm.forget("1")
    assert said(comt(*TRAIN)) == [
        "job 2, submitted before: mine/one pre-ln, tiny, seed 1",
        "2 runs: 1 in the queue before, 1 done",
        *following,
    ]


def test_reproduce_submits_what_tables_share_once(slurm, prepared):
    lines = said(comt("reproduce", "--papers", "mine", "--slurm", "site.yaml", "--runs", "elsewhere"))
    assert [line.partition(":")[0] for line in lines] == [
        "job 1",
        "job 2",
        "2 runs",
        "To follow them",
        "The tables and figures, once the jobs are done",
    ]
    assert "To follow them: comt status --runs elsewhere, with the same --set, --seeds and --also" in lines
    assert Path("elsewhere/mine/two/pre-ln/tiny").is_dir()


def test_status_says_where_the_jobs_are(slurm, prepared):
    comt(*TRAIN)
    slurm.put("1", "RUNNING", "node7")
    assert said(comt("status", "mine/one")) == [
        "mine/one smoke: 2 runs: 2 unfinished",
        "           tiny",
        "  post-ln  unfinished 0/480",
        "  pre-ln   unfinished 0/480",
        "  post-ln, tiny, seed 1: running (job 1 on node7), step 0 of 480",
        "  pre-ln, tiny, seed 1: queued (job 2), step 0 of 480",
    ]
    slurm.forget("2")
    (table,) = json.loads(comt("status", "mine/one", "--json").stdout)
    log = f"runs/slurm/{table['open'][1]['request']}/2_0_log.out"
    assert [(run["job"], run["job_state"]) for run in table["open"]] == [
        ("1", "running (job 1 on node7)"),
        ("2", f"failed (job 2, see {log})"),
    ]


def test_status_tells_jobs_whose_data_is_to_be_prepared(slurm):
    comt(*TRAIN)
    slurm.put("1", "RUNNING", "node7")
    assert said(comt("status", "mine/one")) == [
        "mine/one smoke: 2 runs: 2 missing",
        "  post-ln, tiny, seed 1: running (job 1 on node7), step 0 of 480",
        "  pre-ln, tiny, seed 1: queued (job 2), step 0 of 480",
    ]
    assert not Path("runs/mine").exists()


def test_status_tells_a_run_that_someone_trains_by_its_owner_unless_its_job_is_active(slurm, prepared):
    comt(*TRAIN)
    (first,) = Path("runs/mine/one/post-ln/tiny").iterdir()
    with RunDirectory(first.resolve()).lock():
        assert "post-ln, tiny, seed 1: queued (job 1)" in comt("status", "mine/one").stdout
        slurm.forget("1")
        assert f"post-ln, tiny, seed 1: running by process {os.getpid()} on" in comt("status", "mine/one").stdout


def test_status_where_there_is_no_slurm(slurm, monkeypatch):
    comt(*TRAIN)
    monkeypatch.setenv("PATH", "")
    assert "seed 1: given to Slurm (job 1; squeue is not on this machine), step 0" in comt("status", "mine/one").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpus", "2"), "--gpus with --slurm: the site file says how many GPUs a job has"),
        (("--jobs", "2"), "--jobs with --slurm: every run is a job"),
    ],
)
def test_what_the_site_file_says_no_option_says(slurm, options, message):
    refused = comt(*TRAIN, *options).exception
    assert isinstance(refused, UserError)
    assert message in refused.message
    assert slurm.lines() == []


def test_a_wrong_site_file_is_an_error_before_anything_is_submitted_even_in_a_dry_run(slurm):
    Path("site.yaml").write_text("time: 60\npartion: gpu\n", encoding="utf-8")
    for options in ((), ("--dry-run",)):
        refused = comt(*TRAIN, *options).exception
        assert isinstance(refused, RecipeError)
        assert "line 2: partion: unknown key; did you mean partition?" in refused.message
    assert slurm.lines() == []


@pytest.mark.parametrize("verb", [TRAIN, ("reproduce", "--papers", "mine", "--slurm", "site.yaml")])
def test_a_dry_run_tells_jobs_and_no_time_of_this_machine(slurm, monkeypatch, verb):
    monkeypatch.setattr("comt_cli.campaign.estimate.Estimator", None)
    result = comt(*verb, "--dry-run", "--device", "cuda:99")
    assert result.exit_code == 0, result.output
    assert "2 to do: each a job for Slurm, but those that are in its queue." in " ".join(result.stdout.split())
    assert "time" not in result.stdout
    assert slurm.lines() == []
    assert not Path("runs").exists()


def test_fresh_leaves_queued_runs_alone(slurm):
    comt(*TRAIN)
    refused = comt(*TRAIN, "--fresh").exception
    assert isinstance(refused, UserError)
    assert refused.hint == "End their jobs first: scancel 1 2"
    slurm.forget("1")
    slurm.forget("2")
    assert "job 3: mine/one post-ln, tiny, seed 1" in said(comt(*TRAIN, "--fresh"))


def test_trackers_are_there_while_runs_are_trained_and_in_jobs(slurm, monkeypatch):
    heard = []

    def train_on(*_):
        heard.append(os.environ[VARIABLE])
        raise UserError("enough")

    monkeypatch.setattr(comt_cli.campaign.executor, "train_on", train_on)
    comt("train-lm", "--recipe", "mine/one", "--track", "tensorboard")
    comt("reproduce", "--papers", "mine", "--track", "tensorboard")
    comt("train-lm", "--recipe", "mine/one")
    assert heard == ["tensorboard", "tensorboard", ""]
    assert os.environ[VARIABLE] == ""

    import submitit

    said(comt(*TRAIN, "--track", "tensorboard"))
    (stored,) = Path("runs/slurm").glob("*/1_submitted.pkl")
    assert submitit.helpers.DelayedSubmission.load(stored).args[-1] == ["tensorboard"]


@pytest.mark.parametrize("verb", [TRAIN, ("reproduce", "--papers", "mine")])
def test_an_unknown_tracker_is_an_error_before_anything_is_started(slurm, verb):
    refused = comt(*verb, "--track", "wandbb").exception
    assert isinstance(refused, UserError)
    assert "did you mean wandb?" in str(refused)
    assert not Path("runs").exists()
