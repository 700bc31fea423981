"""`comt ablate`: which recipes a name means, which rows are trained, and what `--values` adds. Nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import comt_cli.campaign.executor
from comt_cli.app import app
from comt_cli.campaign.outcomes import Summary
from comt_cli.commands.ablate import further_rows
from comt_cli.commands.planning import plan_recipe
from comt_cli.errors import UserError
from comt_cli.files import write_json
from comt_cli.runs.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("quick_figures")

RECIPE = """
title: Widths
paper: {paper}
table: {table}
command: train-lm
baseline: plain
seeds: [1]
settings:
  model: {{size: tiny}}
  data: {{corpus: "files:{folder}/*.txt", tokenizer: bytes}}
  train: {{steps: 1}}
rows:
  plain: {{method: pre-ln, in_paper: false}}
  "2": {{method: {{name: comt, hidden: 2}}, in_paper: false}}
  "8": {{method: {{name: comt, hidden: 8}}, in_paper: false}}
  "64": {{method: layernorm-scaling, in_paper: false}}
  last: {{method: {{name: comt, sites: only_last}}, in_paper: false}}
columns:
  tiny: {{}}
ablations:
  {ablations}
scales:
  smoke: {{description: Small}}
"""
WIDTHS = 'hidden-size: {rows: ["2", "8"], option: hidden}'
SITES = 'modules: {rows: ["2", last], option: sites}'
CONTEXT = 'context: {rows: [plain, "64"]}'


IMAGE_RECIPE = """
title: Ratios
paper: ours
table: images
command: train-resnet
baseline: plain
seeds: [1]
settings:
  train: {steps: 1}
rows:
  plain: {method: addition, in_paper: false}
  1/16: {method: {name: comt-sliding-window, ratio: 16}, in_paper: false}
  1/64: {method: {name: comt-sliding-window, ratio: 64}, in_paper: false}
columns:
  tiny: {}
ablations:
  window-ratio: {rows: [1/16, 1/64], option: ratio}
scales:
  smoke: {description: Small}
"""


def write_recipe(paper: str, table: str, *ablations: str) -> Path:
    path = Path("recipes") / paper / f"{table}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    said = "\n  ".join(ablations)
    path.write_text(RECIPE.format(paper=paper, table=table, folder=Path.cwd(), ablations=said))
    return path


def write_image_recipe() -> None:
    path = Path("recipes/ours/images.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(IMAGE_RECIPE)


@pytest.fixture(autouse=True)
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What every call was asked to train, as paper/table/row/seed; a run is done as soon as it is asked for."""
    (tmp_path / "text.txt").write_text("a text")
    monkeypatch.chdir(tmp_path)
    write_recipe("mine", "one", WIDTHS, SITES, CONTEXT)
    write_recipe("yours", "two", WIDTHS)
    calls: list[list[str]] = []

    def train_on(processes: int, specs: Any, runs: Path, device: str | None, jobs: int | None = None) -> Summary:
        calls.append([f"{spec.paper}/{spec.table}/{spec.row}/{spec.seed}" for spec in specs])
        for spec in specs:
            directory = RunDirectory.of(runs, spec)
            directory.create(spec)
            metric = "perplexity" if spec.command == "train-lm" else "accuracy"
            write_json(directory.result_file, {"state": "done", metric: 20.0 + spec.seed})
        return Summary(())

    monkeypatch.setattr(comt_cli.campaign.executor, "train_on", train_on)
    return calls


def ablate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ablate", *arguments])


def widths(paper: str, table: str, *rows: str, seeds: tuple[int, ...] = (1,)) -> list[str]:
    return [f"{paper}/{table}/{row}/{seed}" for seed in seeds for row in ("plain", "2", "8", *rows)]


def test_the_rows_of_the_ablation_are_trained_and_the_table_and_figure_written(trained) -> None:
    result = ablate("hidden-size", "--paper", "mine", "--seeds", "1-2")
    assert result.exit_code == 0, result.output
    assert trained == [widths("mine", "one", seeds=(1, 2))]
    folder = Path("runs/results/smoke/mine")
    written = {path.name for path in folder.iterdir()}
    assert {"one.md", "one.csv", "one-runs.csv", "one-hidden-size.png", "one-hidden-size.csv"} <= written
    assert "| last | missing |" in (folder / "one.md").read_text(), "the table is the whole recipe's"


def test_without_a_paper_every_table_that_has_it_is_made_in_one_go(trained) -> None:
    assert ablate("hidden-size").exit_code == 0
    (names,) = trained
    assert {"comt/table5", "transponder/table6"} <= {name.rsplit("/", 2)[0] for name in names}, "the shipped ones too"
    assert [name for name in names if name.startswith("mine")] == widths("mine", "one")
    assert [name for name in names if name.startswith("yours")] == widths("yours", "two")
    assert Path("runs/results/smoke/yours/two-hidden-size.png").exists()


def test_values_add_points_of_the_methods_own_types(trained) -> None:
    result = ablate("hidden-size", "--paper", "mine", "--values", "1,2,64")
    assert result.exit_code == 0, result.output
    # 2 has a row; 64 is another row's name.
    assert trained == [widths("mine", "one", "1", "hidden-64")]
    text = Path("runs/results/smoke/mine/one-hidden-size.csv").read_text()
    assert [line.split(",")[2:5:2] for line in text.splitlines()[2:]] == [
        ["1", "1"],
        ["2", "2"],
        ["8", "8"],
        ["hidden-64", "64"],
    ]
    assert "| hidden-64 |" in Path("runs/results/smoke/mine/one.md").read_text()


