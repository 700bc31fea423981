"""Where something fails or cannot be had, it is told, the rest is measured, and the exit status says so."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import get_args

import pytest
import torch
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.kernels import choice
from comt_cli.lab.bench import decode, kernels, stages
from comt_cli.lab.bench.failures import Failed, NotMeasured, failed
from comt_cli.lab.bench.limits import Deadline
from comt_cli.lab.bench.shapes import LLAMAS
from comt_cli.lab.bench.stages import Stage, run_stages, stages_for
from comt_cli.lab.bench.step import run_step_benchmark
from comt_cli.lab.bench.subjects import IMAGES, TRANSLATION
from comt_cli.lab.bench.variants import Variants
from comt_cli.lab.bench.verbs import everything
from comt_cli.training import devices, hardware

pytestmark = pytest.mark.usefixtures("quick_figures")

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


def fails(*_, **__):
    raise RuntimeError("Triton Error [CUDA]: misaligned address\n  and a long trace")


def is_told(result: Result, what: str) -> None:
    line = f"{what}: failed (RuntimeError: Triton Error [CUDA]: misaligned address)"
    assert result.exit_code == 1
    assert line in result.output.splitlines()
    assert isinstance(result.exception, NotMeasured)
    assert "1 part failed, the rest was measured" in str(result.exception)
    assert line in str(result.exception)


def test_how_a_failure_is_told():
    assert failed("x", ValueError("\n one\ntwo")) == "x: failed (ValueError: one)"
    assert failed("x", AssertionError()) == "x: failed (AssertionError)"
    assert failed("x", UserError("what is wrong", "what is right")) == "x: failed (what is wrong; what is right)"


@pytest.mark.parametrize("when", ["it is built", "it runs"])
def test_a_step_that_fails(bench, rows_of, monkeypatch, when):
    prepare = Variants.prepare

    def failing(self, variant):
        if variant == "comt-compiled" and when == "it is built":
            fails()
        prepared = prepare(self, variant)
        if variant == "comt-compiled":
            object.__setattr__(prepared, "forward", fails)
        return prepared

    monkeypatch.setattr(Variants, "prepare", failing)
    names = ["plain-compiled", "comt-compiled", "transponder-compiled"]
    result = bench("step", "--sizes", "bench", "--precision", "fp32", "--variants", ",".join(names))
    is_told(result, "bench fp32 comt-compiled")
    assert [row["variant"] for row in rows_of("step")] == ["plain-compiled", "transponder-compiled"]


def test_a_kernel_that_fails(bench, rows_of, monkeypatch):
    case = kernels.case

    def failing(op, part, shape, gates, *more):
        built = case(op, part, shape, gates, *more)
        return built if gates == "none" else type(built)(**{**vars(built), "forms": {**built.forms, "fused": fails}})

    monkeypatch.setattr(kernels, "case", failing)
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: None)
    arguments = ("--dtypes", "fp32", "--ops", "swiglu", "--gates", "none,comt-r2")
    is_told(bench("kernels", "--sizes", "bench", *arguments), "bench fp32 swiglu gate-up, comt-r2, fused")
    rows = {(row["gates"], row["variant"]) for row in rows_of("kernels")}
    assert {("none", "reference-compiled"), ("comt-r2", "reference-compiled")} <= rows
    assert ("comt-r2", "fused") not in rows


def test_a_product_that_fails(bench, rows_of, monkeypatch):
    forms = kernels.gemm.forms
    monkeypatch.setattr(
        kernels.gemm, "forms", lambda product, *more: fails() if product.what == "o" else forms(product, *more)
    )
    result = bench("kernels", "--sizes", "bench", "--dtypes", "fp32", "--gemm")
    is_told(result, "fp32 gemm n16-k16 (o), 16 rows")
    assert {row["shape"] for row in rows_of("kernels")} == {"n48-k16", "n40-k16", "n16-k20"}


def test_decoding_that_fails(bench, rows_of, monkeypatch):
    class Failing(decode.Decoder):
        def step(self, tokens_B):
            return fails() if self.model.gated else super().step(tokens_B)

    build = decode.empty_network

    def marked(settings, wiring, **dimensions):
        model = build(settings, wiring, **dimensions)
        model.gated = any("gates." in name for name, _ in model.named_parameters())
        return model

    monkeypatch.setattr(decode, "empty_network", marked)
    monkeypatch.setattr(decode, "Decoder", Failing)
    result = bench("decode", "--sizes", "bench", "--batch", "1", "--dtypes", "fp32", "--variants", "plain,comt")
    is_told(result, "bench fp32 batch 1 comt")
    assert [row["variant"] for row in rows_of("decode")] == ["plain"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_who_stops_it_stops_it(monkeypatch, stop):
    def stopped(*_):
        raise stop

    monkeypatch.setattr(Variants, "prepare", stopped)
    with pytest.raises(stop):
        list(run_step_benchmark(LLAMAS["bench"], "fp32", ["plain"], CPU, 1))


def test_a_stage_that_fails():
    def breaks(_):
        yield "one line"
        fails()

    def works(_):
        yield ["a row"]

    news = list(run_stages([Stage("step", "a", 1, breaks), Stage("decode", "b", 1, works)], Deadline(60)))
    assert [each for _, each in news if isinstance(each, Failed)] == [
        "a: failed (RuntimeError: Triton Error [CUDA]: misaligned address)"
    ]
    assert news[-1] == ("decode", ["a row"])


# ---- nothing to measure


def test_not_even_one_row_fits(bench, tmp_path, monkeypatch):
    def too_large(self, variant):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Variants, "prepare", too_large)
    result = bench("step", "--sizes", "bench", "--precision", "fp32", "--variants", "plain-compiled")
    assert result.exit_code == 1
    assert "bench fp32: failed (not even one sample fits)" in str(result.exception)
    assert "nothing was measured" in str(result.exception)
    assert not any(tmp_path.iterdir())


# ---- the whole run, and its settings


def test_how_many_minutes_all_goals_take_stands_where_minutes_are_chosen():
    """Up to the last part of which something is asked."""
    ours = stages_for(CPU)
    last = max(place for place, stage in enumerate(ours) if stage.kind != "kernels")
    minutes = math.ceil(sum(stage.seconds for stage in ours[: last + 1]) / 60)
    assert f"all goals take about {minutes} on two cores" in " ".join((everything.__doc__ or "").split())


def test_steps_end_when_time_is_up():
    """What is built by then is timed once, which is not settled; the rest is left out."""
    shape, names = TRANSLATION.shapes["mt-bench"], ["plain", "sas-eager", "grc-eager"]
    answers = iter([True, True])
    *news, rows = run_step_benchmark(shape, "fp32", names, CPU, 15, go_on=lambda: next(answers, False))
    assert "mt-bench fp32 grc-eager: left out for want of time" in news
    found = [(row["variant"], row["rounds"], row["step_ratio_to_best_plain_settled"]) for row in rows]
    assert found == [("plain", 1, False), ("sas-eager", 1, False)]
    *_, last = run_step_benchmark(shape, "fp32", names, CPU, 15, go_on=lambda: False)
    assert last == "mt-bench fp32 grc-eager: left out for want of time"


def test_a_cpu_has_a_bit_of_everything_within_the_usual_minutes():
    inside, seconds = [], 0.0
    for stage in stages_for(CPU):
        seconds += stage.seconds
        if seconds <= 540:
            inside.append(stage.kind)
    assert {*inside} == {"kernels", "step", "step-images", "decode"}


@pytest.mark.parametrize("command", [["bench", "all"], ["bench", "all", "--device", "cuda"]], ids=" ".join)
def test_on_a_gpu_another_verb_measures(command, monkeypatch):
    monkeypatch.setattr(hardware, "check_device_name", lambda _: None)
    monkeypatch.setattr(devices, "pick_device", lambda _: CUDA)
    with pytest.raises(UserError, match="comt bench gpu measures"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert "$(COMT) bench all --device cpu " in (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("gate", get_args(choice.NormGate))
def test_what_auto_compares_is_measured(gate):
    assert {*choice.compared_steps(gate, False)} <= {*stages.WANTED_IMAGE_STEPS} <= {*IMAGES.variants}


def test_decoding_runs_with_the_settings_of_generate():
    """Training's are put back. (Setting them needs no GPU.)"""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with decode.as_generating(CUDA):
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


# ---- pages from what was measured


def test_pages_anew_from_the_csv(bench, rows_of, tmp_path):
    assert (
        bench("step", "--sizes", "bench", "--precision", "fp32", "--variants", "plain-compiled,comt-compiled").exit_code
        == 0
    )
    (path,) = (tmp_path / "bench").glob("*/step.csv")
    measured = path.read_text()
    rows = rows_of("step")
    rows[1]["goal_step_ratio"] = "1.08"  # as an older version judged compiled variants
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for other in path.parent.glob("step.[mp]*"):
        other.unlink()
    result = bench("page")
    assert result.exit_code == 0, result.output
    assert path.read_text() == measured
    assert {each.name for each in path.parent.iterdir()} == {
        "step.csv",
        "step.md",
        "step.png",
        "step.pdf",
        "step.txt",
        "step.tex",
    }
    assert "goals" not in path.with_suffix(".md").read_text()


def test_no_pages_of_nothing(bench):
    result = bench("page")
    assert isinstance(result.exception, UserError)
    assert "nothing has been measured" in str(result.exception)
