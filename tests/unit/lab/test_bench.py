"""The verbs of `comt bench`, from the command line to the files, on networks of a few hundred numbers."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from comt_cli.errors import UserError
from comt_cli.kernels import choice, measurements
from comt_cli.lab import kernels
from comt_cli.lab.runner import NotMeasured
from comt_cli.lab.subjects import GATES, KERNELS, LANGUAGE, OPS, Shape
from comt_cli.layers import attention, projection

CPU = torch.device("cpu")
HAS_KERNELS = choice.cpu_obstacle(may_build=False) is None  # whose building is left to the first test of them
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="no kernels for the CPU here: no compiler")


@pytest.fixture(autouse=True)
def _alone(small, monkeypatch, tmp_path):
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path / "own"])


@needs_kernels
def test_the_choice_reads_what_is_written(bench, rows_of):
    assert bench("kernels", "--ops", "modulate", "--dtypes", "fp32", "--sizes", "bench").exit_code == 0
    for row in rows_of("kernels"):
        if (row["gates"], row["variant"]) == ("none", "reference-compiled"):
            assert row["step_ratio_to_plain_compiled"] == row["forward_ratio_to_plain_compiled"] == "1.0"
        assert (row["step_ms_uncertainty"], row["step_ms_settled"]) == ("", "False"), "of three rounds"
    measured, damaged = choice.measurements()
    assert damaged == []
    assert len(measured) == 6, "one for each product and kind of gates, with all its forms"
    assert all(each.step_ms.keys() == {"reference", "reference-compiled", "fused"} for each in measured)
    assert {each.device for each in measured} == {choice.device_here(CPU)}


def check_all_forms(op: str, shape: Shape) -> None:
    """fp32: sums of some 20 terms, so 1e-5 is many times what rounding makes; a wrong form is off by tenths."""
    for part in KERNELS["products"][op]:
        for gates in GATES:
            built = kernels.operation(op, part, shape, gates, torch.float32, CPU)
            values = {}
            for name, form in built.forms.items():
                loss = sum(output.square().sum() for output in form())
                gradients = torch.autograd.grad(loss, built.leaves)
                values[name] = torch.stack([loss, *(gradient.square().sum() for gradient in gradients)])
            for value in values.values():
                torch.testing.assert_close(value, values["reference"], rtol=1e-4, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("op", OPS)
def test_all_forms_compute_the_same(op, monkeypatch):
    """And where rows are aligned, as on a GPU, where the sites of a product are filled up to multiples of 8: here 21 to
    24; and with heads that share keys and values."""
    bench = LANGUAGE.shapes["bench"]
    check_all_forms(op, bench)
    for module in (attention, projection):
        monkeypatch.setattr(module, "aligned", lambda width, like: -(-width // 8) * 8)
    grouped = {"width": 32, "heads": 4, "kv_heads": 2} if op == "heads" else {}
    check_all_forms(op, replace(bench, model={**bench.model, "ffn_width": 21, **grouped}))


def test_decode(bench, rows_of):
    arguments = ("decode", "--sizes", "bench", "--batch", "1,3", "--dtypes", "fp32")
    assert bench(*arguments, "--variants", "plain,transponder").exit_code == 0
    rows = rows_of("decode")
    expected = [(batch, variant) for batch in ("1", "3") for variant in ("plain", "transponder")]
    assert [(row["batch"], row["variant"]) for row in rows] == expected
    for row in rows:
        assert (row["decode_ratio_to_plain"] == "1.0") == (row["variant"] == "plain")
        speed = 1e3 * int(row["batch"]) / float(row["decode_ms"])
        assert float(row["tokens_per_second"]) == pytest.approx(speed, rel=1e-2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["step", "--precision", "bf16"],
        ["step", "--sizes", "60m,resnet18", "--variants", "window-fused"],
        ["kernels", "--tune"],  # on a CPU
        ["decode", "--batch", "1,x"],
        ["decode", "--sizes", "mt-bench"],
    ],
    ids=" ".join,
)
def test_bad_input_has_status_2(arguments, bench, tmp_path):
    result = bench(*arguments)
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_status == 2
    assert not any(tmp_path.iterdir())


def test_without_time_nothing_is_measured(bench, rows_of, tmp_path):
    """A little is enough for the first part of everything."""
    result = bench("all", "--minutes", "0")
    assert isinstance(result.exception, NotMeasured)
    assert result.output.count("left out, no time left") == 18
    assert not (tmp_path / "bench").exists()
    assert bench("all", "--minutes", "0.5").exit_code == 0
    assert len(rows_of("decode")) > 0


# ---- costs

RECIPE = """
title: What rows cost
command: train-lm
metric: test_perplexity
baseline: pre-ln
seeds: [1, 2]
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
def recipe(tmp_path) -> Path:
    path = tmp_path / "what-it-costs.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def costs_in(results: Path) -> list[dict[str, str]]:
    text = (results / "smoke/own/what-it-costs-costs.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def test_every_row_of_every_column_costs_something(bench, recipe, tmp_path):
    assert bench("costs", str(recipe)).exit_code == 0
    lines, rows = costs_in(tmp_path), ["pre-ln", "pre-ln+comt", "dhc"]
    assert [(line["row"], line["column"]) for line in lines] == [(row, at) for at in ("tiny", "longer") for row in rows]
    assert list(lines[0])[-3:] == ["scale", "network", "baseline_network"]
    for line in lines:
        is_baseline = line["row"] == "pre-ln"
        for ratio in ("flops_ratio", "saved_ratio"):
            assert (float(line[ratio]) > 1) != is_baseline, (line["row"], ratio)
        for ratio in ("step_ratio", "compiled_step_ratio"):
            assert float(line[ratio]) == 1 if is_baseline else float(line[ratio]) > 0
        assert line["step_ratio_uncertainty"] == ("0.0" if is_baseline else ""), "of three rounds"


def test_costs_beside_those_of_before(bench, recipe, tmp_path):
    """They stay where they are of this device, and the baseline is always there."""
    for row in ("dhc", "pre-ln+comt"):
        assert bench("costs", str(recipe), "--rows", row, "--columns", "tiny").exit_code == 0
    assert [line["row"] for line in costs_in(tmp_path)] == ["pre-ln", "pre-ln+comt", "dhc"]
    path = tmp_path / "smoke/own/what-it-costs-costs.csv"
    path.write_text(path.read_text(encoding="utf-8").replace(f'"{costs_in(tmp_path)[0]["device"]}"', "another one"))
    assert isinstance(bench("costs", str(recipe), "--rows", "dhc").exception, UserError)
