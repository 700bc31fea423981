"""The verbs of `comt bench`, from the command line to the files, on networks of a few hundred numbers."""

from __future__ import annotations

import csv
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from comt_cli.errors import RunInterrupted, UserError
from comt_cli.kernels import choice, measurements
from comt_cli.lab.bench import decode, gpu, kernels, runner
from comt_cli.lab.bench.decode import Uncached, ours, theirs
from comt_cli.lab.bench.peers import BEGIN, END, Marian
from comt_cli.lab.bench.record import pages
from comt_cli.lab.bench.runner import Deadline, NotMeasured, Turns
from comt_cli.lab.bench.stages import Stage, reach, run_stages
from comt_cli.lab.bench.tables import GATES, KERNELS, LANGUAGE, OPS, TRANSLATION, Shape
from comt_cli.layers import attention, projection
from comt_cli.models.build import materialise, model_of
from comt_cli.training.processes import StopSignal

pytestmark = pytest.mark.usefixtures("quick_figures")

CPU = torch.device("cpu")
HAS_KERNELS = choice.cpu_obstacle(may_build=False) is None  # whose building is left to the first test of them
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="no kernels for the CPU here: no compiler")


def has_its_columns(rows: list[dict[str, str]], name: str) -> bool:
    """A misspelt column would show as empty everywhere: the rows have what their page asks for."""
    page = pages()[name]
    asked = {how.split()[0] for how in page.columns.values()} | {*page.key, *page.sort, *page.order}
    asked |= {each for goal in page.goals for each in (goal.value, goal.goal)}
    asked |= {f"{goal.timed}_{end}" for goal in page.goals if goal.timed for end in ("spread", "uncertainty")}
    return {each for each in asked if "nondeterministic" not in each} <= {*rows[0]}  # CPU steps are deterministic


def test_kernels_and_products(bench, rows_of):
    arguments = ("kernels", "--sizes", "bench", "--dtypes", "fp32")
    assert bench(*arguments, "--ops", "heads,projection", "--gates", "none,transponder-r8").exit_code == 0
    assert bench(*arguments, "--gemm").exit_code == 0
    before = rows_of("kernels")
    assert has_its_columns(before, "kernels")
    assert {row["op"] for row in before} == {"heads", "projection", "gemm"}
    forms = {row["variant"] for row in before if row["op"] == "heads"}
    assert forms == {"reference", "reference-compiled", *(["fused"] if HAS_KERNELS else [])}
    for row in before:
        if (row["gates"], row["variant"]) in (("none", "reference-compiled"), ("none", "plain")):
            assert row["step_ratio_to_plain_compiled"] == row["forward_ratio_to_plain_compiled"] == "1.0"
        assert (row["step_ms_uncertainty"], row["step_ms_settled"]) == ("", "False"), "of three rounds"
    lesser = bench(*arguments, "--ops", "heads", "--gates", "none")
    assert "not written, since kernels.csv" in lesser.output
    assert rows_of("kernels") == before, "a run of some gates replaces no part of one of more"


@needs_kernels
def test_the_choice_reads_what_is_written_here(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measurements, "roots", lambda: [measurements.own_folder()])
    assert bench("kernels", "--ops", "modulate", "--dtypes", "fp32", "--sizes", "bench").exit_code == 0
    measured, damaged = choice.measurements()
    assert damaged == []
    assert len(measured) == 6, "one for each product and kind of gates, with all its forms"
    assert all(each.step_ms.keys() == {"reference", "reference-compiled", "fused"} for each in measured)
    assert {each.device for each in measured} == {choice.device_here(CPU)}


@pytest.mark.slow
def test_what_cannot_be_kept_for_the_choice_is_told_and_written_all_the_same(bench, rows_of, tmp_path, monkeypatch):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "a-file"))
    result = bench("kernels", "--gemm", "--dtypes", "fp32", "--sizes", "bench")
    assert result.exit_code == 0, result.output
    assert "`kernels: auto` will not know of this" in result.output
    assert rows_of("kernels")


