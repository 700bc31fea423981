"""What follows training: figures of recipes are drawn from their runs, once; ablations when their numbers change."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

import comt_cli.commands.outcome
import comt_cli.commands.planning
from comt_cli.analysis.model_figure import ModelFigure, model_figures
from comt_cli.analysis.subject import Subject
from comt_cli.commands.outcome import write_outcome, write_outcomes
from comt_cli.commands.planning import Planned, plan_recipe
from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.errors import StorageError, UserError
from comt_cli.files import write_json
from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.models.llama import Llama
from comt_cli.runs.directory import RunDirectory
from comt_cli.tasks import Task

pytestmark = pytest.mark.usefixtures("quick_figures")

RECIPE = """
title: A figure
paper: mine
table: figure7
command: train-lm
baseline: {row}
seeds: [4, 5]
figure: {figure}
settings:
  model: {{size: tiny, width: 32, ffn_width: 48, layers: 2, heads: 4}}
  data: {{corpus: "files:{folder}/*.txt", tokenizer: bytes, sequence_length: 64}}
  train: {{steps: 1}}
rows:
  plain: {{method: pre-ln, in_paper: false}}
  gated: {{method: {method}, in_paper: false}}
columns:
  tiny: {{}}
scales:
  smoke: {{description: Small}}
"""
TABLE = """
title: A table
paper: mine
table: table7
command: train-lm
baseline: plain
seeds: [4]
settings:
  model: {{size: tiny}}
  data: {{corpus: "files:{folder}/*.txt", tokenizer: bytes, sequence_length: 64}}
  train: {{steps: 1}}
rows:
  plain: {{method: pre-ln, in_paper: false}}
  narrow: {{method: {{name: comt, hidden: 2}}, in_paper: false}}
  wide: {{method: {{name: comt, hidden: 4}}, in_paper: false}}
columns:
  tiny: {{}}
ablations:
  hidden-size: {{option: hidden}}
scales:
  smoke: {{description: Small}}
"""
RUNS, RESULTS = Path("runs"), Path("results")
FIGURE = RESULTS / "smoke" / "mine" / "figure7.png"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # each sentence in a line
    (tmp_path / "text.txt").write_text("a text")
    (tmp_path / "recipes" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)


def figure_recipe(draw: str, method: str = "comt", row: str = "gated") -> Planned:
    path = Path("recipes/mine/figure7.yaml")
    path.write_text(RECIPE.format(figure=draw, method=method, row=row, folder=Path.cwd()))
    return plan_recipe(path, "smoke")


def table_recipe() -> Planned:
    Path("recipes/mine/table7.yaml").write_text(TABLE.format(folder=Path.cwd()))
    return plan_recipe(Path("recipes/mine/table7.yaml"), "smoke")


def drawn_run(planned: Planned) -> RunDirectory:
    """The run directory that the figure is drawn from."""
    row = planned.loaded.recipe.baseline
    spec = next(spec for spec in planned.specs if spec.row == row)
    return RunDirectory.of(RUNS, spec)


def trained(planned: Planned) -> RunDirectory:
    """The run as training would leave it, with the weights of the start."""
    directory = drawn_run(planned)
    spec = next(spec for spec in planned.specs if RunDirectory.of(RUNS, spec).path == directory.path)
    directory.create(spec)
    model = Llama(spec.settings.model, 258, method_from(spec.method).wiring())
    initialise(model, 0)
    state = {"format": 1, "spec": spec.model_dump(mode="json"), "vocabulary": 258, "model": model.state_dict()}
    torch.save({**state, "tokenizer": ByteTokenizer().to_json()}, directory.checkpoint_file)
    write_json(directory.result_file, {"state": "done", "perplexity": 20.0, "device": "a CPU"})
    return directory


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, first what is not written."""
    printed = capsys.readouterr()
    return printed.err + printed.out


def outcome(planned: Planned, capsys: pytest.CaptureFixture[str], **options: bool) -> str:
    write_outcome(planned, RUNS, RESULTS, **options)
    return told(capsys)


