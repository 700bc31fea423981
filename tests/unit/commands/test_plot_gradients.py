"""`comt plot-gradients`, and `comt analyze-gates` of image classifiers, from runs to files."""

from __future__ import annotations

import pandas as pd
import pytest
from tiny_runs import image_spec, pictures, tiny_spec, train
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.commands.analyze_gates import image_numbers
from comt_cli.errors import UserError
from comt_cli.runs.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("quick_figures")


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    monkeypatch.setattr("comt_cli.analysis.images.prepare_images", lambda data: pictures())


KINDS = ("png", "pdf", "txt", "tex", "csv")


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> UserError:
    error = run(*arguments).exception
    assert isinstance(error, UserError)
    return error


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, RunDirectory]:
    """Three short runs, which nobody may change."""
    folder = tmp_path_factory.mktemp("runs")
    options = {"steps": 4, "gradient_norms_every": 2}
    methods = {"plain": "addition", "pixel": "comt-pixel", "sas": "sas-resnet"}
    return {name: train(image_spec(method=method, **options), folder) for name, method in methods.items()}


def test_one_run_and_several_are_drawn(runs, tmp_path) -> None:
    result = run("plot-gradients", runs["pixel"].path, "--results", tmp_path)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "smoke" / "comt" / "figures" / "a-row-tiny-seed1"
    assert result.output.split() == ["wrote", f"{folder / 'conv-gradients'}.{{{','.join(KINDS)}}}"]
    drawn = pd.read_csv(folder / "conv-gradients.csv")
    assert set(drawn["row"]) == {"a-row-tiny-seed1 (comt-pixel)"}
    assert {"step 1", "step 2", "step 4"} < set(drawn)
    logged = [line["norms"]["stem.convolution.weight"] for line in runs["pixel"].gradients()]
    assert drawn["greatest"][0] == pytest.approx(max(logged), rel=1e-5)

    several = runs["plain"].checkpoint_file, runs["plain"].path, runs["pixel"].path
    twice = run("plot-gradients", *several, "--out", tmp_path / "x")
    assert twice.exit_code == 0
    assert f"{runs['plain'].path} is left out: it is the same run as {runs['plain'].path}" in twice.stderr
    (drawn,) = map(pd.read_csv, (tmp_path / "x").glob("conv-gradients-of-2-runs-*.csv"))
    assert drawn["row"].unique().tolist() == ["a-row-tiny-seed1 (addition)", "a-row-tiny-seed1 (comt-pixel)"]


def test_one_comparison_is_not_drawn_over_another(runs, tmp_path) -> None:
    for others in (["plain", "pixel"], ["plain", "sas"], ["pixel", "plain"]):
        arguments = ("plot-gradients", *(runs[name].path for name in others), "--results", tmp_path)
        assert run(*arguments).exit_code == 0
    drawn = [pd.read_csv(path) for path in (tmp_path / "smoke/comt/figures").glob("*.csv")]
    shown = {frozenset(name.partition("(")[2].rstrip(")") for name in frame["row"]) for frame in drawn}
    assert len(drawn) == 2, "the third is the first in another order"
    assert shown == {frozenset({"addition", "comt-pixel"}), frozenset({"addition", "sas-resnet"})}


def test_runs_of_one_name_are_told_apart_by_their_id(runs, tmp_path) -> None:
    other = train(image_spec(steps=2, gradient_norms_every=1), tmp_path)
    assert run("plot-gradients", runs["plain"].path, other.path, "--out", tmp_path / "x").exit_code == 0
    (drawn,) = map(pd.read_csv, (tmp_path / "x").glob("conv-gradients-of-2-runs-*.csv"))
    names = [f"a-row-tiny-seed1 (addition) {each.spec().id}" for each in (runs["plain"], other)]
    assert drawn["row"].unique().tolist() == names