def check_all_forms(op: str, shape: Shape, every: tuple[str, ...] = tuple(GATES)) -> None:
    """fp32: sums of some 20 terms, so 1e-5 is many times what rounding makes; a wrong form is off by tenths."""
    for part in KERNELS["products"][op]:
        for gates in every:
            built = kernels.operation(op, part, shape, gates, torch.float32, CPU)
            values, sizes = {}, {}
            for name, form in built.forms.items():
                outputs = list(form())
                sizes[name] = [output.numel() for output in outputs]
                loss = sum(output.square().sum() for output in outputs)
                gradients = torch.autograd.grad(loss, built.leaves)
                values[name] = torch.stack([loss, *(gradient.square().sum() for gradient in gradients)])
            for name, value in values.items():
                torch.testing.assert_close(value, values["reference"], rtol=1e-4, atol=1e-5)
                if op != "modulate":  # one output for all sites, or one for each
                    assert sizes[name] == sizes["reference"], name


@needs_kernels
@pytest.mark.parametrize("op", OPS)
def test_all_forms_compute_the_same(op):
    check_all_forms(op, LANGUAGE.shapes["bench"])


@needs_kernels
def test_all_forms_compute_the_same_where_rows_are_aligned(monkeypatch):
    """As on a GPU, where the sites of a product are filled up to multiples of 8: here 21 to 24; and with heads that
    share keys and values."""
    bench = LANGUAGE.shapes["bench"]
    odd = replace(bench, model={**bench.model, "ffn_width": 21})
    for module in (attention, projection, kernels):
        monkeypatch.setattr(module, "aligned", lambda width, like: -(-width // 8) * 8)
    built = kernels.operation("swiglu", "gate-up", odd, "transponder-r8", torch.float32, CPU)
    assert {name: form()[0].shape[-1] for name, form in built.forms.items()} == {"reference": 24, "fused": 24}
    assert [(each.N, each.K) for each in kernels.products(odd, CPU)][2:] == [(48, 16), (16, 24)]
    check_all_forms("swiglu", odd)
    check_all_forms("projection", odd)
    check_all_forms("heads", replace(bench, model={**bench.model, "width": 32, "heads": 4, "kv_heads": 2}))


def test_decode(bench, rows_of):
    arguments = ("decode", "--sizes", "bench", "--batch", "1,3", "--dtypes", "fp32")
    assert bench(*arguments, "--variants", "plain,transponder").exit_code == 0
    rows = rows_of("decode")
    assert has_its_columns(rows, "decode")
    expected = [(batch, variant) for batch in ("1", "3") for variant in ("plain", "transponder")]
    assert [(row["batch"], row["variant"]) for row in rows] == expected
    for row in rows:
        assert (row["decode_ratio_to_plain"] == "1.0") == (row["variant"] == "plain")
        speed = 1e3 * int(row["batch"]) / float(row["decode_ms"])
        assert float(row["tokens_per_second"]) == pytest.approx(speed, rel=1e-2)


@pytest.mark.slow
def test_translating(bench, rows_of):
    """Every variant at its widths of the beam; goals at the usual one."""
    result = bench("decode", "--sizes", "mt-bench", "--batch", "3")
    assert result.exit_code == 0, result.output
    rows = rows_of("decode-translation")
    assert has_its_columns(rows, "decode-translation")
    beams = [("1", "plain"), ("1", "marian"), ("4", "plain"), ("4", "plain-uncached"), ("4", "sas"), ("4", "marian"),
             ("8", "plain"), ("8", "marian")]  # fmt: skip
    assert [(row["beam"], row["variant"]) for row in rows] == beams
    goals = {"plain-uncached": "2.0", "marian": "1.0"}
    for row in rows:
        assert (row["ratio_to_plain"] == "1.0") == (row["variant"] == "plain")
        assert row["goal_ratio_to_plain"] == (goals.get(row["variant"], "") if row["beam"] == "4" else "")
        assert float(row["peak_mib"]) > 0


def test_all_searches_take_all_steps_and_the_cache_changes_no_token():
    """No sentence ends early, in ours or in transformers'; reading every prefix anew gives the same translations, in
    fp64 and over several seeds."""
    shape = TRANSLATION.shapes["mt-bench"]
    source = torch.randint(3, 32, (3, 6))
    source[0, 4:] = 0
    for seed in range(3):
        model = model_of(shape.spec({"name": "post-ln"}))
        materialise(model, CPU, seed)
        model.double().eval()
        cached = ours(model, source, 4, 7)
        assert ours(Uncached(model), source, 4, 7) == cached
        assert {len(tokens) for tokens in cached} == {7}
        assert not {0, BEGIN, END} & {token for tokens in cached for token in tokens}
    found = theirs(Marian(shape).eval(), source, 4, 7)
    assert {len(tokens) for tokens in found} == {7}
    assert not any(END in tokens for tokens in found)


@pytest.mark.slow
def test_pages_anew_from_the_csv(bench, rows_of, tmp_path):
    assert isinstance(bench("page").exception, UserError), "nothing has been measured"
    bench("kernels", "--sizes", "bench", "--dtypes", "fp32", "--gemm")
    (path,) = tmp_path.glob("bench/*/kernels.csv")
    before, text = rows_of("kernels"), path.with_suffix(".md").read_text()
    path.with_suffix(".md").unlink()
    older = path.with_name("decode.csv")
    older.write_text("device,size\na,b\n")
    result = bench("page")
    assert result.exit_code == 0, result.output
    assert (rows_of("kernels"), path.with_suffix(".md").read_text()) == (before, text)
    assert f"{older}: of an older version, left as it is" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["step", "--precision", "bf16"],
        ["step", "--sizes", "60m,resnet18", "--variants", "window-fused"],
        ["kernels", "--gemm", "--ops", "heads"],
        ["kernels", "--gemm", "--tune"],
        ["kernels", "--tune"],  # on a CPU
        ["kernels", "--recipe", "table3.yaml", "--sizes", "60m"],
        ["kernels", "--recipe", "table1.yaml"],  # no language models
        ["kernels", "--scale", "small"],
        ["decode", "--batch", "1,x"],
        ["decode", "--sizes", "mt-bench", "--variants", "comt-fused"],
        ["all", "--minutes", "1", "--seconds", "60"],
    ],
    ids=" ".join,
)
def test_bad_input_has_status_2(arguments, bench, tmp_path):
    result = bench(*arguments)
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_status == 2
    assert not any(tmp_path.iterdir())


