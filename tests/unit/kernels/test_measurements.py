"""Which of the measurements that are known say most about a device, and when they decide."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.kernels.measurements import MARGIN, Measured, of_one_origin
from comt_cli.kernels.processors import Device

THIS_CPU = Device("cpu", "Some CPU", "AMD AVX2", 2)
NOW = ("2.13.0", "3.7")
DEVICES = st.builds(
    Device,
    st.just("cpu"),
    st.sampled_from(["Some CPU", "Another CPU"]),
    st.sampled_from(["AMD AVX2", "Intel AMX"]),
    st.sampled_from([1, 2, 3, 16]),
)


def row(own: bool, device: Device, torch: str = NOW[0], step_ms: object = (), error: object = ()) -> Measured:
    of = "d128", "fp32", "swiglu", "transponder", 8, 1024, 512, "", ()
    return Measured(own, device, torch, NOW[1], *of, dict(step_ms), dict(error))


@given(st.lists(st.builds(row, st.booleans(), DEVICES, st.sampled_from(["2.13.0", "2.11.0"])), max_size=12))
def test_one_origin_decides_and_own_measurements_of_this_device_come_first(rows):
    """Then the program's of a device of this name, then those of others of its class, in the same order; of those this
    very number of threads."""
    found = of_one_origin(rows, THIS_CPU, NOW)
    known = [each for each in rows if each.device.device_class == "AMD AVX2" and each.device.threads <= 8]
    best = [each for each in known if each.device.name == THIS_CPU.name] or known
    best = [each for each in best if each.own] or best
    assert all(each in best for each in found)
    assert bool(found) == bool(best)
    assert len({(each.device, each.own) for each in found}) <= 1
    if any(each.device.threads == 2 for each in best):
        assert {each.device.threads for each in found} == {2}
    alike = [each for each in best if found and each.device == found[0].device]
    assert not any(each.torch == NOW[0] for each in alike) or {each.torch for each in found} == {NOW[0]}


@pytest.mark.parametrize(
    ("here", "names_and_threads", "chosen"),
    [
        (4, [("Another CPU", 16), ("Another CPU", 4)], ("Another CPU", 4)),
        (4, [("A CPU", 16), ("B CPU", 4)], ("B CPU", 4)),
        (4, [("B CPU", 4), ("A CPU", 4)], ("A CPU", 4)),
        (8, [("Some CPU", 32), ("Some CPU", 9)], ("Some CPU", 9)),
    ],
)
def test_the_nearest_number_of_threads_decides_then_the_name(here, names_and_threads, chosen):
    rows = [row(False, Device("cpu", name, "AMD AVX2", threads)) for name, threads in names_and_threads]
    (found,) = of_one_origin(rows, replace(THIS_CPU, threads=here), NOW)
    assert (found.device.name, found.device.threads) == chosen


ERRORS = st.floats(0, 1)


@given(st.floats(0.5, 2), ERRORS, ERRORS, st.floats(0.1, 10))
def test_what_decides(ratio, first, second, unit):
    """The intervals decide, whichever is the faster and whatever the unit of time; more noise never decides more."""
    step_ms, error = {"a": ratio * unit, "b": unit}, {"a": first, "b": second}
    times = row(True, THIS_CPU, step_ms=step_ms, error=error)
    assert times.speed("b", "a") == pytest.approx(1 / times.speed("a", "b"))
    noisier = row(True, THIS_CPU, step_ms=step_ms, error=error | {"a": 2 * first + 0.1})
    assert times.decides("a", "b") or not noisier.decides("a", "b")
    both = math.hypot(first, second)
    if max(ratio, 1 / ratio) > 1 + 1.01 * both:
        assert times.decides("a", "b")
        assert times.decides("b", "a")
    if both > MARGIN - 0.99 and max(ratio, 1 / ratio) < 1 + 0.99 * both:
        assert not times.decides("a", "b")
    assert not row(True, THIS_CPU, step_ms=step_ms, error=error | {"a": math.inf}).decides("a", "b")
    assert not times.decides("a", "c")
