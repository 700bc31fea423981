"""The verbs of `comt bench` but `step`, from the command line to the files, on networks of a few hundred numbers."""

from __future__ import annotations

import contextlib
import csv
from dataclasses import replace

import pytest
import torch

from comt_cli.benchmarks import decode, decode_translation, gemm, kernel_cases
from comt_cli.benchmarks.decode import run_decode_benchmark
from comt_cli.benchmarks.decode_translation import run_translation_benchmark
from comt_cli.benchmarks.failures import NotMeasured
from comt_cli.benchmarks.gemm import Product, widths
from comt_cli.benchmarks.kernels import Group, run_gemm_benchmark, run_kernel_benchmark
from comt_cli.benchmarks.names import GATES, OPS, TRANSLATION_VARIANTS
from comt_cli.benchmarks.peers import BEGIN, END, Marian
from comt_cli.benchmarks.shapes import LLAMAS, TRANSLATORS, Shape, llama
from comt_cli.errors import UserError
from comt_cli.kernels import choice, measurements
from comt_cli.layers import attention, packing
from comt_cli.models.build import materialise, model_of
from comt_cli.models.kernels import use_kernels
from comt_cli.runs.directory import ONEDNN, PYTORCH

pytestmark = pytest.mark.usefixtures("quick_figures")

CPU = torch.device("cpu")
HAS_KERNELS = choice.cpu_obstacle(may_build=False) is None  # whose building is left to the first test of them
FILES = ("csv", "md", "png", "pdf", "txt", "tex")


def test_kernels_and_products(bench, rows_of, written):
    arguments = ("kernels", "--sizes", "bench", "--dtypes", "fp32")
    assert bench(*arguments, "--ops", "heads,projection", "--gates", "none,transponder-r8").exit_code == 0
    assert bench(*arguments, "--gemm").exit_code == 0
    rows = rows_of("kernels")
    assert {row["op"] for row in rows} == {"heads", "projection", "gemm"}
    assert {row["width"] for row in rows if row["op"] == "heads"} == {"48"}
    forms = {row["variant"] for row in rows if row["op"] == "heads"}
    assert forms == {"reference", "reference-compiled", *(["fused"] if HAS_KERNELS else [])}
    for row in rows:
        if (row["gates"], row["variant"]) in (("none", "reference-compiled"), ("none", "plain")):
            assert row["step_ratio_to_plain_compiled"] == row["forward_ratio_to_plain_compiled"] == "1.0"
        assert float(row["step_ms"]) > 0
        assert (row["step_ms_uncertainty"], row["step_ms_settled"]) == ("", "False"), "of three rounds"
    assert written() == {f"kernels.{kind}" for kind in FILES}


@pytest.mark.skipif(not HAS_KERNELS, reason="no kernels for the CPU here: no compiler")
@pytest.mark.parametrize("op", OPS)
def test_the_choice_reads_what_is_written_here(op, bench, rows_of, tmp_path, monkeypatch):
    """Every operation in every form; and what was measured is what the choice then goes by, from the cache folder."""
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measurements, "roots", lambda: [measurements.own_folder()])
    result = bench("kernels", "--ops", op, "--dtypes", "fp32", "--sizes", "bench")
    assert result.exit_code == 0, result.output
    rows = rows_of("kernels")
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
    assert {each.device for each in ours} == {choice.device_here(CPU)}


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


@pytest.mark.parametrize("library", [PYTORCH, ONEDNN])
def test_products_of_another_library_are_timed_beside_pytorchs(monkeypatch, library):
    monkeypatch.setattr(gemm, "multiplier", lambda: library)
    entered = []

    @contextlib.contextmanager
    def recorded():
        entered.append(1)
        yield

    monkeypatch.setattr(gemm, "by_pytorch", recorded)
    forms = gemm.forms(Product("o", 48, 16, 1), 8, torch.float32, CPU)
    plain, own = forms["none", "plain"], forms.get(("none", "pytorch"))
    assert (own is None) == (library == PYTORCH)
    if own is not None:
        expected = plain.step()
        assert not entered
        torch.testing.assert_close(own.step(), expected)
        own.forward()
        assert len(entered) == 2


def test_what_cannot_be_kept_for_the_choice_is_told_and_written_all_the_same(bench, rows_of, tmp_path, monkeypatch):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "a-file"))
    result = bench("kernels", "--gemm", "--dtypes", "fp32", "--sizes", "bench")
    assert result.exit_code == 0, result.output
    assert "`kernels: auto` will not know of this" in result.output
    assert rows_of("kernels")


@pytest.mark.skipif(not HAS_KERNELS, reason="no kernels for the CPU here: no compiler")
@pytest.mark.parametrize("op", OPS)
def test_all_forms_compute_the_same(op):
    check_all_forms(op, LLAMAS["bench"])


