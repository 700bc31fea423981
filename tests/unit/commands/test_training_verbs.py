"""`comt train-lm`, `ablate` and `reproduce`: which runs they queue, submit or plan, and what follows. Nothing is
trained here, and the Slurm is a fake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from tiny_recipe import TEXT, recipe
from typer.testing import CliRunner, Result

import comt_cli.campaign.executor
import comt_cli.verbs.report
from comt_cli.app import app
from comt_cli.campaign.queue import Ending, RunOutcome, Summary, TrainingFailed
from comt_cli.errors import UserError
from comt_cli.files import write_json
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.known import shared_runs
from comt_cli.training import devices

ROWS = {"post-ln": "post-ln", "pre-ln": "pre-ln"}
IMAGES = recipe("images", {"plain": "addition"}, command="train-resnet", settings={"train": {"steps": 1}})
GATES = {f"{width}": {"name": "comt", "hidden": width} for width in (2, 8)}
WIDTHS = recipe(
    "one",
    {"pre-ln": "pre-ln", **GATES, "64": "layernorm-scaling"},
    ablations={
        "hidden-size": {"rows": ["2", "8"], "option": "hidden"},
    },
)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What is trained and written, in order; the runs are `done` as soon as they are asked for."""
    (tmp_path / "text.txt").write_text("a text")
    heard: list[tuple] = []

    def train_on(gpus, specs, runs, device, jobs) -> Summary:
        heard.append(("train", [(spec.table, spec.row, spec.seed) for spec in specs], gpus, jobs))
        for spec in specs:
            RunDirectory.of(runs, spec).create(spec)
            metrics = {"perplexity": 20.0, "test_perplexity": 21.0, "accuracy": 90.0, "device": "a test CPU"}
            write_json(RunDirectory.of(runs, spec).result_file, {"state": "done", **metrics})
        return Summary(tuple(RunOutcome.of(shared, runs, Ending.done) for shared in shared_runs(specs)))

    def write_outcome(planned, runs, results, *, overwrite=False, shown=None) -> None:
        assert {spec.id for spec in shown.specs} <= {spec.id for spec in planned.specs}
        heard.append(("write", planned.loaded.outputs(planned.scale), overwrite))

    monkeypatch.setattr(comt_cli.campaign.executor, "train_on", train_on)
    monkeypatch.setattr(comt_cli.verbs.report, "write_outcome", write_outcome)
    monkeypatch.setattr(devices, "measured_matmul_flops", lambda *_: 1e9 / 0.4)
    monkeypatch.chdir(tmp_path)
    write_recipe("one")
    return heard


def write_recipe(table: str, scale: str = "smoke", **more: object) -> None:
    path = Path("recipes/mine") / f"{table}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    own = {"baseline": "pre-ln", "seeds": [1, 2], "scales": {scale: {"description": "Small"}}}
    path.write_text(recipe(table, ROWS, **own, **more))


def write_images() -> None:
    Path("recipes/mine/images.yaml").write_text(IMAGES)


