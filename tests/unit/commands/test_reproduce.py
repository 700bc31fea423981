"""`comt reproduce` and `comt train-lm`: which runs they queue, and what follows. Nothing is trained here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import comt_cli.campaign.executor
import comt_cli.commands.outcome
from comt_cli.app import app
from comt_cli.campaign.outcomes import Ending, RunOutcome, Summary, TrainingFailed
from comt_cli.commands.reproduce import _planned
from comt_cli.errors import UserError
from comt_cli.files import write_json
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.shared import shared_runs
from comt_cli.training import speed

pytestmark = pytest.mark.usefixtures("quick_figures")

RECIPE = """
title: One
paper: mine
table: one
command: train-lm
baseline: pre-ln
seeds: [1, 2]
settings:
  model: {{size: tiny}}
  data: {{corpus: "files:{folder}/*.txt", tokenizer: bytes}}
  train: {{steps: 1}}
rows:
  post-ln: {{method: post-ln, in_paper: false}}
  pre-ln: {{method: pre-ln, in_paper: false}}
columns:
  tiny: {{}}
scales:
  {scale}: {{description: Small}}
"""

IMAGE_RECIPE = """
title: Images
paper: mine
table: images
command: train-resnet
baseline: plain
seeds: [1]
settings:
  train: {steps: 1}
rows:
  plain: {method: addition, in_paper: false}
columns:
  tiny: {}
scales:
  smoke: {description: Small}
"""

DONE = {
    "state": "done",
    "perplexity": 20.0,
    "test_perplexity": 21.0,
    "accuracy": 90.0,
    "loss": 3.0,
    "step": 1,
    "tokens": 1,
    "parameters": 1,
    "extra_parameters": 0,
    "extra_parameters_percent": 0.0,
    "train_seconds": 1.0,
    "tokens_per_second": 1.0,
    "device": "a test CPU",
}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What is trained and written, in order; the runs are `done` as soon as they are asked for."""
    (tmp_path / "text.txt").write_text("a text")
    heard: list[tuple] = []

    def train_on(gpus, specs, runs, device, jobs) -> Summary:
        heard.append(("train", [(spec.table, spec.row, spec.seed) for spec in specs], gpus, jobs))
        for spec in specs:
            RunDirectory.of(runs, spec).create(spec)
            write_json(RunDirectory.of(runs, spec).result_file, DONE)
        return Summary(tuple(RunOutcome.of(shared, runs, Ending.done) for shared in shared_runs(specs)))

    def write_outcome(planned, runs, results, *, overwrite=False, shown=None) -> None:
        assert shown is not None
        assert {spec.id for spec in shown.specs} <= {spec.id for spec in planned.specs}
        heard.append(("write", planned.loaded.outputs(planned.scale), overwrite))

    monkeypatch.setattr(comt_cli.campaign.executor, "train_on", train_on)
    monkeypatch.setattr(comt_cli.commands.outcome, "write_outcome", write_outcome)
    monkeypatch.chdir(tmp_path)
    write_recipe("one")
    return heard


def write_recipe(table: str, scale: str = "smoke") -> Path:
    path = Path("recipes/mine") / f"{table}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RECIPE.format(folder=Path.cwd(), scale=scale).replace("table: one", f"table: {table}"))
    return path


def comt(*arguments: str):
    return CliRunner().invoke(app, arguments)


def reproduce(*options: str):
    return comt("reproduce", "--papers", "mine", *options)


def test_all_recipes_form_one_queue_and_then_each_is_written(calls) -> None:
    write_recipe("two")
    result = reproduce("--jobs", "3", "--seeds", "1", "--also", "deepnorm", "--overwrite")
    assert result.exit_code == 0, result.output
    rows = [(table, row, 1) for table in ("one", "two") for row in ("post-ln", "pre-ln", "deepnorm")]
    assert calls == [("train", rows, 1, 3), ("write", "one", True), ("write", "two", True)]
    assert len(list(Path("runs/by-id").iterdir())) == 3, "the tables share their runs"


