"""Where something fails or cannot be had, it is told, the rest is measured, and the exit status says so."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from comt_cli.benchmarks import decode, kernels, names, stages
from comt_cli.benchmarks.failures import Failed, NotMeasured, failed
from comt_cli.benchmarks.limits import Deadline
from comt_cli.benchmarks.shapes import LLAMAS
from comt_cli.benchmarks.stages import Stage, run_stages, stages_for
from comt_cli.benchmarks.step import run_step_benchmark
from comt_cli.benchmarks.subjects import GRAPHS, IMAGES, LANGUAGE, SUBJECTS, TRANSLATION
from comt_cli.benchmarks.variants import Variants
from comt_cli.commands.bench import everything
from comt_cli.errors import UserError
from comt_cli.kernels import choice

pytestmark = pytest.mark.usefixtures("quick_figures")

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
SPEED = Path(__file__).parents[3] / "results" / "bench" / "README.md"


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


def test_a_stage_may_be_bounded():
    """By the clock of the whole, and by its own `most`."""
    now = [0.0]
    told = []

    def asks(go_on):
        for _ in range(4):
            told.append(go_on())
            now[0] += 10
        yield "done"

    list(run_stages([Stage("kernels", "a", 5, asks, most=15)], Deadline(100, clock=lambda: now[0])))
    assert told == [True, True, False, False]


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


# ---- the whole run on a GPU, and its settings


def test_what_goals_need_comes_first():
    """By what the stages are said to take it fits into twenty minutes, and three sizes into nine, the usual ones."""
    ours = stages_for(CUDA)
    named = [stage.what for stage in ours]
    assert named[:9] == [
        "matrix products at all sizes",
        "kernels at 60m, bf16",
        *(f"training step at {size}, bf16-pure" for size in LANGUAGE.gpu_sizes),
        "image training step at resnet18, bf16-mixed",
        "decoding at 60m, bf16, batch 1, 64",
    ]
    assert sum(stage.seconds for stage in ours[:9]) <= 20 * 60
    assert sum(stage.seconds for stage in ours[:5]) <= 9 * 60
    assert len(set(named)) == len(named)
    assert {
        f"decoding at {size}, bf16, batch {which}" for size in LANGUAGE.gpu_sizes for which in ("1, 64", "4, 16")
    } <= {*named}
    assert {f"kernels at {size}, bf16" for size in LANGUAGE.gpu_sizes} <= {*named}
    assert {f"image training step at {size}, bf16-mixed" for size in IMAGES.gpu_sizes} <= {*named}


def test_how_many_minutes_all_goals_take_stands_where_minutes_are_chosen():
    """In the verb's help and on the page of speeds: up to the last part of which something is asked."""

    def minutes(device: torch.device) -> int:
        ours = stages_for(device)
        last = max(place for place, stage in enumerate(ours) if stage.kind != "kernels")
        return math.ceil(sum(stage.seconds for stage in ours[: last + 1]) / 60)

    said = f"all goals take about {minutes(CPU)} minutes on two CPU cores, and {minutes(CUDA)} on a GPU"
    for text in (everything.__doc__ or "", SPEED.read_text(encoding="utf-8")):
        assert said in " ".join(text.split())


def test_larger_networks_and_more_rounds_are_said_to_take_longer():
    """Of the sizes with the same variants: all but the first, which has another library's too."""

    def seconds(rounds: int) -> list[float]:
        at = {stage.what: stage.seconds for stage in stages_for(CUDA, rounds)}
        return [at[f"training step at {size}, bf16-pure"] for size in LANGUAGE.gpu_sizes[1:]]

    few, many = seconds(15), seconds(30)
    assert few == sorted(set(few))
    assert all(one < other < 2 * one for one, other in zip(few, many, strict=True))


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


def test_steps_on_a_gpu(monkeypatch):
    """One block compiled, enough rounds for an interval, the variants that goals need."""
    calls = []
    monkeypatch.setattr(stages, "run_step_benchmark", lambda *arguments: calls.append(arguments) or iter(()))
    ours = stages_for(CUDA)

    def go_on() -> bool:
        return True

    for subject in SUBJECTS:
        calls.clear()
        for stage in ours:
            if stage.kind == subject.page:
                list(stage.run(go_on))
        wanted = stages.WANTED_STEPS.get((subject.page, "cuda"), tuple(subject.variants))
        assert [call[0].size for call in calls] == list(subject.default_sizes("cuda"))
        assert {(call[1], *call[3:]) for call in calls} == {(subject.precision, CUDA, 15, "block", go_on)}
        in_one_piece = {f"{peer}-compiled" for peer in subject.peers}
        assert [call[2] for call in calls] == [
            tuple(
                name
                for name in wanted
                if (size == subject.gpu_sizes[0] or name not in in_one_piece)
                and (size in subject.host_bound or not name.endswith(GRAPHS))
            )
            for size in subject.default_sizes("cuda")
        ]
        assert {*subject.best_plain} <= {*wanted} <= {*subject.variants}
    assert {*decode.PLAIN} <= {*stages.WANTED_DECODING} <= {*names.DECODE_VARIANTS}


@pytest.mark.parametrize(("device", "compiled"), [("cuda", True), ("cuda", False), ("cpu", False)])
@pytest.mark.parametrize("gate", choice.NORM_WIDTHS)
def test_what_auto_compares_is_measured(device, compiled, gate):
    wanted = stages.WANTED_STEPS["step-images", device]
    assert {*choice.compared_steps(gate, compiled)} <= {*wanted} <= {*IMAGES.variants}


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