# ---- what fails, what is cut short


def test_decoding_that_fails(bench, rows_of, monkeypatch):
    class Failing(decode.Decoder):
        def step(self, tokens_B):
            if any("gates." in name for name, _ in self.model.named_parameters()):
                raise RuntimeError("Triton Error [CUDA]: misaligned address\nand more")
            return super().step(tokens_B)

    monkeypatch.setattr(decode, "Decoder", Failing)
    result = bench("decode", "--sizes", "bench", "--batch", "1", "--dtypes", "fp32", "--variants", "plain,comt")
    assert isinstance(result.exception, NotMeasured)
    assert result.exception.exit_status == 1
    line = "bench fp32 batch 1 comt: failed (RuntimeError: Triton Error [CUDA]: misaligned address)"
    assert line in result.output.splitlines()
    assert "1 part failed, the rest was measured" in str(result.exception)
    assert [row["variant"] for row in rows_of("decode")] == ["plain"]


VERBS = {
    "step": ("step", "--sizes", "bench", "--precision", "fp32", "--variants", "plain,comt-eager"),
    "kernels": ("kernels", "--sizes", "bench", "--dtypes", "fp32", "--ops", "modulate", "--gates", "none"),
    "decode": ("decode", "--sizes", "bench", "--batch", "1,2", "--dtypes", "fp32", "--variants", "plain,comt"),
    "translate": ("decode", "--sizes", "mt-bench", "--batch", "1,2", "--variants", "plain,sas"),
}
every_verb = pytest.mark.parametrize("arguments", VERBS.values(), ids=VERBS)


def in_the_third_round(monkeypatch: pytest.MonkeyPatch, act) -> None:
    """Calls `act` in the first turn of the third round of what is timed first."""
    counted = [0, 0]
    stopwatch_for, in_turns = runner.stopwatch_for, runner.in_turns

    def counting(*device, **how):
        stopwatch = stopwatch_for(*device, **how)

        def seconds(part):
            counted[0] += 1
            if counted[0] == 2 * counted[1] + 1:
                act()
            return stopwatch(part)

        return seconds

    def told(parts, *more, **how):
        counted[1] = counted[1] or len(parts)
        return in_turns(parts, *more, **how)

    monkeypatch.setattr(runner, "stopwatch_for", counting)
    monkeypatch.setattr(runner, "in_turns", told)


