"""The verbs, from the command line to the files, on networks of a few hundred numbers."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.benchmarks import decode, gemm, kernel_cases, shapes, step, step_variants
from comt_cli.benchmarks.failures import NotMeasured
from comt_cli.benchmarks.gemm import Product, widths
from comt_cli.benchmarks.kernels import run_kernel_benchmark
from comt_cli.benchmarks.names import OPS, STEP_VARIANTS
from comt_cli.benchmarks.shapes import Shape
from comt_cli.benchmarks.step_variants import Workshop
from comt_cli.commands.options import DEFAULT_RESULTS
from comt_cli.errors import UserError
from comt_cli.kernels import choice, measurements
from comt_cli.layers import attention, projection
from comt_cli.models.kernels import use_kernels

pytestmark = pytest.mark.usefixtures("quick_figures")

MINUTE = Shape("bench", width=16, ffn_width=20, layers=2, heads=2, vocabulary=32, batch=2, length=8)
CPU = torch.device("cpu")
HAS_KERNELS = choice.cpu_obstacle() is None


@pytest.fixture(autouse=True)
def _minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small, and uncompiled: what the compiler makes of a model is tested where models are."""
    for name in ("bench", "smoke"):
        monkeypatch.setitem(shapes.SHAPES, name, MINUTE)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(decode, "PROMPT", 8)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def rows_of(results: Path, name: str) -> list[dict[str, str]]:
    (path,) = (results / "bench").glob(f"*/{name}.csv")
    return list(csv.DictReader(path.read_text().splitlines()))


def written(results: Path) -> set[str]:
    return {path.name for path in (results / "bench").glob("*/*")}


def test_step(tmp_path):
    arguments = ("step", "--sizes", "bench", "--rounds", "3", "--device", "cpu", "--results", str(tmp_path))
    assert run(*arguments, "--precision", "fp32").exit_code == 0
    rows = {row["variant"]: row for row in rows_of(tmp_path, "step")}
    missing = set() if HAS_KERNELS else {name for name in STEP_VARIANTS if name.endswith("-fused")}
    assert list(rows) == [name for name in STEP_VARIANTS if name not in missing]
    assert {row["rounds"] for row in rows.values()} == {"3"}
    best = rows["plain"]["best_plain"]
    assert best in step_variants.BEST_PLAIN
    assert float(rows[best]["step_ratio_to_best_plain"]) == 1
    assert float(rows[best]["step_ms"]) == min(
        float(rows[name]["step_ms"]) for name in step_variants.BEST_PLAIN if name in rows
    )
    assert float(rows["transformers"]["step_ratio_to_transformers"]) == 1
    if HAS_KERNELS:
        assert rows["transponder-fused"]["goal_step_ratio"] == "1.15"
    assert rows["transponder-compiled"]["goal_step_ratio"] == rows["comt-compiled"]["peak_mib"] == ""
    for row in rows.values():
        assert float(row["step_ms_p10"]) <= float(row["step_ms"]) <= float(row["step_ms_p90"])
        assert float(row["tokens_per_second"]) == pytest.approx(16_000 / float(row["step_ms"]), rel=1e-2)
        assert float(row["saved_mib"]) > 0
    assert float(rows["transponder-eager"]["saved_ratio_to_plain"]) > float(rows["plain"]["saved_ratio_to_plain"])
    assert written(tmp_path) == {"step.csv", "step.md", "step.png", "step.pdf", "step.txt", "step.tex"}
    # Another precision of one variant joins them.
    assert run(*arguments, "--precision", "bf16-mixed", "--variants", "plain", "--compile", "block").exit_code == 0
    assert len(rows_of(tmp_path, "step")) == len(rows) + 1


