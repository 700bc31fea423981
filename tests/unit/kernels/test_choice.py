"""The choice between reference and kernels, with measurements made up for the purpose, and with the shipped ones."""

from __future__ import annotations

import csv
import importlib.util
import math
import re
from pathlib import Path
from typing import get_args

import pytest
import torch

from comt_cli.kernels import choice, measurements, processors
from comt_cli.kernels.choice import Choice, Gates, Op, choose, version_of
from comt_cli.kernels.processors import UNKNOWN, Device, processor_class
from comt_cli.kernels.triton import tiles

ROOT = Path(__file__).parents[3]
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
TRANSPONDER, COMT = Gates(channel=True, scalar=True, rank=8), Gates(channel=False, scalar=True, rank=2)
HERE = "Some CPU, 2 threads"
THIS_CPU, H200 = Device("cpu", "Some CPU", "AMD AVX2", 2), Device("cuda", "NVIDIA H200", "sm_90")
ROW = {
    "device": HERE, "device_type": "cpu", "device_class": "AMD AVX2", "op": "swiglu", "shape": "d128", "tokens": 512,
    "width": 1024, "gates": "transponder-r8", "dtype": "fp32", "torch": torch.__version__, "rounds": 1,
    "triton": version_of("triton") or "", "git_commit": "abc", "kernel_hash": "", "tiles": "", "variant": "",
    "step_ms": "", "step_ms_p10": "", "step_ms_p90": "", "step_ms_uncertainty": "", "step_ms_settled": "",
}  # fmt: skip
ON_H200 = {
    "device": "NVIDIA H200", "device_type": "cuda", "device_class": "sm_90",
    "kernel_hash": measurements.kernel_hash("swiglu"),
}  # fmt: skip
ALL_THREE = {"reference": 6.0, "reference-compiled": 3.0, "fused": 2.0}
SLOW = {**ALL_THREE, "fused": 5.0}


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A machine that can run all kernels, and a function that writes what was measured: rows of what differs from ROW,
    each with its times by variant."""
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: None)
    monkeypatch.setattr(choice, "device_here", lambda device: THIS_CPU if device.type == "cpu" else H200)
    monkeypatch.setattr(measurements, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path / "own", tmp_path / "shipped"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())

    def write(*rows: tuple[dict, dict[str, float]], root: str = "own", folder: str = "here") -> Path:
        path = tmp_path / root / folder / "kernels.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*ROW])
            writer.writeheader()
            for changes, times in rows:
                for variant, step_ms in times.items():
                    writer.writerow({**ROW, **changes, "variant": variant, "step_ms": step_ms})
        return path

    return write


def ask(
    wanted="auto", op="swiglu", device=CPU, dtype=torch.float32, width=1024, gates=TRANSPONDER, compiled=True, **more
) -> Choice:
    return choose(op, wanted, device, dtype, width, gates, compiled=compiled, **more)


def speed(found: Choice) -> float | None:
    """The speed over the reference's that decided; None where no measurement did."""
    said = re.match(r"([\d.]+) times as fast", found.reason)
    return said and float(said[1])


@pytest.mark.parametrize(("fused", "taken"), [(2.0, True), (2.8, True), (2.99, False), (3.75, False)])
def test_what_is_faster_is_taken_and_nothing_else(measured, fused, taken):
    measured(({}, {**ALL_THREE, "fused": fused}))
    found = ask()
    assert (found.fused, speed(found)) == (taken, pytest.approx(3 / fused, abs=0.005))
    assert f" on {HERE} (" in found.reason
    assert ask(compiled=False).fused, "the eager reference, which would run then, takes 6"
    assert ask("fused") == Choice(True, "as asked")
    assert ask("reference") == Choice(False, "as asked")


def test_where_there_is_no_compiler_it_is_the_reference(measured, monkeypatch):
    measured(({}, ALL_THREE), (ON_H200, ALL_THREE))
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: "there is no C++ compiler")
    found = ask(), ask("fused"), choice.choose_loss("auto", CPU, torch.float32)
    assert found == (Choice(False, "there is no C++ compiler"),) * 3
    monkeypatch.setattr(choice, "liger", lambda: "liger-kernel is not installed")
    assert choice.choose_loss("auto", CUDA, torch.bfloat16) == Choice(False, "liger-kernel is not installed")
    assert ask(device=CUDA).fused
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not ask("fused", device=CUDA).fused