def test_a_dry_run_is_one_plan_of_all_recipes(calls, monkeypatch) -> None:
    monkeypatch.setattr(speed, "measured_step_flops", lambda spec, device, threads: 1e9)
    write_recipe("two")
    Path("recipes/mine/images.yaml").write_text(IMAGE_RECIPE)
    result = reproduce("--dry-run", "--device", "cpu", "--jobs", "2")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:5] for line in lines[1:4]] == [
        ["mine/images", "1", "0", "0", "1"],
        ["mine/one", "4", "0", "0", "4"],
        ["mine/two", "4", "0", "4", "0"],
    ]
    assert "3 recipes, 5 different runs, 5 to do, about" in result.stdout
    copy = Path("recipes/mine/two.yaml")
    copy.write_text(copy.read_text().replace("paper: mine\ntable: two\n", ""))
    assert "\nmine/two" in reproduce("--dry-run", "--device", "cpu").stdout, "called as its file is"
    assert ", 2 at a time on" in result.stdout
    assert calls == []


def test_recipes_of_both_commands_form_one_queue(calls) -> None:
    Path("recipes/mine/images.yaml").write_text(IMAGE_RECIPE)
    result = reproduce("--seeds", "1")
    assert result.exit_code == 0, result.output
    assert [row for row in calls[0][1] if row[0] == "images"] == [("images", "plain", 1)]
    assert len(calls[0][1]) == 3
    assert [call[1] for call in calls[1:]] == ["images", "one"]


def test_sweeps_are_part_of_the_queue_where_they_are_asked_for(calls) -> None:
    """Twice: what follows from their trials is known when these have ended. All are alike here: the middle is taken."""
    sweep = "sweep: {settings: {train.learning_rate: [5e-4, 2e-3, 8e-3]}, metric: perplexity, seeds: [101]}\nrows:"
    path = write_recipe("tuned")
    text = path.read_text().replace("steps: 1", "steps: 1, learning_rate: 1e-3, test_share: 0.5")
    path.write_text(text.replace("rows:", sweep).replace("baseline:", "metric: test_perplexity\nbaseline:"))
    left_out = reproduce("--seeds", "1")
    assert "skipped: mine/tuned is a sweep, and --sweeps was not given" in left_out.stderr
    assert [call[:2] for call in calls] == [
        ("train", [("one", row, 1) for row in ("post-ln", "pre-ln")]),
        ("write", "one"),
    ]
    calls.clear()
    result = reproduce("--seeds", "1", "--sweeps", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "mine/tuned: Sweep: 6 trials of 3 points and 1 seed for 2 cells" in result.stderr
    (_, first, *_), (_, second, *_), *written = calls
    assert [call[1] for call in written] == ["one", "tuned"]
    assert len(first) == 2 + 6 + 2
    assert len(second) == len(first) + 2
    assert reproduce("--seeds", "1", "--sweeps", "--dry-run", "--device", "cpu").exit_code == 0


def test_a_row_is_added_where_its_method_can_stand(calls) -> None:
    Path("recipes/mine/images.yaml").write_text(IMAGE_RECIPE)
    result = reproduce("--seeds", "1", "--also", "deepnorm", "--also", "scaling-gate", "--also", "rezero")
    assert result.exit_code == 0, result.output
    assert [(table, row) for table, row, _ in calls[0][1]] == [
        *(("images", row) for row in ("plain", "scaling-gate", "rezero")),
        *(("one", row) for row in ("post-ln", "pre-ln", "deepnorm", "rezero")),
    ]


def test_a_row_that_can_stand_nowhere_is_an_error(calls) -> None:
    error = reproduce("--also", "gate=scaling-gate").exception
    assert isinstance(error, UserError)
    assert error.message == "--also gate: its method is for none of these recipes"
    assert isinstance(reproduce("--also", "scaling-gates").exception, RecipeError)
    assert calls == []


def test_a_recipe_without_the_scale_is_skipped_and_named(calls) -> None:
    write_recipe("two", "paper")
    result = reproduce()
    assert result.exit_code == 0, result.output
    assert "skipped: mine/two has no scale smoke, only paper" in result.stderr
    assert {table for table, _, _ in calls[0][1]} == {"one"}
    wrong = reproduce("--scale", "papre")
    assert isinstance(wrong.exception, UserError)
    assert (wrong.exception.hint, wrong.stderr) == ("did you mean paper?", "")


def test_a_broken_recipe_is_an_error_before_anything_is_trained(calls) -> None:
    path = write_recipe("two")
    path.write_text(path.read_text().replace("baseline: pre-ln", "baseline: pre"))
    assert isinstance(reproduce().exception, RecipeError)
    assert calls == []


@pytest.mark.parametrize("verb", [("reproduce", "--papers", "mine"), ("train-lm", "--recipe", "mine/one")])
def test_what_is_there_is_written_before_a_failed_run_is_an_error(calls, monkeypatch, verb) -> None:
    def train_on(gpus, specs, runs, device, jobs) -> Summary:
        return Summary(tuple(RunOutcome.of(shared, runs, Ending.failed, "a defect") for shared in shared_runs(specs)))

    monkeypatch.setattr(comt_cli.campaign.executor, "train_on", train_on)
    result = comt(*verb)
    assert calls == [("write", "one", False)]
    assert isinstance(result.exception, TrainingFailed)
    assert "4 of 4 runs failed: mine/one post-ln, tiny, seed 1, and 3 more" in result.exception.message
    assert result.exception.exit_status == 1


def test_train_lm_trains_what_is_selected_and_writes_the_whole(calls) -> None:
    arguments = ("--rows", "pre-ln", "--seeds", "1", "--also", "twin=pre-ln", "--set", "train.steps=2", "--jobs", "2")
    result = comt("train-lm", "--recipe", "mine/one", *arguments)
    assert result.exit_code == 0, result.output
    trained = [("one", "pre-ln", 1), ("one", "twin", 1)]  # what was added is selected
    assert calls == [("train", trained, 1, 2), ("write", "one@steps-2", False)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mine/one"], None),
        (["mine/one", "--recipe", "mine/one"], None),
        (["mine/one", "--recipe", "mine/two"], "mine/one and --recipe mine/two: which of them?"),
        ([], "no recipe was given"),
    ],
)
def test_the_recipe_of_a_verb_that_trains_needs_no_option(calls, arguments, said) -> None:
    result = CliRunner().invoke(app, ["train-lm", *arguments])
    if said is None:
        assert result.exit_code == 0, result.output
        assert [call[0] for call in calls] == ["train", "write"]
    else:
        assert isinstance(result.exception, UserError)
        assert (result.exception.message, result.exception.exit_status, calls) == (said, 2, [])