def comt(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def reproduce(*options: str) -> Result:
    return comt("reproduce", "--papers", "mine", *options)


def refused(result: Result) -> UserError:
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_status == 2
    return result.exception


def test_all_recipes_form_one_queue_and_then_each_is_written(calls) -> None:
    write_recipe("two")
    result = reproduce("--jobs", "3", "--seeds", "1", "--also", "deepnorm", "--overwrite")
    assert result.exit_code == 0, result.output
    rows = [(table, row, 1) for table in ("one", "two") for row in ("post-ln", "pre-ln", "deepnorm")]
    assert calls == [("train", rows, 1, 3), ("write", "one", True), ("write", "two", True)]
    assert len(list(Path("runs/by-id").iterdir())) == 3, "the tables share their runs"
    write_images()
    write_recipe("three", "paper")
    result = reproduce("--seeds", "1", "--also", "deepnorm", "--also", "scaling-gate")
    assert "skipped: mine/three has no scale smoke, only paper" in result.stderr
    images = [("images", row, 1) for row in ("plain", "scaling-gate")]
    assert calls[3][1] == [*images, *rows], "a row is added where its method can stand"


def test_sweeps_are_part_of_the_queue_where_they_are_asked_for(calls) -> None:
    """Twice: what follows from their trials is known when these have ended. All are alike here: the middle is taken."""
    rates = {"train.learning_rate": [5e-4, 2e-3, 8e-3]}
    sweep = {"settings": rates, "metric": "perplexity", "seeds": [101]}
    train_settings = {"steps": 1, "learning_rate": 1e-3, "test_share": 0.5}
    write_recipe("tuned", sweep=sweep, settings={**TEXT, "train": train_settings}, metric="test_perplexity")
    assert "skipped: mine/tuned is a sweep; --sweeps includes it" in reproduce("--seeds", "1").stderr
    calls.clear()
    result = reproduce("--seeds", "1", "--sweeps", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "mine/tuned: Sweep: 6 trials (3 configurations, 1 seed, 2 cells)" in result.stderr
    (_, first, *_), (_, second, *_), *written = calls
    assert [call[1] for call in written] == ["one", "tuned"]
    assert (len(first), len(second)) == (2 + 6 + 2, 2 + 6 + 2 + 2)
    row = comt("train-lm", "mine/tuned", "--seeds", "1", "--rows", "post-ln", "--device", "cpu")
    assert row.exit_code == 0, row.output
    assert {row for _, row, _ in calls[-2][1]} == {"post-ln", "pre-ln"}, "the baseline's trials too"


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("reproduce --papers mine --also gate=scaling-gate", UserError, "--also gate: its method fits none of these"),
        ("reproduce --papers mine --also scaling-gates", RecipeError, "scaling-gates"),
        ("reproduce --papers mine --scale papre", UserError, "no recipe but sweeps has a scale 'papre'"),
        ("reproduce --papers mine --track wandbb", UserError, "did you mean wandb?"),
        ("train-lm mine/one --recipe mine/two", UserError, "two recipes were given: mine/one and mine/two"),
        ("train-lm --recipe mine/one --set train.steps=1 train.seed=2", UserError, "Give every setting its own --set"),
        ("train-lm", UserError, "no recipe was given"),
        ("train-lm mine/one --rows post", UserError, "there is no row 'post'"),
        ("train-resnet mine/one", UserError, "mine/one is a recipe of comt train-lm, not of comt train-resnet"),
        ("train-lm mine/one --slurm nowhere.yaml", UserError, "nowhere.yaml"),
        ("ablate width", UserError, "no recipe has an ablation 'width'"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_trained(calls, line, kind, said) -> None:
    error = refused(comt(*line.split()))
    assert isinstance(error, kind)
    assert said in str(error)
    assert calls == []


def test_what_is_there_is_written_before_a_failed_run_is_an_error(calls, monkeypatch) -> None:
    def train_on(gpus, specs, runs, device, jobs) -> Summary:
        return Summary(tuple(RunOutcome.of(shared, runs, Ending.failed, "a defect") for shared in shared_runs(specs)))

    monkeypatch.setattr(comt_cli.campaign.executor, "train_on", train_on)
    error = reproduce().exception
    assert calls == [("write", "one", False)]
    assert isinstance(error, TrainingFailed)
    assert (error.exit_status, "4 of 4 runs failed" in error.message) == (1, True)


def test_train_lm_trains_what_is_selected_and_writes_the_whole(calls) -> None:
    arguments = ("--rows", "pre-ln", "--seeds", "1", "--also", "twin=pre-ln", "--set", "train.steps=2", "--jobs", "2")
    result = comt("train-lm", "--recipe", "mine/one", *arguments)
    assert result.exit_code == 0, result.output
    trained = [("one", "pre-ln", 1), ("one", "twin", 1)]  # what was added is selected
    assert calls == [("train", trained, 1, 2), ("write", "one@steps-2", False)]


def test_a_dry_run_of_train_lm_is_of_what_the_command_would_do(calls) -> None:
    command = ("train-lm", "--recipe", "mine/one", "--device", "cpu", "--jobs", "1")
    comt(*command, "--rows", "pre-ln")
    assert "4 runs, 2 to do" in comt(*command, "--dry-run").stdout
    planned = comt(*command, "--dry-run", "--fresh").stdout
    assert "4 runs, 4 to do" in planned
    runs = planned.partition("parameters by role")[0].splitlines()
    assert [line.split()[-1] for line in runs if line.startswith("pre-ln")] == ["retrain"] * 2
    assert len(calls) == 2
    assert comt(*command, "--rows", "pre-ln", "--fresh").stderr.count("moved aside: ") == 2


def test_a_second_call_with_nothing_left_to_do_imports_no_torch(calls, monkeypatch) -> None:
    monkeypatch.setenv("COMT_CACHE", str(Path("cache").absolute()))
    assert reproduce().exit_code == 0
    code = (
        "import sys; from comt_cli import app\n"
        "sys.argv = ['comt', 'reproduce', '--papers', 'mine']\n"
        "app.main.__globals__['app'](standalone_mode=False)\n"
        "print([name for name in ('torch', 'matplotlib', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.splitlines()[-1] == "[]"
    assert "4 of 4 runs were finished before" in done.stderr
    assert "[mine, one](smoke/mine/one.md)" in Path("runs/results/README.md").read_text()


@pytest.fixture
def widths(calls) -> list[tuple]:
    Path("recipes/mine/one.yaml").write_text(WIDTHS)
    return calls


def test_an_ablation_trains_its_rows_and_writes_the_whole_table(widths) -> None:
    Path("recipes/mine/bad.yaml").write_text("title: [\n")
    result = comt("ablate", "hidden-size", "mine", "--seeds", "1-2", "--also", "4={name: comt, hidden: 4}")
    assert result.exit_code == 0, result.output
    assert "skipped mine/bad" in result.stderr, "a broken recipe does not stand in the way"
    rows = [("one", row, seed) for seed in (1, 2) for row in ("pre-ln", "2", "8", "4")]
    assert widths == [("train", rows, 1, None), ("write", "one", False)]


TRAIN = ("train-lm", "--recipe", "mine/one", "--seeds", "1", "--slurm", "site.yaml")


@pytest.fixture
def slurm(calls, tmp_path, monkeypatch) -> FakeSlurm:
    Path("site.yaml").write_text("time: 1:00:00\npartition: gpu\n", encoding="utf-8")
    monkeypatch.setattr("comt_cli.tasks.base.Task.identify", lambda self, settings: ("asked", "c0ffee0123456789"))
    return FakeSlurm(tmp_path / "slurm", monkeypatch)


def said(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_jobs_are_submitted_once_and_followed(slurm, calls) -> None:
    first = ["job 1_0: mine/one post-ln, tiny, seed 1", "job 1_1: mine/one pre-ln, tiny, seed 1"]
    assert said(comt(*TRAIN))[:3] == [*first, "2 runs: 2 submitted"]
    (table,) = json.loads(comt("status", "mine/one", "--seeds", "1", "--json").stdout)
    logs = f"runs/slurm/{table['open'][0]['request']}"
    slurm.put("1_0", "RUNNING", "node7")
    states = [line for line in said(comt("status", "mine/one", "--seeds", "1")) if "seed 1" in line]
    assert states == [
        "  post-ln, tiny, seed 1: running (job 1_0 on node7), step 0 of 1",
        "  pre-ln, tiny, seed 1: queued (job 1_1), step 0 of 1",
    ]
    (done, queued) = (
        path.resolve() for row in ("post-ln", "pre-ln") for path in Path(f"runs/mine/one/{row}/tiny").iterdir()
    )
    write_json(done / "result.json", {"state": "done"})
    slurm.forget("1_0")
    assert said(comt(*TRAIN))[:2] == [
        "job 1_1, submitted before: mine/one pre-ln, tiny, seed 1",
        "2 runs: 1 done, 1 in the queue before",
    ]
    assert refused(comt(*TRAIN, "--fresh")).hint == "End their jobs first: scancel 1_1"
    kept = refused(comt("rm", "mine/one", "--yes"))
    wrong = f"nothing was deleted: the run {queued.name} is queued (job 1_1)"
    assert f"{wrong}\n  End the job first: scancel 1_1" in str(kept)
    with RunDirectory(queued).lock():
        slurm.forget("1_1")
        assert f"seed 1: running by process {os.getpid()} on" in comt("status", "mine/one").stdout
    (table,) = json.loads(comt("status", "mine/one", "--seeds", "1", "--json").stdout)
    assert [run["job_state"] for run in table["open"]] == [f"failed (job 1_1, see {logs}/1_1_0_log.out)"]
    assert calls == []