@pytest.mark.parametrize(("width", "taken"), [(1, True), (1023, True), (1024, False), (4096, True)])
def test_the_very_width_decides_or_else_the_largest_shape(measured, width, taken):
    measured(({}, SLOW), ({"width": 4096, "tokens": 2048}, ALL_THREE), ({"width": 2048, "tokens": 2048}, SLOW))
    assert ask(width=width).fused is taken


@pytest.mark.parametrize(
    ("question", "changes"),
    [
        ({"op": "heads"}, {"op": "heads"}),
        ({"dtype": torch.bfloat16}, {"dtype": "bf16"}),
        ({"gates": COMT}, {"gates": "comt-r2"}),
        ({"gates": Gates(channel=True, scalar=False, rank=20)}, {"gates": "transponder-r32"}),
        ({"device": CUDA}, ON_H200),
    ],
)
def test_operation_type_gates_and_kind_of_device_must_be_those_measured(measured, question, changes):
    measured(({}, ALL_THREE))
    assert speed(ask(**question)) is None
    measured((changes, ALL_THREE))
    assert ask(**question).fused
    assert not ask().fused


def test_without_gates_a_kernel_is_taken_only_where_nothing_is_compiled_and_training(measured):
    measured(({"gates": "none"}, ALL_THREE))
    found = [ask(gates=None, compiled=on, training=train).fused for on, train in ((1, 1), (0, 1), (0, 0))]
    assert found == [False, True, False]


def test_the_exact_device_then_its_class(measured):
    measured(({"device": "Another CPU, 2 threads"}, SLOW), folder="another")
    assert speed(ask()) == 0.6
    assert " on Another CPU, 2 threads (here " in ask().reason, "of the same class"
    measured(({"width": 8}, SLOW), folder="here")
    assert f" on {HERE} (" in ask().reason
    measured(({}, ALL_THREE), root="shipped")
    assert speed(ask()) == 0.6, "the user's own come before the shipped, of whatever width"


@pytest.mark.parametrize("other", [{"git_commit": "def"}, {"rounds": 2}], ids=str)
def test_times_of_two_runs_are_not_compared(measured, other):
    """Rows of one file, where a later run replaced a part."""
    measured((other, {"fused": 1.0, "reference": 2.0}), ({}, {"reference-compiled": 3.0}))
    assert speed(ask(compiled=False)) == 2
    assert speed(ask(compiled=True)) is None


@pytest.mark.parametrize(
    "stranger", [{"device_class": "AMD AVX-512"}, {"device": "Some CPU, 9 threads"}, {"device_class": UNKNOWN}], ids=str
)
def test_a_device_that_says_nothing_about_this_one(measured, stranger):
    """Another instruction set, whatever the name; or more than four times as many threads."""
    measured((stranger, ALL_THREE))
    assert "no kernel was measured" in ask().reason


@pytest.mark.parametrize(
    ("noise", "decided"),
    [  # of each of two times, the slower of which is 1.5 times the other
        ({"step_ms_uncertainty": "0.3"}, True),  # sqrt(2) 0.3 < 0.5
        ({"step_ms_uncertainty": "0.4"}, False),
        ({"step_ms_settled": "False"}, False),  # too few rounds for an interval
        ({"step_ms_p10": 1.8, "step_ms_p90": 3.3}, False),  # of an older version, which knew the percentiles alone
        ({"step_ms_p10": 1.9, "step_ms_p90": 2.6}, True),
    ],
    ids=str,
)
def test_what_is_too_noisy_to_decide_counts_as_not_measured(measured, noise, decided):
    measured((noise, {"reference-compiled": 3.0, "fused": 2.0}))
    assert (speed(ask()), ask().fused) == (1.5 if decided else None, decided)


# ---- on a GPU


@pytest.mark.parametrize(
    "changes", [{"kernel_hash": "another"}, {"device_class": "sm_80"}, {"width": 1040}, {"tokens": 100}], ids=str
)
def test_what_says_nothing_about_a_gpu(measured, changes):
    measured(({**ON_H200, **changes}, ALL_THREE))
    assert speed(ask(device=CUDA, tokens=512)) is None


@pytest.mark.parametrize("wanted", ["auto", "fused"])
def test_where_there_is_no_kernel_it_is_the_reference(measured, wanted):
    measured(({}, ALL_THREE), (ON_H200, ALL_THREE))
    wide = {"gates": Gates(channel=True, scalar=False, rank=129)}, {"device": CUDA, "gates": Gates(True, True, 9)}
    for question in ({"dtype": torch.float16}, {"device": torch.device("mps")}, *wide):
        assert not ask(wanted, **question).fused