def test_kernels_and_products(tmp_path):
    arguments = ("--sizes", "bench", "--dtypes", "fp32", "--rounds", "3", "--device", "cpu", "--results", str(tmp_path))
    assert run("kernels", *arguments, "--ops", "heads,projection", "--gates", "none,transponder-r8").exit_code == 0
    assert run("kernels", *arguments, "--gemm").exit_code == 0
    rows = rows_of(tmp_path, "kernels")
    assert {row["op"] for row in rows} == {"heads", "projection", "gemm"}
    assert {row["width"] for row in rows if row["op"] == "heads"} == {"48"}
    forms = {row["variant"] for row in rows if row["op"] == "heads"}
    assert forms == {"reference", "reference-compiled", *(["fused"] if HAS_KERNELS else [])}
    for row in rows:
        if (row["gates"], row["variant"]) in (("none", "reference-compiled"), ("none", "plain")):
            assert row["step_ratio_to_plain_compiled"] == row["forward_ratio_to_plain_compiled"] == "1.0"
        assert float(row["step_ms"]) > 0
    assert written(tmp_path) == {f"kernels.{kind}" for kind in ("csv", "md", "png", "pdf", "txt", "tex")}


@pytest.mark.skipif(not HAS_KERNELS, reason="no kernels for the CPU here: no compiler")
@pytest.mark.parametrize("op", OPS)
def test_the_choice_reads_what_is_written_here(op, tmp_path, monkeypatch):
    """Every operation in every form; and what was measured is what the choice then goes by."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measurements, "roots", lambda: [DEFAULT_RESULTS / "bench"])
    result = run("kernels", "--ops", op, "--dtypes", "fp32", "--rounds", "3", "--device", "cpu", "--sizes", "bench")
    assert result.exit_code == 0, result.output
    rows = rows_of(DEFAULT_RESULTS, "kernels")
    assert {row["gates"] for row in rows} == {"none", "comt-r2", "transponder-r8"}
    if op == "projection":  # the model has no such choice
        assert {row["variant"] for row in rows} == {"reference", "reference-compiled", "library"}
        return
    measured, damaged = choice.measurements()
    assert damaged == []
    # One measurement for each product and kind of gates, with all its forms.
    ours = [each for each in measured if each.width in (16, 40, 48) and each.shape.startswith("d16-f20")]
    assert len(ours) == (6 if op == "modulate" else 3)
    assert all(each.step_ms.keys() == {"reference", "reference-compiled", "fused"} for each in ours)


def check_all_forms(op: str, shape: Shape) -> None:
    """fp32: sums of some 20 terms, so 1e-5 is many times what rounding makes; a wrong form is off by tenths."""
    from comt_cli.benchmarks.kernel_cases import case, groups
    from comt_cli.benchmarks.names import GATES

    for part in groups(op):
        for gates in GATES:
            built = case(op, part, shape, gates, torch.float32, CPU)
            values, sizes = {}, {}
            for name, form in built.forms.items():
                outputs = list(form())
                sizes[name] = [output.numel() for output in outputs]
                loss = sum(output.square().sum() for output in outputs)
                gradients = torch.autograd.grad(loss, built.leaves)
                values[name] = torch.stack([loss, *(gradient.square().sum() for gradient in gradients)])
            reference = values.pop("reference")
            assert values
            for name, value in values.items():
                torch.testing.assert_close(value, reference, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
                if op != "modulate":  # one output for all sites, or one for each
                    assert sizes[name] == sizes["reference"], name


@pytest.mark.skipif(not HAS_KERNELS, reason="no kernels for the CPU here: no compiler")
@pytest.mark.parametrize("op", OPS)
def test_all_forms_compute_the_same(op):
    check_all_forms(op, MINUTE)


@pytest.mark.skipif(not HAS_KERNELS, reason="no kernels for the CPU here: no compiler")
@pytest.mark.parametrize("op", ["swiglu", "projection"])
def test_all_forms_compute_the_same_where_rows_are_aligned(op, monkeypatch):
    """As on a GPU, where the sites of a product are filled up to multiples of 8: here 21 to 24."""
    odd = replace(MINUTE, ffn_width=21)
    for module in (attention, projection, kernel_cases, gemm):
        monkeypatch.setattr(module, "aligned", lambda width, like: -(-width // 8) * 8)
    built = kernel_cases.case("swiglu", "gate-up", odd, "transponder-r8", torch.float32, CPU)
    assert {name: form()[0].shape[-1] for name, form in built.forms.items()} == {"reference": 24, "fused": 24}
    down = kernel_cases.case("projection", "down", odd, "none", torch.float32, CPU)
    assert down.leaves[0].shape[-1] == 24
    assert [(each.N, each.K) for each in gemm.products(odd, CPU)][2:] == [(48, 16), (16, 24)]
    check_all_forms(op, odd)


def test_decode(tmp_path):
    arguments = ("--batch", "1,3", "--rounds", "3", "--device", "cpu", "--dtypes", "fp32", "--results", str(tmp_path))
    assert run("decode", *arguments, "--variants", "plain,transponder").exit_code == 0
    rows = rows_of(tmp_path, "decode")
    assert [(row["batch"], row["variant"]) for row in rows] == [
        ("1", "plain"), ("1", "transponder"), ("3", "plain"), ("3", "transponder"),
    ]  # fmt: skip
    for row in rows:
        assert (row["decode_ratio_to_plain"] == "1.0") == (row["variant"] == "plain")
        assert float(row["tokens_per_second"]) == pytest.approx(
            1e3 * int(row["batch"]) / float(row["decode_ms"]), rel=1e-2
        )
        assert row["goal_decode_ratio"] == "", "it is asked of GPUs"


def test_predict(tmp_path):
    assert run("predict", "--results", str(tmp_path)).exit_code == 0
    folder = tmp_path / "bench" / "nvidia-h200"
    rows = {"predicted": 5 * 6, "predicted-images": 5 * 5}
    ends = ("csv", "md", "png", "pdf", "txt", "tex")
    assert {path.name for path in folder.iterdir()} == {f"{name}.{end}" for name in rows for end in ends}
    for name, count in rows.items():
        lines = [line for line in (folder / f"{name}.md").read_text().splitlines() if line.startswith("| ")][2:]
        assert len(lines) == count
        assert all("| predicted, not measured |" in line for line in lines)


def test_everything_within_its_minutes(tmp_path):
    """No time at all: everything is left out, and said; a little: the first part alone."""
    result = run("all", "--minutes", "0", "--device", "cpu", "--results", str(tmp_path))
    assert result.exit_code == 1
    assert isinstance(result.exception, NotMeasured)
    assert "nothing was measured" in str(result.exception)
    assert result.output.count("left out for want of time") == 11
    assert not (tmp_path / "bench").exists()
    result = run("all", "--minutes", "0.4", "--rounds", "3", "--device", "cpu", "--results", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert {row["op"] for row in rows_of(tmp_path, "kernels")} == {"gemm"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["step", "--sizes", "60n"], "did you mean 60m?"),
        (["step", "--variants", "transponder-fussed"], "did you mean transponder-fused?"),
        (["step", "--precision", "bf16"], "did you mean bf16-pure?"),
        (["step", "--sizes", "resnet19"], "did you mean resnet18"),
        (["step", "--variants", "window-fussed"], "did you mean window-fused?"),
        (["step", "--sizes", "60m,resnet18", "--variants", "window-fused"], "of 60m there are no such"),
        (["kernels", "--ops", "swigluu"], "did you mean swiglu?"),
        (["kernels", "--gates", "comt"], "did you mean comt-r2?"),
        (["kernels", "--gemm", "--ops", "heads"], "--gemm times products alone"),
        (["kernels", "--gemm", "--gates", "none"], "--gemm times products alone"),
        (["kernels", "--tune"], "tile sizes are searched for on a CUDA device"),
        (["decode", "--batch", "1,x"], "batch sizes are whole numbers from 1"),
        (["decode", "--variants", "comt-compiled"], "did you mean comt-fused?"),
        (["predict", "--sizes", "bench"], "there is no size 'bench'"),
    ],
    ids=" ".join,
)
def test_a_wrong_name_is_told_with_the_right_one(arguments, said, tmp_path):
    result = run(*arguments, "--results", str(tmp_path), *(["--device", "cpu"] if arguments[0] != "predict" else []))
    assert isinstance(result.exception, UserError)
    assert said in str(result.exception)
    assert not any(tmp_path.iterdir())


# ---- what the verbs rest on


def test_variants_of_one_network_share_its_weights():
    workshop = Workshop(MINUTE, "fp32", CPU, "whole")
    eager, compiled, other = (workshop.prepare(name) for name in ("comt-eager", "comt-compiled", "transponder-eager"))
    assert [id(each) for each in eager.parameters] == [id(each) for each in compiled.parameters]
    assert not {id(each) for each in eager.parameters} & {id(each) for each in other.parameters}
    before = compiled.loss().item()
    eager.step()
    assert compiled.loss().item() < before, "a step of one moves the other"


def test_all_variants_have_the_loss_of_their_network():
    """The same weights: CoMT's eager, compiled and fused losses agree, to rounding in fp32."""
    workshop = Workshop(MINUTE, "fp32", CPU, "whole")
    names = ["transponder-eager", "transponder-compiled", *(["transponder-fused"] if HAS_KERNELS else [])]
    losses = [workshop.prepare(name).loss().item() for name in names]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-6)