@pytest.mark.parametrize(
    ("figure", "method", "columns"),
    [
        ("{draw: residual-stream}", "pre-ln", ["layer", "position", "token", "cosine"]),
        ("{draw: gate-values, text: a castle}", "comt", ["site", "layer", "position", "token"]),
        ("{draw: channel-gates, site: q_proj}", "transponder", ["layer", "position", "token", "channel"]),
    ],
)
def test_a_figure_is_drawn_from_the_first_run_of_the_baseline(figure, method, columns, capsys) -> None:
    planned = figure_recipe(figure, method)
    directory = trained(planned)
    told = outcome(planned, capsys).splitlines()
    ends = (".{png,pdf,txt,tex,csv}", "-runs.csv")
    assert told == [f"wrote {FIGURE.with_name(f'figure7{end}')}" for end in ends]
    frame = pd.read_csv(FIGURE.with_suffix(".csv"))
    caption = FIGURE.with_suffix(".txt").read_text()
    assert "LLaMA tiny (2 layers, 32 wide)" in caption
    assert "seed 4; scale smoke" in caption
    assert list(frame)[:4] == columns
    if "castle" in figure:
        assert frame["position"].nunique() == len("a castle")  # and no end of the text, which nobody wrote
    with FIGURE.with_name("figure7-runs.csv").open() as handle:
        (run,) = csv.DictReader(handle)
    assert (run["row"], run["seed"], run["device"]) == ("gated", "4", "a CPU")
    assert run["id"] == directory.path.name


def test_what_is_drawn_is_not_drawn_again_until_the_run_is_another(capsys, monkeypatch) -> None:
    planned = figure_recipe("{draw: residual-stream}", "pre-ln", "plain")
    directory = trained(planned)
    outcome(planned, capsys)
    with monkeypatch.context() as patch:
        patch.setattr("comt_cli.analysis.verbs.draw_recipe", None)
        assert outcome(planned, capsys) == f"mine/figure7 (smoke) is drawn: {FIGURE}\n"
    later = FIGURE.stat().st_mtime + 5
    os.utime(directory.checkpoint_file, (later, later))
    assert f"wrote {FIGURE.with_suffix('')}.{{png," in outcome(planned, capsys)
    os.utime(directory.checkpoint_file, (0, 0))
    assert "is drawn" in outcome(planned, capsys)
    # As in a clone: the files are newer than any checkpoint, but of another run.
    runs_csv = FIGURE.with_name("figure7-runs.csv")
    runs_csv.write_text(runs_csv.read_text().replace(directory.path.name, "0" * 12))
    assert f"wrote {FIGURE.with_suffix('')}.{{png," in outcome(planned, capsys)
    FIGURE.with_suffix(".pdf").unlink()
    assert f"wrote {FIGURE.with_suffix('')}.{{png," in outcome(planned, capsys)


def test_a_drawn_figure_is_told_without_torch(capsys) -> None:
    planned = figure_recipe("{draw: residual-stream}")
    trained(planned)
    outcome(planned, capsys)
    code = (
        "import sys; from pathlib import Path\n"
        "from comt_cli.commands.planning import plan_recipe\n"
        "from comt_cli.commands.outcome import write_outcome\n"
        "write_outcome(plan_recipe(Path('recipes/mine/figure7.yaml'), 'smoke'), Path('runs'), Path('results'))\n"
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"mine/figure7 (smoke) is drawn: {FIGURE}", "[]"]


def test_a_run_with_other_settings_does_not_take_a_figures_place(capsys) -> None:
    trained(figure_recipe("{draw: residual-stream}"))
    outcome(figure_recipe("{draw: residual-stream}"), capsys)
    before = FIGURE.read_bytes()
    changed = plan_recipe(Path("recipes/mine/figure7.yaml"), "smoke", ["model.layers=3"])
    trained(changed)
    beside = FIGURE.with_name("figure7@layers-3.png")
    assert f"wrote {beside.with_suffix('')}.{{png," in outcome(changed, capsys)
    assert "with model.layers=3" in beside.with_suffix(".txt").read_text()
    assert "is drawn" in outcome(changed, capsys)
    assert FIGURE.read_bytes() == before
    other_seed = plan_recipe(Path("recipes/mine/figure7.yaml"), "smoke", seeds="2")
    trained(other_seed)
    refusal = "is of another column or seed, or of more rows. Nothing is written: --results DIR draws"
    assert refusal in outcome(other_seed, capsys)
    assert FIGURE.read_bytes() == before
    outcome(other_seed, capsys, overwrite=True)
    assert FIGURE.read_bytes() != before


def test_tables_after_one_that_nobody_reads_are_written(monkeypatch) -> None:
    written = []

    def write(planned, *_, **__) -> None:
        written.append(planned)
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(comt_cli.commands.outcome, "write_outcome", write)
    planned = [figure_recipe("{draw: gate-values}")] * 2
    with pytest.raises(BrokenPipeError):
        write_outcomes(planned, RUNS, RESULTS)
    assert written == planned


