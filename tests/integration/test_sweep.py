"""A sweep with trials through the command line: chosen, trained at what was chosen, stopped, shared, too narrow."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tiny_recipe import quick_recipe
from typer.testing import CliRunner
from worlds import comt

from comt_cli.app import app
from comt_cli.campaign import inline
from comt_cli.errors import RunInterrupted

pytestmark = pytest.mark.usefixtures("quick_figures")

TRAIN = ("train-lm", "--recipe", "tuned.yaml", "--jobs", "1", "--device", "cpu")
RESULTS = Path("runs/results/smoke/own")


@pytest.fixture
def tuned(tiny_corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The rates at both ends are far too low and far too high, on any machine."""
    monkeypatch.chdir(tmp_path)
    rates = {"settings": {"train.learning_rate": [1e-6, 3e-2, 30.0]}, "metric": "perplexity", "seeds": [101]}
    rows, train = {"plain": "pre-ln", "gated": "comt"}, {"steps": 8, "learning_rate": 0.001, "test_share": 0.5}
    more = {"metric": "test_perplexity", "seeds": [1, 2], "sweep": rates, "columns": {"whole": {}}}
    Path("tuned.yaml").write_text(quick_recipe("tuned", tiny_corpus, rows, train, **more), encoding="utf-8")
    return tmp_path


def results() -> dict[str, int]:
    """When each run ended."""
    return {path.parent.name: path.stat().st_mtime_ns for path in Path("runs/by-id").glob("*/result.json")}


def lines(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((RESULTS / name).read_text(encoding="utf-8").splitlines()))


def test_trials_choose_what_is_trained_and_a_second_call_trains_nothing(tuned):
    comt(*TRAIN)
    before = results()
    assert len(before) == 6 + 2 * 2 + 2 * 2  # trials; at the recipe's rate; at the best, which both rows share
    rates = lines("tuned-sweep-rates.csv")
    assert [(line["row"], line["own.train.learning_rate"], line["trials"]) for line in rates] == [
        ("plain", "0.03", "3"),
        ("gated", "0.03", "3"),
    ]
    for line in rates:
        assert line["recipe.train.learning_rate"] == "0.001"
        assert (line["recipe.n"], line["baseline.n"], line["own.n"]) == ("2", "2", "2")
        assert line["baseline.mean"] == line["own.mean"] != line["recipe.mean"]
    (plain, gated) = lines("tuned-sweep.csv")
    assert (plain["seeds"], plain["metric"], gated["verdict"]) == ("1 2", "test_perplexity", rates[1]["verdict"])
    for key in ("difference_percent", "interval_low", "interval_high"):
        assert rates[0][f"own.{key}"] == "", "the baseline"
        assert float(rates[1][f"own.{key}"]) == pytest.approx(float(gated[key]), abs=0.05), "that of the table"
        assert rates[1][f"recipe.{key}"] != rates[1][f"own.{key}"]
    shown = set(plain["run_ids"].split()) | set(gated["run_ids"].split())
    trials = {line["id"] for line in lines("tuned-sweep-trials.csv")}
    assert len(trials) == 6
    assert not trials & shown
    assert {line["chosen"] for line in lines("tuned-sweep-figure.csv") if line["value"] == "0.03"} == {"True"}
    for path in Path("runs/by-id").glob("*/result.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["state"] == "done":  # what is reported is of other sequences than what chose
            assert result["test_evaluation"]["tokens"] > 0
            # Of a rate that is far too large the perplexity may be no number of the type, and so be left out.
            assert result["test_loss"] != result["loss"]
    comt(*TRAIN)
    assert results() == before
    assert "own/tuned smoke: 14 runs: " in comt("status", "tuned.yaml")
    compared = comt("compare", "tuned.yaml:plain", "tuned.yaml:gated")
    assert "A: own/tuned, plain at whole; seeds 1-2; scale smoke\n" in compared, "not the trials, at the recipe's rate"


def test_a_sweep_that_was_stopped_goes_on_where_it_was(tuned, monkeypatch):
    guarded_run, taken = inline.guarded_run, []

    def stopping(shared, *others):
        if len(taken) == 4:
            raise RunInterrupted("stopped", None, 15)
        taken.append(shared.id)
        return guarded_run(shared, *others)

    monkeypatch.setattr(inline, "guarded_run", stopping)
    result = CliRunner().invoke(app, TRAIN)
    assert isinstance(result.exception, RunInterrupted)
    before = results()
    assert len(before) == 4
    monkeypatch.setattr(inline, "guarded_run", guarded_run)
    comt(*TRAIN)
    after = results()
    assert len(after) == 14
    assert before.items() <= after.items()


@pytest.mark.slow
def test_a_sweep_on_the_command_line_keeps_the_plain_table(tuned):
    said = json.loads(Path("tuned.yaml").read_text(encoding="utf-8"))
    del said["sweep"]
    Path("tuned.yaml").write_text(json.dumps(said | {"metric": "perplexity"}), encoding="utf-8")
    comt(*TRAIN)
    plain = (RESULTS / "tuned.csv").read_text(encoding="utf-8")
    comt(*TRAIN, "--sweep", "train.learning_rate=1e-6,3e-2,30.0")
    assert (RESULTS / "tuned.csv").read_text(encoding="utf-8") == plain
    assert {line["metric"] for line in lines("tuned-sweep.csv")} == {"test_perplexity"}
    assert {line["seed"] for line in lines("tuned-sweep-trials.csv")} == {"101", "102"}