def test_a_dry_run_of_train_lm_is_of_what_the_command_would_do(calls, monkeypatch) -> None:
    monkeypatch.setattr(speed, "measured_step_flops", lambda spec, device, threads: 1e9)
    command = ("train-lm", "--recipe", "mine/one", "--device", "cpu", "--jobs", "1")
    comt(*command, "--rows", "pre-ln")
    assert "4 runs, 2 to do" in comt(*command, "--dry-run").stdout
    anew = comt(*command, "--dry-run", "--fresh").stdout
    assert "4 runs, 4 to do" in anew
    assert [line.split()[-1] for line in anew.splitlines() if line.startswith("pre-ln")] == ["anew", "anew"]
    assert len(calls) == 2


def test_jobs_and_gpus_together_are_refused(tmp_path, monkeypatch) -> None:
    """`train_on` itself, before it looks at any run."""
    with pytest.raises(UserError, match="--jobs 2 with --gpus 2") as refused:
        comt_cli.campaign.executor.train_on(2, [], tmp_path, "cpu", 2)
    assert refused.value.exit_status == 2
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(UserError, match="--jobs 2 under torchrun"):
        comt_cli.campaign.executor.train_on(1, [], tmp_path, "cpu", 2)


def test_a_second_call_with_nothing_left_to_do_imports_no_torch(calls, monkeypatch) -> None:
    write_recipe("two")
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
    assert "4 of 4 runs are finished already" in done.stderr
    assert Path("runs/results/smoke/mine/two.md").exists()
    assert "[mine, two](smoke/mine/two.md)" in Path("runs/results/README.md").read_text()


def test_every_experiment_of_two_papers_is_planned_and_the_demo_trains_none_of_them() -> None:
    """Scale smoke, as shipped: translators, captioners in both stages, BERTs. `make demo` stays as short as it is."""
    planned = _planned("smoke", "sas,eau-grc", None, None, sweeps=False)
    specs = [spec for table in planned for spec in table.specs]
    assert {"train-caption", "train-bert", "train-mt"} <= {spec.command for spec in specs}
    started = [spec for spec in specs if spec.start is not None]
    ids = {spec.id for spec in specs}
    assert {spec.table for spec in started} >= {"table5"}
    assert {spec.start.run.id for spec in started} <= ids, "what a run starts from is trained in the same queue"
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    demo = makefile.partition("\ndemo:")[2].partition("\n\n")[0]
    demo = demo.replace("$(TRAIN_DEMO)", "").strip() + makefile.partition("\nTRAIN_DEMO = ")[2].partition("\n")[0]
    assert re.findall(r"train-\S+ --recipe \S+|reproduce", demo) == ["train-lm --recipe table3.yaml"]