def write_start_recipe() -> None:
    write_image_recipe()
    path = Path("recipes/ours/images.yaml")
    before, _, after = path.read_text().partition("  1/16:")
    rows = [f'  "{row}": {{method: {{name: sas-resnet, beta_bias: {row}}}, in_paper: false}}' for row in (3, 0)]
    columns = after.partition("columns:")[2].partition("ablations:")[0]
    path.write_text(
        "\n".join([before.rstrip(), *rows])
        + f"\ncolumns:{columns}ablations:\n  gate-start: {{rows: ['3', '0'], option: beta_bias}}\n"
        "scales:\n  smoke: {description: Small}\n"
    )


def test_a_value_that_is_no_name_gets_a_row_called_by_the_option_too(trained) -> None:
    write_start_recipe()
    result = ablate("gate-start", "--paper", "ours", "--values=-5,.5,1000,-5.0")
    assert result.exit_code == 0, result.output
    added = ("beta_bias--5", "beta_bias-.5", "1000")
    assert trained == [[f"ours/images/{row}/1" for row in ("plain", "3", "0", *added)]]
    text = Path("runs/results/smoke/ours/images-gate-start.csv").read_text()
    assert [line.split(",")[4] for line in text.splitlines()[2:]] == ["-5", "0", "0.5", "3", "1000"]
    assert result.stderr == "", "equal numbers of parameters mean nothing here"


def test_a_value_that_no_row_can_be_called_by_is_named(trained) -> None:
    write_start_recipe()
    error = ablate("gate-start", "--paper", "ours", "--values", "1" * 101).exception
    assert isinstance(error, UserError)
    assert error.message.startswith(f"--values {'1' * 101}: its row can be called neither")
    also = ["--also", "beta_bias--5=sas-resnet"]
    error = ablate("gate-start", "--paper", "ours", "--values=-5", *also).exception
    assert isinstance(error, UserError)
    assert "--values -5: its row can be called neither '-5' nor 'beta_bias--5'" in error.message
    assert trained == []


def test_sizes_that_change_nothing_are_told() -> None:
    write_image_recipe()
    result = ablate("window-ratio", "--paper", "ours", "--values", "8,100000,1000000", "--dry-run")
    assert result.exit_code == 0, result.output
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("comt: "))
    assert "the rows 100000 and 1000000 have equally many parameters under tiny" in line
    assert "comt: " not in ablate("window-ratio", "--paper", "ours", "--values", "8", "--dry-run").stderr


def test_values_of_sites_are_sets_and_lists() -> None:
    loaded = plan_recipe("mine/one", "smoke").loaded
    found = further_rows(loaded, "modules", "only_last, only_qk,v_proj,o_proj+q_proj,k_proj+q_proj")
    assert {row: method["sites"] for row, method in found.items()} == {
        "only_qk": ["q_proj", "k_proj"],
        "v_proj": ["v_proj"],
        "o_proj+q_proj": ["q_proj", "o_proj"],
    }
    assert all(method["hidden"] == 2 for method in found.values())


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("hidden-size", "4,0", "--values 0: hidden of comt"),
        ("hidden-size", "abc", "--values abc: hidden of comt"),
        ("hidden-size", "1.5", "should be a whole number"),
        ("hidden-size", " , ", "there is no value"),
        ("modules", "everything", "no set of projections is called 'everything'"),
        ("modules", "encoder", "the models have no encoder"),
        ("modules", "q_proj+x_proj", "'x_proj' is not one of"),
        ("context", "3", "the rows of mine/one differ by more than one option"),
    ],
)
def test_a_wrong_value_is_named_and_nothing_is_trained(trained, name: str, values: str, said: str) -> None:
    error = ablate(name, "--paper", "mine", "--values", values).exception
    assert isinstance(error, UserError)
    assert said in str(error)
    assert trained == []


def test_an_unknown_name_lists_the_known_ones_with_their_recipes(trained) -> None:
    error = ablate("width").exception
    assert isinstance(error, UserError)
    assert "no recipe has an ablation 'width'" in error.message
    assert "mine/one, transponder/table6, yours/two);" in str(error.hint)
    error = ablate("context", "--paper", "yours").exception
    assert isinstance(error, UserError)
    assert "yours has no ablation context" in error.message
    assert trained == []


def test_a_wrong_site_file_is_an_error_before_anything_starts(trained) -> None:
    error = ablate("modules", "--paper", "mine", "--slurm", "nowhere.yaml").exception
    assert isinstance(error, UserError)
    assert "nowhere.yaml" in error.message
    assert trained == []


def test_a_broken_recipe_does_not_stand_in_the_way(trained) -> None:
    Path("recipes/yours/three.yaml").write_text("title: [\n")
    result = ablate("modules", "--paper", "mine")
    assert result.exit_code == 0, result.output
    assert "yours/three is left out" in result.stderr
    assert len(trained[0]) == 3


def test_also_adds_a_row_that_is_trained_too(trained) -> None:
    assert ablate("modules", "--paper", "mine", "--also", "mix-ln").exit_code == 0
    assert trained[0] == [f"mine/one/{row}/1" for row in ("plain", "2", "last", "mix-ln")]