def test_results_that_cannot_be_written_after_training_lose_no_run(monkeypatch) -> None:
    def write(*_, **__) -> None:
        raise StorageError("cannot make x: it is full")

    monkeypatch.setattr(comt_cli.commands.outcome, "write_outcome", write)
    with pytest.raises(StorageError, match="cannot make x: it is full") as refused:
        write_outcomes([figure_recipe("{draw: gate-values}")], RUNS, RESULTS)
    again = f"comt report mine/figure7.yaml --scale smoke --runs {RUNS} --results DIR writes it."
    assert refused.value.hint == f"No run is lost: with this command's other options, {again}"


def test_a_network_without_such_gates_is_an_error(capsys) -> None:
    planned = figure_recipe("{draw: gate-values}", "{name: transponder, granularity: channel}")
    trained(planned)
    with pytest.raises(UserError, match="have no values for draw: gate-values"):
        outcome(planned, capsys)
    assert not FIGURE.exists()


def test_an_ablation_is_drawn_when_its_numbers_change(capsys) -> None:
    planned = table_recipe()
    for number, spec in enumerate(planned.specs):
        directory = RunDirectory.of(RUNS, spec)
        directory.create(spec)
        write_json(directory.result_file, {"state": "done", "perplexity": 20.0 + number})
    picture = RESULTS / "smoke" / "mine" / "table7-hidden-size.png"
    assert f"wrote {picture.with_suffix('')}.{{png," in outcome(planned, capsys)
    first = picture.read_bytes()
    assert str(picture) not in outcome(planned, capsys)
    write_json(directory.result_file, {"state": "done", "perplexity": 25.0})
    assert f"wrote {picture.with_suffix('')}.{{png," in outcome(planned, capsys)
    assert picture.read_bytes() != first
    with picture.with_suffix(".csv").open() as handle:
        lines = list(csv.DictReader(handle))
    assert [(line["row"], line["x"], line["value"]) for line in lines] == [
        ("plain", "", "20"),
        ("narrow", "2", "21"),
        ("wide", "4", "25"),
    ]


def test_a_table_that_is_kept_keeps_its_figures(capsys) -> None:
    planned = table_recipe()
    for spec in planned.specs:
        directory = RunDirectory.of(RUNS, spec)
        directory.create(spec)
        write_json(directory.result_file, {"state": "done", "perplexity": 20.0})
    outcome(planned, capsys)
    picture = RESULTS / "smoke" / "mine" / "table7-hidden-size.png"
    before = picture.read_bytes()
    directory.result_file.unlink()
    assert "this table 0" in outcome(planned, capsys)
    assert picture.read_bytes() == before


