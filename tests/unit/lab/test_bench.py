"""The verbs of `comt bench`, from the command line to the files, on networks of a few hundred numbers."""

from __future__ import annotations

import csv
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.utils import fresh_cache

from comt_cli.errors import RunInterrupted, UserError
from comt_cli.kernels import choice, measurements
from comt_cli.kernels.triton import tiles
from comt_cli.kernels.triton.tiles import Tile
from comt_cli.lab import costs, gpu, kernels, runner
from comt_cli.lab.costs import can_compile, counting
from comt_cli.lab.kernels import KernelCase, run_tuning, to_tune
from comt_cli.lab.record import pages, recorded
from comt_cli.lab.runner import NotMeasured, Session
from comt_cli.lab.subjects import GATES, KERNELS, LANGUAGE, OPS, Shape
from comt_cli.layers import attention, projection
from comt_cli.verbs.plan import plan_recipe

CPU = torch.device("cpu")
HAS_KERNELS = choice.cpu_obstacle(may_build=False) is None  # whose building is left to the first test of them
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="no kernels for the CPU here: no compiler")


@pytest.fixture(autouse=True)
def _alone(request, monkeypatch, tmp_path):
    if "compiler" not in request.fixturenames:
        request.getfixturevalue("small")
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path / "own"])


def has_its_columns(rows: list[dict[str, str]], name: str) -> bool:
    """A misspelt column would be left out: the rows have what their page asks for."""
    page = pages()[name]
    asked = {how.split()[0] for how in page.columns.values()} | {*page.key, *page.sort, *page.order}
    return asked <= {*rows[0]}


def test_kernels(bench, rows_of):
    arguments = ("kernels", "--sizes", "bench", "--dtypes", "fp32", "--ops", "heads,modulate")
    assert bench(*arguments, "--gates", "none,transponder-r8").exit_code == 0
    before = rows_of("kernels")
    assert has_its_columns(before, "kernels")
    assert {row["op"] for row in before} == {"heads", "modulate"}
    assert {row["variant"] for row in before} == {"reference", "reference-compiled", *(["fused"] * HAS_KERNELS)}
    for row in before:
        if (row["gates"], row["variant"]) == ("none", "reference-compiled"):
            assert row["step_ratio_to_plain_compiled"] == row["forward_ratio_to_plain_compiled"] == "1.0"
        assert (row["step_ms_uncertainty"], row["step_ms_settled"]) == ("", "False"), "of three rounds"
    assert "not written, since" in bench(*arguments, "--gates", "none").output
    assert rows_of("kernels") == before, "a run of some gates replaces no part of one of more"