@pytest.mark.skipif(not HAS_KERNELS, reason="no kernels for the CPU here: no compiler")
@pytest.mark.parametrize("op", ["swiglu", "projection"])
def test_all_forms_compute_the_same_where_rows_are_aligned(op, monkeypatch):
    """As on a GPU, where the sites of a product are filled up to multiples of 8: here 21 to 24."""
    odd = llama("bench", 16, 21, 2, 2, vocabulary=32, batch=2, length=8)
    for module in (attention, packing, kernel_cases, gemm):
        monkeypatch.setattr(module, "aligned", lambda width, like: -(-width // 8) * 8)
    built = kernel_cases.case("swiglu", "gate-up", odd, "transponder-r8", torch.float32, CPU)
    assert {name: form()[0].shape[-1] for name, form in built.forms.items()} == {"reference": 24, "fused": 24}
    down = kernel_cases.case("projection", "down", odd, "none", torch.float32, CPU)
    assert down.leaves[0].shape[-1] == 24
    assert [(each.N, each.K) for each in gemm.products(odd, CPU)][2:] == [(48, 16), (16, 24)]
    check_all_forms(op, odd)


def test_decode(bench, rows_of):
    arguments = ("decode", "--sizes", "bench", "--batch", "1,3", "--dtypes", "fp32")
    assert bench(*arguments, "--variants", "plain,transponder").exit_code == 0
    rows = rows_of("decode")
    assert [(row["batch"], row["variant"]) for row in rows] == [
        ("1", "plain"), ("1", "transponder"), ("3", "plain"), ("3", "transponder"),
    ]  # fmt: skip
    for row in rows:
        assert (row["decode_ratio_to_plain"] == "1.0") == (row["variant"] == "plain")
        assert float(row["tokens_per_second"]) == pytest.approx(
            1e3 * int(row["batch"]) / float(row["decode_ms"]), rel=1e-2
        )
        assert row["goal_decode_ratio"] == "", "it is asked of GPUs"


def test_translating(bench, rows_of, written):
    """Every variant at its widths of the beam; goals at the usual one."""
    result = bench("decode", "--sizes", "mt-bench", "--batch", "3")
    assert result.exit_code == 0, result.output
    rows = rows_of("decode-translation")
    beams = [("1", "plain"), ("1", "marian"), ("4", "plain"), ("4", "plain-uncached"), ("4", "sas"), ("4", "marian"),
             ("8", "plain"), ("8", "marian")]  # fmt: skip
    assert [(row["batch"], row["beam"], row["variant"]) for row in rows] == [("3", *each) for each in beams]
    assert written() == {"decode-translation.csv", "decode-translation.md"}
    goals = {"plain-uncached": "2.0", "marian": "1.0"}
    for row in rows:
        assert (row["ratio_to_plain"] == "1.0") == (row["variant"] == "plain")
        assert row["goal_ratio_to_plain"] == (goals.get(row["variant"], "") if row["beam"] == "4" else "")
        assert float(row["sentences_per_second"]) == pytest.approx(
            1e3 * int(row["batch"]) / float(row["search_ms"]), rel=1e-2
        )
        assert row["dtype"] == "fp32"
        assert float(row["peak_mib"]) > 0


def test_all_searches_take_all_steps_and_the_cache_changes_no_token():
    """No sentence ends early, in ours or in transformers'; reading every prefix anew gives the same translations, in
    fp64 and over several seeds."""
    shape = TRANSLATORS["mt-bench"]
    source = torch.randint(3, 32, (3, 6))
    source[0, 4:] = 0
    for seed in range(3):
        model = model_of(shape.spec({"name": "post-ln"}))
        materialise(model, CPU, seed)
        model.double().eval()
        cached = decode_translation._ours(model, source, 4, 7)
        assert decode_translation._ours(decode_translation.Uncached(model), source, 4, 7) == cached
        assert {len(tokens) for tokens in cached} == {7}
        assert not {0, BEGIN, END} & {token for tokens in cached for token in tokens}
    theirs = decode_translation._theirs(Marian(shape).eval(), source, 4, 7)
    assert {len(tokens) for tokens in theirs} == {7}
    assert not any(END in tokens for tokens in theirs)


def test_translating_without_the_other_library(monkeypatch):
    def missing(shape):
        raise UserError("the comparison with transformers needs that library")

    monkeypatch.setattr(decode_translation, "Marian", missing)
    names, shapes = list(TRANSLATION_VARIANTS), [TRANSLATORS["mt-bench"]]
    *news, rows, _ = run_translation_benchmark(shapes, names, ["fp32"], [1], CPU, 1, tokens=4)
    assert {row["variant"] for row in rows} == {*names} - {"marian"}
    assert "mt-bench fp32 marian: left out, the comparison with transformers needs that library" in news


def test_everything_within_its_minutes(bench, rows_of, tmp_path):
    """No time at all: everything is left out, and said; a little: the first part alone."""
    result = bench("all", "--minutes", "0")
    assert result.exit_code == 1
    assert isinstance(result.exception, NotMeasured)
    assert "nothing was measured" in str(result.exception)
    assert result.output.count("left out for want of time") == 20
    assert not (tmp_path / "bench").exists()
    result = bench("all", "--minutes", "0.4")
    assert result.exit_code == 0, result.output
    assert {row["op"] for row in rows_of("kernels")} == {"gemm"}


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
        (["decode", "--batch", "1,x"], "batch sizes are whole numbers from 1"),
        (["decode", "--variants", "comt-compiled"], "did you mean comt-fused?"),
        (["decode", "--sizes", "mt-bench", "--variants", "comt-fused"], "of mt-bench there are no such"),
    ],
    ids=" ".join,
)
def test_a_wrong_name_is_told_with_the_right_one(arguments, said, bench, tmp_path):
    result = bench(*arguments)
    assert isinstance(result.exception, UserError)
    assert said in str(result.exception)
    assert not any(tmp_path.iterdir())


