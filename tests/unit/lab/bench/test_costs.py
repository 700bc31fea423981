"""`comt bench costs`, from a recipe to the file that its table reads, on networks of a few hundred numbers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch._inductor.utils import fresh_cache

from comt_cli.errors import UserError
from comt_cli.lab.bench import costs
from comt_cli.lab.bench.costs import _counting, can_compile
from comt_cli.verbs.plan import plan_recipe

RECIPE = """
title: What rows cost
command: train-lm
metric: test_perplexity
baseline: pre-ln
seeds: [1, 2]
sweep: {settings: {train.learning_rate: [1e-3, 2e-3, 4e-3]}, metric: perplexity, seeds: [3]}
settings:
  model: {size: tiny, width: 16, ffn_width: 20, layers: 2, heads: 2}
  data: {corpus: python-docs, tokenizer: sentencepiece, vocabulary: 512, sequence_length: 8}
  train: {steps: 10, batch_size: 2, learning_rate: 1e-3, test_share: 0.5}
rows:
  pre-ln: {method: pre-ln}
  pre-ln+comt: {method: comt}
  dhc: {method: hyper-connections}
columns:
  tiny: {}
  longer: {settings: {data: {sequence_length: 16}}}
scales:
  smoke: {description: Small}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "what-it-costs.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def lines_of(results: Path) -> list[dict[str, str]]:
    text = (results / "smoke/own/what-it-costs-costs.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def test_every_row_of_every_column_is_measured_once(bench, recipe, tmp_path):
    result = bench("costs", str(recipe))
    assert result.exit_code == 0, result.output
    lines = lines_of(tmp_path)
    rows = ["pre-ln", "pre-ln+comt", "dhc"]
    assert [(line["row"], line["column"]) for line in lines] == [(row, at) for at in ("tiny", "longer") for row in rows]
    assert list(lines[0])[-3:] == ["scale", "network", "baseline_network"]
    for line in lines:
        is_baseline = line["row"] == "pre-ln"
        for ratio in ("flops_ratio", "saved_ratio"):
            assert (float(line[ratio]) > 1) != is_baseline, (line["row"], ratio)
        for ratio in ("step_ratio", "compiled_step_ratio"):
            assert float(line[ratio]) == 1 if is_baseline else float(line[ratio]) > 0
        assert line["bytes_mib"] == line["bytes_ratio"] == "", "nothing was compiled"
        assert line["step_ratio_uncertainty"] == ("0.0" if is_baseline else ""), "of three rounds"
    page = (tmp_path / "smoke/own/what-it-costs-costs.md").read_text(encoding="utf-8")
    assert page.count("| dhc |") == 2


def test_what_was_measured_before_stays_and_the_baseline_is_always_there(bench, recipe, tmp_path):
    assert bench("costs", str(recipe), "--rows", "dhc", "--columns", "tiny").exit_code == 0
    assert bench("costs", str(recipe), "--rows", "pre-ln+comt", "--columns", "tiny").exit_code == 0
    assert [line["row"] for line in lines_of(tmp_path)] == ["pre-ln", "pre-ln+comt", "dhc"]
    path = tmp_path / "smoke/own/what-it-costs-costs.csv"
    here, device = lines_of(tmp_path)[0]["device"], "another one"
    path.write_text(path.read_text(encoding="utf-8").replace(f'"{here}"', device), encoding="utf-8")
    assert lines_of(tmp_path)[0]["device"] == device
    refused = bench("costs", str(recipe), "--rows", "dhc")
    assert isinstance(refused.exception, UserError)
    assert device in refused.exception.message
    assert "--overwrite" in str(refused.exception.hint)
    assert bench("costs", str(recipe), "--rows", "dhc", "--columns", "tiny", "--overwrite").exit_code == 0
    assert [line["row"] for line in lines_of(tmp_path)] == ["pre-ln", "dhc"]


def test_a_row_that_cannot_be_built_fails_alone(bench, recipe, tmp_path, monkeypatch):

    def saved(loss, parameters):
        if sum(each.numel() for each in parameters) != plain:
            raise RuntimeError("no room")
        return 1

    plain = plan_recipe(recipe, "smoke").specs[0]
    plain = costs.cost_of(plain).parameters
    monkeypatch.setattr(costs, "saved_bytes", saved)
    result = bench("costs", str(recipe), "--rows", "dhc", "--columns", "tiny")
    assert result.exit_code == 1
    assert "tiny dhc: failed (RuntimeError: no room)" in result.output
    assert [line["row"] for line in lines_of(tmp_path)] == ["pre-ln"]


def test_what_refuses_to_be_compiled_is_not():
    assert can_compile(plan_recipe("comt/table3", "smoke").specs[0])
    assert not can_compile(plan_recipe("sas/table3", "smoke").specs[0])


@pytest.fixture
def _compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one, which this folder's tests otherwise do without."""
    monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.usefixtures("_compiler")
def test_bytes_are_those_of_inputs_and_outputs_of_fused_code():
    x = torch.zeros(1000)
    with fresh_cache():
        torch._dynamo.reset()
        with _counting() as counted:
            torch.compile(lambda x: (x + 1) * 2 - x, dynamic=False)(x)
        assert counted() == 2 * 4 * 1000
        torch._dynamo.reset()
        with _counting() as counted:
            torch.compile(lambda x: (x + 1) * 2 - x, dynamic=False)(x)  # what the compiler has kept counts, too
        assert counted() == 2 * 4 * 1000
    torch._dynamo.reset()