IMAGE_FIGURE = """
title: A figure of image classifiers
paper: mine
table: figure8
command: train-resnet
baseline: base
seeds: [4, 5]
figure: {{draw: {draw}}}
settings:
  model: {{width: 8, blocks: [1]}}
  data: {{images: glyphs10, size: 16}}
  train: {{steps: 2, gradient_norms_every: 1}}
rows:
  gated: {{method: comt-pixel, in_paper: false}}
  base: {{method: {method}, in_paper: false}}
columns:
  narrow: {{}}
  wide: {{settings: {{model: {{width: 16}}}}}}
scales:
  smoke: {{description: Small}}
"""
IMAGES_FIGURE = FIGURE.with_name("figure8.png")
DRAWN = ["gated", "base"]


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the drawings are handed: networks or runs by row. Loading, and what takes time, is left out."""
    given: list[object] = []

    def frame(figure: ModelFigure, of: Subject) -> pd.DataFrame:
        given.append(of.runs if figure.name == "conv-gradients" else of.models)
        return pd.DataFrame({"n": [len(given)]})

    monkeypatch.setattr("comt_cli.analysis.subject.load", lambda path, _: f"network of {path.name}")
    for kind in model_figures().values():
        monkeypatch.setattr(kind, "frame", frame)
        monkeypatch.setattr(kind, "table", lambda _, frame: frame)
        monkeypatch.setattr(kind, "sentences", lambda *_: [])
        monkeypatch.setattr(kind, "draw", lambda *_: Figure())
    monkeypatch.setattr(Task, "identify", lambda self, settings: ("feedfeedfeedfeed", "c0ffee"))
    return given


def image_figure(draw: str, **selection: str) -> Planned:
    method = "sas-resnet" if draw == "residual-shares" else "addition"
    Path("recipes/mine/figure8.yaml").write_text(IMAGE_FIGURE.format(draw=draw, method=method))
    return plan_recipe(Path("recipes/mine/figure8.yaml"), "smoke", **selection)


def ended(planned: Planned, source: str) -> dict[str, RunDirectory]:
    """The runs of the first column and seed, by row, each with the file that it is drawn from."""
    directories = {}
    for spec in planned.specs:
        if (spec.column, spec.seed) == ("narrow", 4):
            directory = directories[spec.row] = RunDirectory.of(RUNS, spec)
            directory.create(spec)
            write_json(directory.result_file, {"state": "done", "accuracy": 80.0, "images": 128})
            (directory.path / source).touch()
    return directories


def drawn_runs() -> list[dict[str, str]]:
    with IMAGES_FIGURE.with_name("figure8-runs.csv").open() as handle:
        return list(csv.DictReader(handle))


def test_gradient_norms_are_drawn_from_every_row_of_the_first_column_and_seed(handed, capsys) -> None:
    planned = image_figure("conv-gradients")
    directories = ended(planned, "gradients.jsonl")
    assert f"wrote {IMAGES_FIGURE.with_suffix('')}.{{png," in outcome(planned, capsys)
    ((by_row,),) = [handed]
    assert {row: directory.path for row, directory in by_row.items()} == {row: directories[row].path for row in DRAWN}
    lines = [(line["row"], line["column"], line["seed"], line["id"], line["images"]) for line in drawn_runs()]
    assert lines == [(row, "narrow", "4", directories[row].path.name, "128") for row in DRAWN]


def test_block_gradients_are_drawn_from_the_networks_of_every_row(handed, capsys) -> None:
    planned = image_figure("block-gradients")
    directories = ended(planned, "checkpoint.pt")
    outcome(planned, capsys)
    assert handed == [{row: f"network of {directories[row].path.name}" for row in DRAWN}]


def test_residual_shares_are_drawn_from_the_baseline_alone(handed, capsys) -> None:
    planned = image_figure("residual-shares")
    directories = ended(planned, "checkpoint.pt")
    outcome(planned, capsys)
    assert handed == [{"base": f"network of {directories['base'].path.name}"}]
    assert [line["row"] for line in drawn_runs()] == ["base"]


def test_a_figure_of_several_runs_is_drawn_again_when_one_of_them_is_another(handed, capsys) -> None:
    planned = image_figure("conv-gradients")
    directories = ended(planned, "gradients.jsonl")
    outcome(planned, capsys)
    assert outcome(planned, capsys) == f"mine/figure8 (smoke) is drawn: {IMAGES_FIGURE}\n"
    later = IMAGES_FIGURE.stat().st_mtime + 5
    os.utime(directories["base"].gradients_file, (later, later))
    assert f"wrote {IMAGES_FIGURE.with_suffix('')}.{{png," in outcome(planned, capsys)
    os.utime(directories["base"].gradients_file, (0, 0))
    runs_csv = IMAGES_FIGURE.with_name("figure8-runs.csv")
    whole = runs_csv.read_text()
    for changed in (whole.replace(directories["gated"].path.name, "0" * 12), whole.rsplit("base", 1)[0]):
        runs_csv.write_text(changed)
        assert f"wrote {IMAGES_FIGURE.with_suffix('')}.{{png," in outcome(planned, capsys)
    assert len(handed) == 4


def test_a_figure_of_fewer_rows_does_not_take_the_place_of_one_of_more(handed, capsys) -> None:
    whole = image_figure("conv-gradients")
    ended(whole, "gradients.jsonl")
    outcome(image_figure("conv-gradients", rows="base"), capsys)
    assert [line["row"] for line in drawn_runs()] == ["base"]
    outcome(whole, capsys)  # more rows take the place of fewer
    assert [line["row"] for line in drawn_runs()] == DRAWN
    fewer = image_figure("conv-gradients", rows="base")
    assert "is of another column or seed, or of more rows" in outcome(fewer, capsys)
    assert f"wrote {IMAGES_FIGURE.with_suffix('')}.{{png," in outcome(fewer, capsys, overwrite=True)


def test_of_several_runs_each_that_cannot_be_drawn_is_told(handed, capsys) -> None:
    planned = image_figure("conv-gradients")
    assert outcome(planned, capsys) == (
        "mine/figure8 (smoke) is not drawn: its run (gated, narrow, seed 4) is missing; "
        "its run (base, narrow, seed 4) is missing.\n"
    )
    directories = ended(planned, "gradients.jsonl")
    command = "comt train-resnet --recipe mine/figure8 --scale smoke"
    assert outcome(planned, capsys, draw=False) == f"mine/figure8 (smoke) is not drawn yet: {command} draws it.\n"
    directories["gated"].gradients_file.unlink()
    assert "its run (gated, narrow, seed 4) has logged no gradient norms" in outcome(planned, capsys)
    shares = image_figure("residual-shares", rows="gated")
    assert outcome(shares, capsys) == "mine/figure8 (smoke) is not drawn: its row base was not selected.\n"
    assert handed == []
