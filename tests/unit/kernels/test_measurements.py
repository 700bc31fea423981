"""Which of the measurements that are known say most about a device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from comt_cli.kernels.measurements import Measured, nearest, of_nearest_device
from comt_cli.kernels.processors import Device

THIS_CPU = Device("cpu", "Some CPU", "AMD AVX2", 2)
DEVICES = st.builds(
    Device,
    st.just("cpu"),
    st.sampled_from(["Some CPU", "Another CPU"]),
    st.sampled_from(["AMD AVX2", "Intel AMX"]),
    st.sampled_from([1, 2, 3, 16]),
)
ROWS = st.builds(
    Measured,
    own=st.booleans(),
    device=DEVICES,
    torch=st.just("2.13.0"),
    triton=st.just(""),
    shape=st.sampled_from(["d128", "d512"]),
    dtype=st.just("fp32"),
    step_ms=st.just({"reference": 3.0, "fused": 2.0}),
    op=st.just("swiglu"),
    kind=st.just("transponder"),
    rank=st.sampled_from([2, 4, 8]),
    width=st.sampled_from([64, 1024, 4096]),
    tokens=st.sampled_from([128, 512]),
)


@given(st.lists(ROWS, max_size=12), st.sampled_from([2, 4, 8]), st.sampled_from([64, 1024, 4096]))
def test_own_measurements_of_this_device_come_first(rows, rank, width):
    """Of whatever width and rank; then the program's of this device, then what is farther. What is left is of one
    device, and all of it the user's or none."""
    near = of_nearest_device(rows, THIS_CPU)
    here = [row for row in rows if row.device == THIS_CPU]
    own = [row for row in here if row.own]
    assert all(any(row is each for each in rows) for row in near)
    assert len({(row.own, row.device) for row in near}) <= 1
    assert bool(near) == any(row.device.distance(THIS_CPU) is not None for row in rows)
    if here:
        assert near == (own or here)
        assert nearest(near, rank, width).own == bool(own)