# ---- what the verbs rest on


def test_what_there_is_no_time_for_is_told():
    """Each part before it begins; of the rest, what there was time for is measured."""
    shapes, once = [LLAMAS["bench"]], ["fp32"]
    kernels = run_kernel_benchmark(shapes, ["modulate"], ["none"], once, CPU, 1, lambda: False)
    assert list(kernels) == [f"bench fp32 modulate {part}: left out for want of time" for part in ("o", "qkv")]
    gemm = run_gemm_benchmark(shapes, once, CPU, 1, lambda: False)
    assert [line.partition(",")[2] for line in gemm] == [" 16 rows: left out for want of time"] * 4
    answers = iter([True] * 3)  # the models, the batch, its model
    *decoded, last = run_decode_benchmark(shapes, ["plain"], once, [1, 2], CPU, 1, lambda: next(answers, False))
    assert sum(isinstance(each, list) for each in decoded) == 1
    assert last == "bench fp32 batch 2: left out for want of time"
    nothing = run_decode_benchmark(shapes, ["plain"], once, [1, 2], CPU, 1, lambda: False)
    assert list(nothing) == ["bench fp32: left out for want of time"], "not even the models are built"


def test_kernels_are_chosen_for_as_many_rows_as_a_step_has(monkeypatch):
    asked = []
    monkeypatch.setattr(choice, "_tuned", {("swiglu", "none", 20): None})

    def asks(*given, tokens, **how):
        asked.append((tokens, dict(choice._tuned)))
        return use_kernels(*given, tokens=tokens, **how)

    monkeypatch.setattr(decode, "use_kernels", asks)
    *_, rows, _ = run_decode_benchmark([LLAMAS["bench"]], ["plain", "comt-fused"], ["fp32"], [1, 3], CPU, 1)
    assert [row["variant"] for row in rows] == ["plain", "comt-fused"]
    assert asked == [(1, {}), (3, {})], "and in no tiles of others"


def test_a_run_of_some_gates_is_shown_and_left_to_the_choice(bench, rows_of, tmp_path, monkeypatch):
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    arguments = ("kernels", "--sizes", "bench", "--dtypes", "fp32", "--ops", "heads")
    assert bench(*arguments, "--gates", "none,comt-r2").exit_code == 0
    before = rows_of("kernels")
    result = bench(*arguments, "--gates", "comt-r2", "--rounds", "4")
    assert result.exit_code == 0
    assert rows_of("kernels") == before
    assert "not written, since kernels.csv below" in result.output
    assert "| heads | d16-f20-h2-b2x8-qkv | 16 | 48 | fp32 | comt-r2 | reference |" in result.output
    (kept,) = (tmp_path / "own").glob("*/kernels.csv")
    assert {(row["gates"], row["rounds"]) for row in csv.DictReader(kept.read_text().splitlines())} == {
        ("none", "3"), ("comt-r2", "4"),
    }  # fmt: skip


GROUPED = llama("grouped", 16, 20, 2, 4, vocabulary=32, batch=2, length=8)
GROUPED = replace(GROUPED, model={**GROUPED.model, "kv_heads": 2})


@pytest.mark.parametrize("gates", GATES)
def test_heads_that_share_keys_and_values(gates):
    """They are timed as the model has them, and their rows are not those of the network with all heads."""
    group = Group("heads", "qkv", GROUPED, "fp32")
    assert group.shape_name == "d16-f20-h4-k2-b2x8-qkv"
    built = group.case(gates, CPU)
    assert built.width == 32
    q, k, v = built.forms["reference"]()
    assert (q.shape[1], k.shape[1], v.shape[1]) == (4, 2, 2)
    for expected, found in zip((q, k, v), built.forms["fused"](), strict=True):
        torch.testing.assert_close(found.view_as(expected.transpose(1, 2)), expected.transpose(1, 2))
    assert gemm.products(GROUPED, CPU)[0].N == 32


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