def test_where_nothing_is_fused_a_fused_variant_is_left_out(monkeypatch):
    """Rather than measured as something that it is not."""
    monkeypatch.setattr(
        step_variants,
        "use_kernels",
        lambda model, *_, compiled: use_kernels(model, "reference", CPU, torch.float32, compiled=compiled),
    )
    *news, rows = step.run_step_benchmark(MINUTE, "fp32", ["plain-compiled", "plain-fused"], CPU, 3)
    assert [row.variant for row in rows] == ["plain-compiled"]
    assert any("plain-fused: left out, nothing is fused here" in line for line in news)


@pytest.mark.parametrize("fails", ["transponder-eager", "transponder-fused"])
def test_what_does_not_fit(monkeypatch, fails):
    """An uncompiled variant is left out; for the others the batch is halved, for all."""
    prepare = Workshop.prepare

    def limited(self, variant):
        if variant == fails and self.shape.batch > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return prepare(self, variant.replace("fused", "compiled"))

    monkeypatch.setattr(Workshop, "prepare", limited)
    names = ["plain-compiled", "transponder-eager", "transponder-fused"]
    *news, rows = step.run_step_benchmark(MINUTE, "fp32", names, CPU, 3)
    if fails == "transponder-eager":
        assert [row.variant for row in rows] == ["plain-compiled", "transponder-fused"]
        assert {row.shape for row in rows} == {str(MINUTE)}
    else:
        assert [row.variant for row in rows] == names
        assert {row.shape for row in rows} == {str(MINUTE.halved())}
        assert "too large: once more with 8 tokens a step" in news


def test_groups_are_asked_for_before_they_begin():
    news = list(run_kernel_benchmark([MINUTE], ["modulate"], ["none"], ["fp32"], CPU, 3, lambda: False))
    assert news == ["no time for modulate o at bench, fp32", "no time for modulate qkv at bench, fp32"]


def test_columns_of_the_products():
    """512 + 2 for CoMT: 514, padded 520 and 640; 512 + 8 for Transponder is a multiple of 8 as it is."""
    found = widths(Product("o", 512, 512, 1))
    assert found["none", "plain"] == [512]
    assert [found["comt-r2", name] for name in ("columns", "padded-8", "padded", "separate")] == [
        [514], [520], [640], [512, 2],
    ]  # fmt: skip
    assert ("transponder-r8", "padded-8") not in found
    assert found["transponder-r8", "columns"] == [520]
    assert widths(Product("gate-up", 2752, 512, 2))["two-summaries-r8", "columns"] == [2784]