def test_what_logged_no_gradients_is_refused(tmp_path, runs) -> None:
    quiet = train(image_spec(steps=1), tmp_path / "runs")
    error = refused("plot-gradients", runs["plain"].path, quiet.path, "--out", tmp_path / "x")
    assert "has logged no gradient norms" in error.message
    assert "--set train.gradient_norms_every=10" in error.hint
    assert "is not a run directory" in refused("plot-gradients", tmp_path).message
    (tmp_path / "a.txt").write_text("a text " * 60)
    (tmp_path / "b.txt").write_text("another text " * 60)
    spec = tiny_spec(f"files:{tmp_path}/*.txt", data={"validation_fraction": 0.5})
    language = RunDirectory.of(tmp_path / "runs", spec)
    language.create(spec)
    assert "is a run of a language model" in refused("plot-gradients", language.path).message
    many = [image_spec(seed=seed) for seed in range(8)]
    for one in many:
        RunDirectory.of(tmp_path / "runs", one).create(one)
    assert (
        refused("plot-gradients", *(tmp_path / "runs" / one.relative_path for one in many)).message
        == "8 runs are more than one figure can show"
    )
    assert not (tmp_path / "x").exists()


def test_gates_of_images_are_drawn_as_maps_and_in_sum(runs, tmp_path) -> None:
    result = run("analyze-gates", runs["pixel"].path, "--images", "2,5", "--results", tmp_path)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "smoke" / "comt" / "figures" / "a-row-tiny-seed1"
    stems = ("gate-maps", "gate-summary")
    assert result.output.splitlines() == [f"wrote {folder / stem}.{{{','.join(KINDS)}}}" for stem in stems]
    assert pd.read_csv(folder / "gate-maps.csv")["image"].unique().tolist() == [2, 5]
    summary = pd.read_csv(folder / "gate-summary.csv")
    assert summary[["site", "layer"]].to_numpy().tolist() == [["norm1", 1], ["norm1", 2], ["norm2", 1], ["norm2", 2]]
    assert set(summary["examples"]) == {20}


def test_gates_of_connections_are_drawn_as_shares(runs, tmp_path) -> None:
    assert run("analyze-gates", runs["sas"].path, "--out", tmp_path / "x").exit_code == 0
    assert {path.name for path in (tmp_path / "x").iterdir()} == {f"residual-shares.{kind}" for kind in KINDS}
    assert (
        "has no gates that are maps over an image" in refused("analyze-gates", runs["sas"].path, "--images", 3).message
    )
    assert "has no gates to analyse: it holds method addition" in refused("analyze-gates", runs["plain"].path).message


def test_options_of_the_other_kind_of_model_are_refused(runs, tmp_path) -> None:
    for option in ("--text", "--site"):
        error = refused("analyze-gates", runs["pixel"].path, option, "conv1", "--out", tmp_path / "x")
        assert error.message.startswith(f"{option}: ")
        assert f"is an image classifier; {option} is for language models, translators" in error.message
    (tmp_path / "a.txt").write_text("a text " * 60)
    (tmp_path / "b.txt").write_text("another text " * 60)
    spec = tiny_spec(f"files:{tmp_path}/*.txt", steps=1, warmup_steps=0, data={"validation_fraction": 0.5})
    language = train(spec, tmp_path)
    assert (
        "--images is for captioners and image classifiers"
        in refused("analyze-gates", language.path, "--images", 2).message
    )
    assert "there is no image 99" in refused("analyze-gates", runs["pixel"].path, "--images", "1,99").message
    assert not (tmp_path / "x").exists()


def test_images_are_counted_or_named() -> None:
    assert image_numbers("3") == [0, 1, 2]
    assert image_numbers("3,") == [3]
    assert image_numbers("8, 3,8") == [8, 3]
    for wrong in ("a", "", "-1", "1,-2", "1.5", "3-5", "²"):
        with pytest.raises(UserError, match="a number of images"):
            image_numbers(wrong)
    for wrong in ("0", "13", "999999999", ","):
        with pytest.raises(UserError, match="1 to 12 images"):
            image_numbers(wrong)
