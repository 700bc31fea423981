"""Which of the measurements that are known say most about a device and a shape, and when they decide."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.kernels.measurements import MARGIN, Measured, MeasuredStep, about, nearest, nearest_steps
from comt_cli.kernels.processors import Device

THIS_CPU = Device("cpu", "Some CPU", "AMD AVX2", 2)
DEVICES = st.builds(
    Device,
    st.just("cpu"),
    st.sampled_from(["Some CPU", "Another CPU"]),
    st.sampled_from(["AMD AVX2", "Intel AMX"]),
    st.sampled_from([1, 2, 3, 16]),
)
COMMON = {
    "own": st.booleans(),
    "device": DEVICES,
    "torch": st.just("2.13.0"),
    "triton": st.just(""),
    "shape": st.sampled_from(["d128", "d512"]),
    "dtype": st.just("fp32"),
    "step_ms": st.just({"reference": 3.0, "fused": 2.0}),
    "error": st.just({"reference": 0.0, "fused": 0.0}),
}
ROWS = st.builds(
    Measured,
    **COMMON,
    op=st.just("swiglu"),
    kind=st.just("transponder"),
    rank=st.sampled_from([2, 4, 8]),
    width=st.sampled_from([64, 1024, 4096]),
    tokens=st.sampled_from([128, 512]),
)
STEPS = st.builds(MeasuredStep, **COMMON, size=st.sampled_from(["resnet18", "resnet50"]))


def named(rows):
    """Those of a device of this one's name, else all."""
    return [row for row in rows if row.device.name == THIS_CPU.name] or rows


@given(st.lists(ROWS, max_size=12), st.sampled_from([2, 4, 8]), st.sampled_from([64, 1024, 4096]))
def test_own_measurements_of_this_device_and_shape_come_first(rows, rank, width):
    """Then the program's of this shape; one's own of another shape are no better than the program's of another shape.
    What was measured on a device of another name counts where there is nothing else."""
    near = about(rows, THIS_CPU)
    assert near == [row for row in rows if row.device.device_class == "AMD AVX2" and row.device.threads <= 8]
    if not near:
        return
    found = nearest(near, THIS_CPU, rank, width)
    assert found in named(near)
    if matching := [row for row in named(near) if (row.rank, row.width) == (rank, width)]:
        best = [row for row in matching if row.own] or matching
        assert found in best
        threads = {row.device.threads for row in best}
        assert found.device.threads == 2 or 2 not in threads
        alike = [row.tokens for row in best if row.device == found.device]
        assert found.tokens == max(alike)


@given(st.lists(STEPS, max_size=12))
def test_one_step_of_each_size_is_one_s_own_where_there_is_one(rows):
    near = about(rows, THIS_CPU)
    found = nearest_steps(near, THIS_CPU)
    assert {row.size for row in found} == {row.size for row in (named(near) if near else [])}
    assert len(found) == len({row.size for row in found})
    for row in found:
        others = [each for each in named(near) if each.size == row.size]
        assert row in others
        assert row.own == any(each.own for each in others)


ERRORS = st.floats(0, 1)


@given(st.floats(0.5, 2), ERRORS, ERRORS, st.floats(0.1, 10))
def test_what_decides(ratio, first, second, unit):
    """The intervals decide, whichever is the faster and whatever the unit of time; more noise never decides more."""
    step_ms, error = {"a": ratio * unit, "b": unit}, {"a": first, "b": second}
    times = MeasuredStep(True, THIS_CPU, "", "", "", "fp32", step_ms, error, "resnet18")
    assert times.speed("b", "a") == pytest.approx(1 / times.speed("a", "b"))
    noisier = MeasuredStep(True, THIS_CPU, "", "", "", "fp32", step_ms, error | {"a": 2 * first + 0.1}, "resnet18")
    assert times.decides("a", "b") or not noisier.decides("a", "b")
    both = math.hypot(first, second)
    if max(ratio, 1 / ratio) > 1 + 1.01 * both:
        assert times.decides("a", "b")
        assert times.decides("b", "a")
    if both > MARGIN - 0.99 and max(ratio, 1 / ratio) < 1 + 0.99 * both:
        assert not times.decides("a", "b")
    endless = MeasuredStep(True, THIS_CPU, "", "", "", "fp32", step_ms, error | {"a": math.inf}, "resnet18")
    assert not endless.decides("a", "b")