@needs_kernels
def test_the_choice_reads_what_is_written_here(bench):
    assert bench("kernels", "--ops", "modulate", "--dtypes", "fp32", "--sizes", "bench").exit_code == 0
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
    for module in (attention, projection, kernels):
        monkeypatch.setattr(module, "aligned", lambda width, like: -(-width // 8) * 8)
    grouped = {"width": 32, "heads": 4, "kv_heads": 2} if op == "heads" else {}
    check_all_forms(op, replace(bench, model={**bench.model, "ffn_width": 21, **grouped}))


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


def test_pages_anew_from_the_csv(bench, tmp_path):
    assert isinstance(bench("page").exception, UserError), "nothing has been measured"
    bench("kernels", "--sizes", "bench", "--dtypes", "fp32", "--ops", "modulate")
    (path,) = tmp_path.glob("bench/*/kernels.csv")
    before = [path.read_text(), (page := path.with_suffix(".md")).read_text()]
    page.unlink()
    (older := path.with_name("decode.csv")).write_text("device,size\na,b\n")
    assert bench("page").exit_code == 0
    assert [path.read_text(), page.read_text()] == before
    assert older.read_text() == "device,size\na,b\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["step", "--precision", "bf16"],
        ["step", "--sizes", "60m,resnet18", "--variants", "window-fused"],
        ["kernels", "--tune"],  # on a CPU
        ["kernels", "--recipe", "table3.yaml", "--sizes", "60m"],
        ["kernels", "--recipe", "table1.yaml"],  # no language models
        ["kernels", "--scale", "small"],
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


# ---- what fails, what is cut short


@pytest.mark.parametrize("cut_by", ["a signal", "the clock"])
def test_what_is_cut_short_in_the_third_round(bench, rows_of, monkeypatch, cut_by):
    """Two whole rounds are written, none of whose times has settled; all else is left out by its name."""
    left, in_turns = [60.0], runner.in_turns

    def act() -> None:
        if cut_by == "a signal":
            signal.raise_signal(signal.SIGTERM)
        left[0] = 0.0

    def counting(parts, rounds, stopwatch, *more):
        turns = []

        def seconds(part):
            turns.append(part)
            if len(turns) == 2 * len(parts) + 1:
                act()
            return stopwatch(part)

        return in_turns(parts, rounds, seconds, *more)

    monkeypatch.setattr(runner, "in_turns", counting)
    if cut_by == "the clock":
        monkeypatch.setattr(Session, "left", lambda _: left[0])
    before = signal.getsignal(signal.SIGTERM)
    what = ("--sizes", "bench", "--batch", "1,2", "--dtypes", "fp32", "--variants", "plain,comt")
    result = bench("decode", *what, "--rounds", "15")
    if cut_by == "a signal":
        assert isinstance(result.exception, RunInterrupted)
        assert result.exception.exit_status == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is before
    else:
        assert result.exit_code == 0, result.output
        assert gpu.INCOMPLETE.search(result.output), "which comt bench gpu goes by"
    rows = rows_of("decode")
    assert {row["rounds"] for row in rows} == {"2"}
    for row in rows:
        assert {value for name, value in row.items() if name.endswith("_settled")} <= {"False", ""}


def test_without_time_nothing_is_measured(bench, rows_of, tmp_path):
    """A little is enough for the first part of everything."""
    result = bench("all", "--minutes", "0")
    assert isinstance(result.exception, NotMeasured)
    assert result.output.count("left out for want of time") == 18
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
def recipe(tmp_path: Path) -> Path:
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


def test_costs_beside_those_of_before(bench, recipe, tmp_path, monkeypatch):
    """They stay where they are of this device, and the baseline is always there; a row that fails fails alone."""
    for row in ("dhc", "pre-ln+comt"):
        assert bench("costs", str(recipe), "--rows", row, "--columns", "tiny").exit_code == 0
    assert [line["row"] for line in costs_in(tmp_path)] == ["pre-ln", "pre-ln+comt", "dhc"]
    path = tmp_path / "smoke/own/what-it-costs-costs.csv"
    path.write_text(path.read_text(encoding="utf-8").replace(f'"{costs_in(tmp_path)[0]["device"]}"', "another one"))
    assert isinstance(bench("costs", str(recipe), "--rows", "dhc").exception, UserError)
    plain, real = costs.cost_of(plan_recipe(recipe, "smoke").specs[0]).parameters, costs.saved_bytes

    def saved(loss, parameters):
        given = [*parameters]
        if sum(each.numel() for each in given) != plain:
            raise RuntimeError("no room")
        return real(loss, given)

    monkeypatch.setattr(costs, "saved_bytes", saved)
    result = bench("costs", str(recipe), "--rows", "dhc", "--columns", "tiny", "--overwrite")
    assert result.exit_code == 1
    assert "tiny dhc: failed (RuntimeError: no room)" in result.output
    assert [line["row"] for line in costs_in(tmp_path)] == ["pre-ln"]


def test_what_refuses_to_be_compiled_is_not():
    assert can_compile(plan_recipe("comt/table3", "smoke").specs[0])
    assert not can_compile(plan_recipe("sas/table3", "smoke").specs[0])


@pytest.fixture
def compiler() -> None:
    """The real one, which this folder's tests otherwise do without."""


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_bytes_are_those_of_inputs_and_outputs_of_fused_code():
    x = torch.zeros(1000)
    with fresh_cache():
        for _ in range(2):  # what the compiler has kept counts, too
            torch._dynamo.reset()
            with counting() as counted:
                torch.compile(lambda x: (x + 1) * 2 - x, dynamic=False)(x)
            assert counted() == 2 * 4 * 1000
    torch._dynamo.reset()


# ---- tuning

SMALL, LARGE, TOO_LARGE = Tile(16, 64, 1), Tile(32, 64, 2, 8, 255), Tile(64, 64, 4)
MILLISECONDS = {SMALL: 2.0, LARGE: 1.0}
LAUNCHES = [(f"swiglu{end}", kind) for end in ("", "_backward") for kind in ("none", "scalar", "channel")]
OPERATION = kernels.operation


class Card:
    """In the place of a GPU whose kernels of SwiGLU have three tiles; a step takes as long as those in use say."""

    @staticmethod
    def in_use() -> list[Tile]:
        tuned = {key[:2]: tile for key, tile in tiles._tuned.items()}
        return [tuned.get(kernel, SMALL) for kernel in LAUNCHES]

    def operation(self, *given):
        built = OPERATION(*given)
        reference = built.forms["reference"]

        def fused():
            if TOO_LARGE in self.in_use():
                raise RuntimeError("out of resources: shared memory")
            return reference()

        return replace(built, forms={"reference": reference, "fused": fused})

    def __call__(self, part) -> float:
        part()
        return sum(MILLISECONDS[tile] for tile in self.in_use()) / 1e3


@pytest.fixture
def card(monkeypatch):
    found = Card()
    monkeypatch.setattr(tiles, "TILES", dict.fromkeys(LAUNCHES, (SMALL, LARGE, TOO_LARGE)))
    monkeypatch.setattr(tiles, "_tuned", {})
    monkeypatch.setattr(choice, "_tuned", {})
    monkeypatch.setattr(kernels, "operation", found.operation)
    monkeypatch.setattr(kernels, "computed_by_triton", lambda _: True)
    for module in (runner, kernels):
        monkeypatch.setattr(module, "stopwatch_for", lambda *_, **__: found)
    monkeypatch.setattr(kernels, "compile_all", lambda *_: None)
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: None)
    return found


def todo() -> list[KernelCase]:
    return to_tune([LANGUAGE.shapes["bench"]], ["swiglu"], [*GATES], ["fp32", "bf16"], CPU)


def tune(card: Card, results: Path) -> Session:
    with recorded(results) as write, Session(14, None, write) as session:
        run_tuning(todo(), CPU, session)
    return session


def test_each_kernel_takes_the_tiles_that_were_the_fastest_and_is_not_measured_again(card, tmp_path, monkeypatch):
    """Forward and backward, with each kind of gates; those that the card has no room for are left out."""
    assert [case.what for case in todo()] == ["bench fp32 swiglu gate-up", "bench bf16 swiglu gate-up"]
    assert not tune(card, tmp_path).failed
    rows, damaged = measurements.measurements()
    assert damaged == []
    assert {row.kernel_hash for row in rows} == {measurements.kernel_hash("swiglu")}
    found = {(row.kind, row.dtype): dict(row.tiles) for row in rows}
    assert len(found) == 6
    for (kind, _), tuned in found.items():
        name = kernels.KINDS[kind]
        assert tuned == {("swiglu", name, 20): LARGE, ("swiglu_backward", name, 20): LARGE}
    assert card.in_use() == [LARGE] * 6
    assert max(row.step_ms["fused"] for row in rows) < 12, "it was timed in the tiles that were chosen"
    assert todo() == []
    for where, name, value in [
        (kernels, "kernel_hash", lambda op: "another"),
        (kernels, "versions_here", lambda: ("1.13.1", "3.0")),
        (kernels, "device_here", lambda device: SimpleNamespace(name="another")),
        (measurements, "roots", list),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            assert len(todo()) == 2, name


def test_the_shapes_and_types_of_a_recipe(bench, monkeypatch):
    asked = []
    monkeypatch.setattr("comt_cli.training.devices.pick_device", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr(kernels, "to_tune", lambda *given: asked.append(given) or [])
    done = bench("kernels", "--tune", "--recipe", "table3", "--scale", "small", "--ops", "heads")
    assert done.exit_code == 0, done.exception
    ((shapes, ops, gates, dtypes, _),) = asked
    assert (ops, gates, dtypes) == (["heads"], [*GATES], ["bf16"])
    assert len({str(shape) for shape in shapes}) == len(shapes)