@pytest.mark.parametrize("wanted", ["auto", "fused"])
def test_kernels_are_launched_as_they_were_measured(measured, monkeypatch, wanted):
    """Also where they are slower and wanted all the same. The tiles of other choices stay, or are forgotten."""
    text = "swiglu channel 688: 16 64 1 0; swiglu_backward channel 688: 16 64 1 8 255"
    tuned, used = measurements.tiles_of(text), []
    monkeypatch.setattr(tiles, "use", lambda tuned: used.append(dict(tuned)))
    measured(({**ON_H200, "tiles": text}, SLOW))
    found = ask(wanted, device=CUDA)
    assert (found.tiles, found.fused) == (tuned, wanted == "fused")
    assert measurements.tiles_text(found.tiles) == text
    another = Choice(True, "for the test", tiles=((("heads", "none", 64), tiles.Tile(1, 2, 4)),))
    choice.use_tiles([another], only=True)
    choice.use_tiles([Choice(True, "", tiles=tuned), Choice(False, "", tiles=((("heads", "none", 1), None),))])
    choice.use_tiles([Choice(True, "", tiles=tuned)], only=True)
    assert used == [dict(another.tiles), dict(another.tiles + tuned), dict(tuned)]


# ---- measurements and devices


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"a,b\n1,2\n", ",".join(ROW).encode() + b"\nSome CPU", "tiles", "infinite"]
)
def test_a_damaged_file_is_named_and_decides_nothing(measured, content):
    path = measured(({"tiles": "swiglu wide 688: 1"} if content == "tiles" else {}, {"fused": math.inf}))
    if isinstance(content, bytes):
        path.write_bytes(content)
    assert measurements.measurements() == ([], [path])
    assert not ask().fused
    measured(({}, ALL_THREE), folder="whole")
    assert ask().fused


@pytest.mark.parametrize(
    ("text", "pretended", "expected"),
    [
        ("vendor_id\t: GenuineIntel\nflags\t\t: sse2 fma avx2 amx_tile amx_bf16\n", "", "Intel AMX"),
        ("vendor_id : GenuineIntel\nflags : sse2 fma avx2 amx_tile amx_bf16\n", "avx2", UNKNOWN),
        ("vendor_id : AuthenticAMD\nflags : sse2 fma avx2 avx512f\n", "", "AMD AVX2"),
        ("CPU implementer : 0x41\nFeatures : fp asimd sve\n", "", UNKNOWN),
        (None, "", UNKNOWN),
    ],
)
def test_classes_of_processors(monkeypatch, tmp_path, text, pretended, expected):
    """With `ATEN_CPU_CAPABILITY` PyTorch uses other instructions than those that were measured."""
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(processors, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", pretended)
    assert processor_class() == expected


def test_the_shipped_measurements_are_the_committed_ones_and_whole(monkeypatch):
    """`make measured` copies them. Steps of bf16 under autocast are among them."""

    def contents(root: Path) -> dict[str, bytes]:
        files = [path for name in (measurements.FILE, measurements.STEP_FILE) for path in root.glob(f"*/{name}")]
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}

    monkeypatch.setattr(measurements, "roots", lambda: [measurements.SHIPPED])
    assert contents(measurements.SHIPPED) == contents(ROOT / "results" / "bench") != {}
    steps = {file.parent.name: file.read_bytes() for file in (ROOT / "results" / "bench").glob("nvidia-*/step.csv")}
    assert {file.parent.name: file.read_bytes() for file in measurements.SHIPPED.glob("*/step.csv")} == steps
    found, damaged = measurements.measurements()
    chosen = [each for each in found if each.op in get_args(Op)]
    assert ({each.op for each in chosen}, damaged) == ({*get_args(Op)}, [])
    assert all({"reference", "reference-compiled"} <= each.step_ms.keys() for each in chosen)
    assert all(each.torch and each.device.device_class != UNKNOWN for each in chosen)
    assert "Intel AMX" in {each.device.device_class for each in chosen}
    steps, _ = measurements.measurements(measurements.STEP_FILE)
    assert ("resnet18-b32", "bf16") in {(each.op, each.dtype) for each in steps if each.device.type == "cpu"}