def two_unsettled_rounds(folder: Path) -> int:
    """How many rows were written; they are of two rounds, and no time of theirs has settled."""
    (path,) = (path for path in folder.glob("*/*/*.csv") if path.parent.parent.name == "bench")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert {row["rounds"] for row in rows} == {"2"}
    for row in rows:
        assert {value for name, value in row.items() if name.endswith("_settled")} <= {"False", ""}
    return len(rows)


@every_verb
def test_a_signal(arguments, bench, tmp_path, monkeypatch):
    """In the midst of the third round: nothing more is timed, and the process ends with the signal's status."""
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    number = signal.SIGINT if arguments == VERBS["step"] else signal.SIGTERM
    before = signal.getsignal(number)
    in_the_third_round(monkeypatch, lambda: signal.raise_signal(number))
    error = bench(*arguments, "--rounds", "15").exception
    assert isinstance(error, RunInterrupted)
    assert error.exit_status == 128 + number
    assert f"rows measured: {two_unsettled_rounds(tmp_path)}," in str(error)
    assert signal.getsignal(number) is before


@every_verb
def test_seconds(arguments, bench, tmp_path, monkeypatch):
    """They are up in the midst of the third round. What is there is written, and all else left out by its name."""
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    left = [60.0]
    monkeypatch.setattr(Deadline, "left", lambda _: left[0])
    in_the_third_round(monkeypatch, lambda: left.__setitem__(0, 0.0))
    result = bench(*arguments, "--seconds", "60", "--rounds", "15")
    assert result.exit_code == 0, result.output
    assert two_unsettled_rounds(tmp_path)
    assert ("left out for want of time" in result.output) == (arguments != VERBS["step"])
    assert gpu.INCOMPLETE.search(result.output), "which comt bench gpu goes by"
    nothing = bench(*arguments, "--seconds", "0")
    assert isinstance(nothing.exception, NotMeasured)
    assert re.search("left out for want of time", nothing.output)


@pytest.mark.slow
def test_everything_within_its_minutes(bench, rows_of, tmp_path):
    """No time at all: everything is left out, and said; a little: the first part alone."""
    result = bench("all", "--minutes", "0")
    assert isinstance(result.exception, NotMeasured)
    assert result.output.count("left out for want of time") == 20
    assert not (tmp_path / "bench").exists()
    result = bench("all", "--minutes", "0.4")
    assert result.exit_code == 0, result.output
    assert {row["op"] for row in rows_of("kernels")} == {"gemm"}


def test_stages_end_in_time_and_learn_how_long_they_take(monkeypatch):
    """60 s: the first takes 20 instead of 10, so the next two alike are expected at 20 and 60; the last is another."""
    now, stop = [0.0], StopSignal()

    def pretended(cases, turns):
        now[0] += cases
        yield str(turns.deadline())

    monkeypatch.setattr("comt_cli.lab.bench.stages.run_cases", pretended)
    stages = [
        Stage("step at 60m", 10, 20),
        Stage("step at 130m", 10, 10),
        Stage("step at 1b", 40, 40),
        Stage("decoding at 60m", 20, 35),
        Stage("decoding at 1b", 1, 1),
    ]
    assert reach(stages, 50).startswith("0.833333 minutes are likely to reach 2 of 5 parts, the last of them: step at")
    deadline = Deadline(60, stop, lambda: now[0])
    assert [*run_stages(stages, Turns(3, deadline))] == [
        *("step at 60m (60 s left)", "True", "step at 130m (40 s left)", "True"),
        "left out for want of time: step at 1b (about 40 s, 30 s left)",
        *("decoding at 60m (30 s left)", "False"),  # it took longer than was left, and was told
        "left out for want of time: decoding at 1b (about 1 s, 0 s left)",
    ]
    stop.number = signal.SIGTERM
    with pytest.raises(KeyboardInterrupt):
        deadline()
