"""What follows training: figures of recipes are drawn from their runs, once; ablations when their numbers change."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from tiny_recipe import recipe

from comt_cli.analysis.model_figure import ModelFigure, Subject, model_figures
from comt_cli.errors import StorageError
from comt_cli.files import write_json
from comt_cli.runs.directory import RunDirectory
from comt_cli.tasks import Task
from comt_cli.verbs import report as outcomes
from comt_cli.verbs.plan import Planned, plan_recipe
from comt_cli.verbs.report import write_outcome, write_outcomes

pytestmark = pytest.mark.usefixtures("quick_figures")

WIDTHS = {f"{width}": {"name": "comt", "hidden": width} for width in (2, 4)}
TABLE = recipe("table7", {"plain": "pre-ln", **WIDTHS}, seeds=[4], ablations={"hidden-size": {"option": "hidden"}})
IMAGES = {
    "command": "train-resnet",
    "baseline": "base",
    "seeds": [4, 5],
    "settings": {
        "model": {"width": 8, "blocks": [1]},
        "data": {"images": "glyphs10", "size": 16},
        "train": {"steps": 2, "gradient_norms_every": 1},
    },
    "columns": {"narrow": {}, "wide": {"settings": {"model": {"width": 16}}}},
}
RUNS, RESULTS = Path("runs"), Path("results")
PICTURE = RESULTS / "smoke" / "mine" / "figure8.png"
DRAWN = ["gated", "base"]


@pytest.fixture(autouse=True)
def handed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the drawings are handed: networks or runs by row. Loading, and what takes time, is left out."""
    monkeypatch.setenv("COLUMNS", "1000")  # each sentence in a line
    (tmp_path / "recipes" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    given: list[object] = []

    def frame(figure: ModelFigure, of: Subject) -> pd.DataFrame:
        given.append(of.runs if figure.name == "conv-gradients" else of.models)
        return pd.DataFrame({"n": [len(given)]})

    monkeypatch.setattr("comt_cli.analysis.model_figure.load", lambda path, _: f"network of {path.name}")
    for kind in map(type, model_figures().values()):
        monkeypatch.setattr(kind, "frame", frame)
        monkeypatch.setattr(kind, "table", lambda _, frame: frame)
        monkeypatch.setattr(kind, "sentences", lambda *_: [])
        monkeypatch.setattr(kind, "draw", lambda *_: Figure())
    monkeypatch.setattr(Task, "identify", lambda self, settings: ("feedfeedfeedfeed", "c0ffee"))
    return given


def planned(text: str, name: str = "figure8", **selection: str) -> Planned:
    path = Path(f"recipes/mine/{name}.yaml")
    path.write_text(text)
    return plan_recipe(path, "smoke", **selection)


def figure(draw: str = "conv-gradients", **selection: str) -> Planned:
    method = "sas-resnet" if draw == "residual-shares" else "addition"
    text = recipe("figure8", {"gated": "comt-pixel", "base": method}, figure={"draw": draw}, **IMAGES)
    return planned(text, **selection)


def ended(plan: Planned, source: str = "gradients.jsonl") -> dict[str, RunDirectory]:
    """The runs of the first column and seed, by row, each with the file that it is drawn from."""
    directories = {}
    for number, spec in enumerate(plan.specs):
        if (spec.column, spec.seed) in (("narrow", 4), ("tiny", 4)):
            directory = directories[spec.row] = RunDirectory.of(RUNS, spec)
            directory.create(spec)
            write_json(directory.result_file, {"state": "done", "accuracy": 80.0, "perplexity": 20.0 + number})
            (directory.path / source).touch()
    return directories


def outcome(plan: Planned, capsys: pytest.CaptureFixture[str], **options: bool) -> str:
    """What was printed, first what is not written."""
    write_outcome(plan, RUNS, RESULTS, **options)
    printed = capsys.readouterr()
    return printed.err + printed.out


def drawn_rows() -> list[str]:
    with PICTURE.with_name("figure8-runs.csv").open() as handle:
        return [line["row"] for line in csv.DictReader(handle)]


WROTE = f"wrote {PICTURE.with_suffix('')}.{{png,"


def test_results_that_cannot_be_written_after_training_lose_no_run(monkeypatch) -> None:
    def write(*_, **__) -> None:
        raise StorageError("cannot make x: it is full")

    monkeypatch.setattr(outcomes, "write_outcome", write)
    with pytest.raises(StorageError, match="cannot make x: it is full") as refused:
        write_outcomes([figure()], RUNS, RESULTS, overwrite=False, shown=[figure()])
    again = f"comt report mine/figure8.yaml --scale smoke --runs {RUNS} --results DIR"
    assert refused.value.hint is not None
    assert refused.value.hint.endswith(again)


def test_tables_after_one_that_nobody_reads_are_written(monkeypatch) -> None:
    written = []

    def write(plan, *_, **__) -> None:
        written.append(plan)
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(outcomes, "write_outcome", write)
    monkeypatch.setattr(outcomes, "let_go", lambda _: None)
    with pytest.raises(BrokenPipeError):
        write_outcomes([figure()] * 2, RUNS, RESULTS, overwrite=False, shown=[figure()] * 2)
    assert len(written) == 2


def test_an_ablation_is_drawn_when_its_numbers_change_and_stays_where_its_table_is_kept(capsys) -> None:
    plan = planned(TABLE, "table7")
    wide = ended(plan)["4"]
    picture = RESULTS / "smoke" / "mine" / "table7-hidden-size.png"
    assert f"wrote {picture.with_suffix('')}.{{png," in outcome(plan, capsys)
    first = picture.read_bytes()
    assert str(picture) not in outcome(plan, capsys)
    write_json(wide.result_file, {"state": "done", "perplexity": 25.0})
    assert f"wrote {picture.with_suffix('')}.{{png," in outcome(plan, capsys)
    changed = picture.read_bytes()
    assert changed != first
    with picture.with_suffix(".csv").open() as handle:
        lines = [(line["row"], line["x"], line["value"]) for line in csv.DictReader(handle)]
    assert lines == [("plain", "", "20"), ("2", "2", "21"), ("4", "4", "25")]
    wide.result_file.unlink()
    assert "this table" in outcome(plan, capsys)
    assert picture.read_bytes() == changed


def test_the_first_column_and_seed_of_every_row_or_of_the_baseline_is_drawn(handed, capsys) -> None:
    directories = ended(figure())
    assert WROTE in outcome(figure(), capsys)
    assert {row: directory.path for row, directory in handed[0].items()} == {
        row: directories[row].path for row in DRAWN
    }
    assert drawn_rows() == DRAWN
    shares = figure("residual-shares")
    directories = ended(shares, "checkpoint.pt")
    outcome(shares, capsys, overwrite=True)
    assert handed[1] == {"base": f"network of {directories['base'].path.name}"}
    assert drawn_rows() == ["base"]


def test_a_figure_is_drawn_again_when_one_of_its_runs_is_another(handed, capsys) -> None:
    plan = figure()
    directories = ended(plan)
    outcome(plan, capsys)
    assert outcome(plan, capsys) == f"mine/figure8 (smoke) is drawn: {PICTURE}\n"
    later = PICTURE.stat().st_mtime + 5
    os.utime(directories["base"].gradients_file, (later, later))
    assert WROTE in outcome(plan, capsys)
    os.utime(directories["base"].gradients_file, (0, 0))
    runs_csv = PICTURE.with_name("figure8-runs.csv")
    whole = runs_csv.read_text()
    # As in a clone: the files are newer than any run, but of another run.
    for changed in (whole.replace(directories["gated"].path.name, "0" * 12), whole.rsplit("base", 1)[0]):
        runs_csv.write_text(changed)
        assert WROTE in outcome(plan, capsys)
    PICTURE.with_suffix(".pdf").unlink()
    assert WROTE in outcome(plan, capsys)
    assert len(handed) == 5
    another = pd.read_csv(runs_csv).assign(seed=2, id="0" * 12).to_csv(index=False)
    for changed in (another, f"{whole}{whole.splitlines()[-1]}\n"):
        runs_csv.write_text(changed)
        assert "is of another column or seed, or of more rows" in outcome(plan, capsys)
