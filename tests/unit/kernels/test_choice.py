"""The choice between reference and kernels: every rule of it, with measurements made up for the purpose."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from choice_cases import (
    ALL_THREE,
    COMT,
    CPU,
    CUDA,
    HEAD,
    HERE,
    INTERVAL,
    OLDER,
    ON_H200,
    SLOW,
    THIS_CPU,
    ask,
)

from comt_cli.kernels import choice, measurements
from comt_cli.kernels.choice import Choice, Gates, choose
from comt_cli.kernels.processors import UNKNOWN

pytestmark = pytest.mark.usefixtures("machine")


def test_what_is_faster_is_taken(measured):
    measured(({}, ALL_THREE))
    found = ask()
    assert found == Choice(
        True, f"1.50 times as fast as the compiled reference on {HERE} (1024 wide, rank 8, fp32)", 1.5, HERE
    )
    assert str(found) == f"fused ({found.reason})"


@pytest.mark.parametrize(("fused", "taken"), [(2.8, True), (2.99, False), (3.0, False), (3.75, False)])
def test_what_is_not_faster_is_never_taken(measured, fused, taken):
    measured(({}, {**ALL_THREE, "fused": fused}))
    assert ask().fused is taken
    assert ask(compiled=False).fused, "the eager reference, which would run then, takes 6"
    if fused == 3.75:
        assert str(ask()).startswith("reference (no more than 0.80 times as fast as the compiled reference on")
    if fused == 2.99:
        assert ask().reason.startswith("no more than 1.00 times as fast as the compiled reference"), "within the spread"


def test_without_gates_a_kernel_is_taken_only_where_nothing_is_compiled_and_training(measured):
    """Measured alone it is faster; whole compiled steps and decoding were not."""
    measured(({"gates": "none"}, ALL_THREE))
    assert not ask(gates=None, compiled=True).fused
    assert ask(gates=None, compiled=False).fused
    assert not choose("swiglu", "auto", CPU, torch.float32, 1024, None, compiled=False, training=False).fused
    assert choose("swiglu", "fused", CPU, torch.float32, 1024, None, compiled=True).fused, "it was asked for"


@pytest.mark.parametrize(
    "question",
    [{"op": "heads"}, {"dtype": torch.bfloat16}, {"gates": COMT}, {"gates": None, "compiled": False}],
    ids=["operation", "type", "gates", "no gates"],
)
def test_operation_type_and_gates_must_be_those_measured(measured, question):
    measured(({}, ALL_THREE))
    assert "was not measured beside" in ask(**question).reason
    wanted = {"op": "heads", "dtype": "bf16"}
    changes = {key: wanted[key] for key in question if key in wanted}
    if "gates" in question:
        changes["gates"] = "comt-r2" if question["gates"] else "none"
    measured((changes, ALL_THREE))
    assert ask(**question).fused
    assert not ask().fused


@pytest.mark.parametrize(("width", "taken"), [(1, True), (1023, True), (1024, False), (4096, True), (9999, True)])
def test_the_very_width_decides_or_else_the_largest_shape(measured, width, taken):
    measured(({}, SLOW), ({"width": 4096, "tokens": 2048}, ALL_THREE), ({"width": 2048, "tokens": 2048}, SLOW))
    assert ask(width=width).fused is taken


@pytest.mark.parametrize(("rank", "taken"), [(2, True), (8, True), (16, True), (20, False), (32, False)])
def test_a_near_rank_decides(measured, rank, taken):
    measured(({}, ALL_THREE), ({"gates": "transponder-r32"}, {**ALL_THREE, "fused": 5.0}))
    found = ask(gates=Gates(channel=True, scalar=False, rank=rank))
    assert found.fused is taken
    assert f"rank {8 if rank < 17 else 32}" in found.reason


def test_the_exact_device_then_its_class_then_the_shape(measured):
    """And the reason says what was not this very device."""
    assert "no kernel was measured on this processor" in ask().reason
    another = {"device": "Another CPU, 2 threads"}
    measured((another, SLOW), folder="another")
    assert not ask().fused
    assert "on Another CPU, 2 threads (of this one's class, AMD AVX2) (1024 wide" in ask().reason
    measured(({"device": "Some CPU, 1 thread", "width": 64}, ALL_THREE), folder="nearly")
    assert ask().measured_on == "Some CPU, 1 thread (here 2)", "of whatever width"
    measured(({"width": 8}, SLOW), folder="here")
    assert ask().measured_on == HERE
    assert not ask().fused
    assert "no kernel was measured on this GPU" in ask(device=CUDA).reason


def test_what_is_asked_for_is_taken(measured):
    measured(({}, {**ALL_THREE, "fused": 100.0}))
    assert ask("fused") == Choice(True, "as asked")
    assert ask("fused", op="heads", gates=None).fused, "measured or not"
    measured(({}, ALL_THREE))
    assert ask("reference") == Choice(False, "as asked")


@pytest.mark.parametrize(
    "stranger",
    [
        {"device_class": "Intel AVX2"},
        {"device_class": "AMD AVX-512"},
        {"device": "Other CPU, 2 threads", "device_class": "Intel AVX2"},
        {"device": "Some CPU, 9 threads"},
        {"device_class": UNKNOWN},
    ],
    ids=str,
)
def test_a_device_that_says_nothing_about_this_one(measured, stranger):
    """Another vendor, another instruction set, whatever the name; or more than four times as many threads."""
    measured((stranger, ALL_THREE))
    assert "was measured on this processor" in ask().reason
    measured((stranger, ALL_THREE), ({}, SLOW))
    assert ask().speed == pytest.approx(0.6)


ANOTHER_RUN = [{"git_commit": "def"}, {"rounds": 2}]


@pytest.mark.parametrize("other", ANOTHER_RUN, ids=str)
def test_times_of_two_runs_are_not_compared(measured, other):
    """Rows of one file, where a later run replaced a part: of another commit, or in another number of rounds."""
    measured((other, {"fused": 1.0}), ({}, {"reference": 6.0, "reference-compiled": 3.0}))
    assert "was not measured beside the compiled reference" in ask().reason
    measured((other, {"fused": 1.0, "reference": 2.0}), ({}, {"reference-compiled": 3.0}))
    assert ask(compiled=False).speed == 2
    assert ask(compiled=True).speed is None


NOISE = [  # of each of two times, the slower of which is 1.5 times the other
    ({INTERVAL[0]: "0.3", INTERVAL[1]: "False"}, True),  # sqrt(2) 0.3 < 0.5
    ({INTERVAL[0]: "0.4", INTERVAL[1]: "True"}, False),
    ({INTERVAL[0]: "", INTERVAL[1]: "False"}, False),  # too few rounds for an interval
    ({OLDER[0]: "0.3", OLDER[1]: "False"}, True),
    ({OLDER[0]: "0.4", OLDER[1]: "False"}, False),
    ({OLDER[0]: "0.4", INTERVAL[0]: "0.01"}, True),
    ({"step_ms_p10": 1.8, "step_ms_p90": 3.3}, False),  # of an older version, which knew the percentiles alone
    ({"step_ms_p10": 1.9, "step_ms_p90": 2.6}, True),
    ({"step_ms_p10": "", "step_ms_p90": ""}, True),
]


@pytest.mark.parametrize(("noise", "decided"), NOISE, ids=str)
@pytest.mark.parametrize("fused", [2.0, 4.5])
def test_what_is_too_noisy_to_decide_counts_as_not_measured(measured, noise, decided, fused):
    """Whether the kernel would be the faster or the slower one; what decides may be of another width."""
    measured((noise, {"reference-compiled": 3.0, "fused": fused}))
    speed = 3 / fused
    if fused == 2 or not noise.get("step_ms_p90"):  # percentiles are absolute: those are of 2 and 3
        assert ask().speed == (pytest.approx(speed) if decided else None)
        assert ask().fused == (decided and fused == 2)
    if not decided and "step_ms_p90" not in noise:
        assert "too much noise to decide: comt bench kernels" in ask().reason
        measured((noise, {"reference-compiled": 3.0, "fused": fused}), ({"width": 4096, "shape": "d512"}, ALL_THREE))
        assert ask().reason.endswith("(4096 wide, rank 8, fp32)")
        assert ask().fused


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({"dtype": torch.float64}, "the kernels do not compute in float64"),
        ({"device": torch.device("mps")}, "there are no kernels for mps"),
        ({"device": torch.device("meta")}, "there are no kernels for meta"),
        ({"dtype": torch.float16}, "the C++ kernels do not compute in float16"),
        ({"gates": Gates(channel=True, scalar=False, rank=129)}, "the kernels take bottlenecks up to 128 wide"),
        (
            {"device": CUDA, "gates": Gates(channel=True, scalar=True, rank=9)},
            "the Triton kernels take channel gates with bottlenecks up to 8 wide",
        ),
        (
            {"device": CUDA, "gates": Gates(channel=False, scalar=True, rank=129)},
            "the kernels take bottlenecks up to 128 wide",
        ),
    ],
)
@pytest.mark.parametrize("wanted", ["auto", "fused"])
def test_where_there_is_no_kernel(measured, wanted, question, reason):
    measured(({}, ALL_THREE))
    assert ask(wanted, **question) == Choice(False, reason)


@pytest.mark.parametrize("wanted", ["auto", "fused"])
def test_where_a_kernel_cannot_be_built(measured, monkeypatch, wanted):
    measured(({}, ALL_THREE), (ON_H200, ALL_THREE))
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: "there is no C++ compiler")
    assert ask(wanted) == Choice(False, "there is no C++ compiler")
    assert ask(wanted, device=CUDA).fused
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert ask(wanted, device=CUDA) == Choice(False, "Triton is not installed: it comes with PyTorch's CUDA build")


def test_looking_for_a_compiler_builds_nothing(monkeypatch):
    from comt_cli.kernels.cpu import build

    monkeypatch.undo()
    monkeypatch.setattr(build, "available", lambda: pytest.fail("it compiles"))
    monkeypatch.setattr(build, "compile_library", lambda *_: pytest.fail("it compiles"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler" in choice.cpu_obstacle(may_build=False)
    monkeypatch.setattr(build, "available", lambda: "it was tried")
    assert choice.cpu_obstacle() == "it was tried"


# ---- files


LINE = b'{head}"Some CPU, 2 threads",cpu,AMD AVX2,swiglu,d,1,1,none,fp32,fused,1,1,1,1,2.0,1,1,1,1,0,2.13.0,,abc\n'
DAMAGE = {
    "not text": b"\xff\xfe\x00",
    "another table": b"a,b\n1,2\n",
    "no number": LINE.replace(b"2.0", b"fast"),
    "infinite": LINE.replace(b"2.0", b"inf"),
    "half a line": LINE + b'"Some CPU, 2 threads",cpu,AMD',
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_no_crash_and_says_nothing(measured, content):
    path = measured()
    path.write_bytes(content.replace(b"{head}", HEAD.encode() + b"\n"))
    assert measurements.measurements() == ([], [path])
    assert ask().reason.endswith(f"AMD AVX2: comt bench kernels ({path} is damaged)")
    measured(({}, ALL_THREE), folder="whole")
    assert ask().fused


def test_the_users_own_measurements_come_before_those_of_the_program(measured, monkeypatch, tmp_path):
    """And they are found from every folder, and nowhere but in the cache."""
    monkeypatch.undo()
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: None)
    monkeypatch.setattr(choice, "device_here", lambda device: THIS_CPU)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measurements, "SHIPPED", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    measured(({}, ALL_THREE), root="results/bench")
    measured(({}, ALL_THREE), root="runs/results/bench")
    assert "was measured on this processor" in ask().reason
    measured(({}, ALL_THREE), root="shipped")
    assert ask().speed == 1.5
    measured(({}, {**ALL_THREE, "fused": 4.0}), ({"op": "heads"}, ALL_THREE), root="cache/measured", folder="mine")
    assert ask().speed == 0.75
    assert ask(op="heads").speed == 1.5
