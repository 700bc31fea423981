"""Devices by name and class, on processors that a file made up for the purpose describes."""

from __future__ import annotations

import platform
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.kernels import processors
from comt_cli.kernels.cpu import build
from comt_cli.kernels.processors import MOST_THREADS_RATIO, UNKNOWN, Device, device_of, processor_class, processor_name

AVX2 = "sse2 fma avx2"
AVX_512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl"
XEON = f"vendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Processor\nflags\t\t: {AVX_512} amx_tile amx_bf16\n"


@pytest.fixture
def cpuinfo(monkeypatch, tmp_path):
    """Says what /proc/cpuinfo has, on Linux of an architecture, whose processor PyTorch uses as it is."""
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)

    def write(text: str | None, machine: str = "x86_64") -> None:
        path = tmp_path / "cpuinfo"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(processors, "_CPUINFO", path)
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(sys, "platform", "linux")

    return write


@pytest.mark.parametrize(
    ("text", "machine", "expected"),
    [
        (XEON, "x86_64", "Intel AMX"),
        (f"vendor_id : GenuineIntel\nflags : {AVX_512} amx_tile\n", "x86_64", "Intel AVX-512"),
        (f"vendor_id : AuthenticAMD\nflags : {AVX_512}\n", "x86_64", "AMD AVX-512"),
        (f"vendor_id : AuthenticAMD\nflags : {AVX2} avx512f\n", "x86_64", "AMD AVX2"),
        ("vendor_id : AuthenticAMD\nflags : sse2 avx\n", "x86_64", "AMD x86_64"),
        (f"vendor_id : HygonGenuine\nflags : {AVX2}\n", "x86_64", "HygonGenuine AVX2"),
        ("CPU implementer : 0x41\nFeatures : fp asimd sve\n", "aarch64", "Arm SVE"),
        ("CPU implementer : 0xc0\nFeatures : fp asimd\n", "aarch64", "Ampere NEON"),
        ("hart : 0\nisa : rv64imafdc\n", "riscv64", UNKNOWN),
        (f"flags : {AVX2}\n", "x86_64", UNKNOWN),
        (None, "x86_64", UNKNOWN),
    ],
)
def test_classes(cpuinfo, text, machine, expected):
    cpuinfo(text, machine)
    assert processor_class() == expected


@pytest.mark.parametrize(
    ("capability", "on_xeon", "on_avx2", "on_arm"),
    [
        ("default", "Intel x86_64", "AMD x86_64", "Arm NEON"),
        ("avx2", "Intel AVX2", "AMD AVX2", "Arm SVE"),
        ("avx512", "Intel AVX-512", "AMD AVX2", "Arm SVE"),  # what it has not it cannot use
        ("no-such", "Intel AMX", "AMD AVX2", "Arm SVE"),
        ("", "Intel AMX", "AMD AVX2", "Arm SVE"),
    ],
)
def test_a_processor_that_is_used_as_an_older_one_is_in_its_class(
    cpuinfo, monkeypatch, capability, on_xeon, on_avx2, on_arm
):
    for text, machine, expected in (
        (XEON, "x86_64", on_xeon),
        (f"vendor_id : AuthenticAMD\nflags : {AVX2}\n", "x86_64", on_avx2),
        ("CPU implementer : 0x41\nFeatures : fp asimd sve\n", "aarch64", on_arm),
    ):
        cpuinfo(text, machine)
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
        assert processor_class() == expected


def test_the_capabilities_are_those_that_kernels_are_compiled_for():
    assert build.PRETENDED.keys() == processors._PRETENDED["x86_64"].keys()


def test_apples_processors_have_a_class(cpuinfo, monkeypatch):
    cpuinfo(None, "arm64")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert processor_class() == "Apple NEON"


def test_names(cpuinfo):
    cpuinfo(XEON + XEON.replace("Xeon", "Other"))
    assert processor_name() == "Intel(R) Xeon(R) Processor"
    for text in (None, "model name : unknown\n", ""):
        cpuinfo(text, "aarch64")
        assert processor_name() == "aarch64 CPU"


def test_what_is_used_as_an_older_processor_is_called_so(cpuinfo, monkeypatch):
    cpuinfo(XEON)
    for capability, name in (("avx2", " as AVX2"), ("default", " as x86_64"), ("no-such", "")):
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
        assert processor_name() == f"Intel(R) Xeon(R) Processor{name}"


NAMES = st.sampled_from(["A CPU", "Another, with a comma"])
DEVICES = st.one_of(
    st.builds(Device, st.just("cpu"), NAMES, st.sampled_from(["AMD AVX2", UNKNOWN]), st.integers(1, 64)),
    st.builds(Device, st.just("cuda"), NAMES, st.sampled_from(["sm_80", "sm_90"])),
)


@given(DEVICES)
def test_a_device_is_read_back_as_it_is_written(device):
    assert device_of(device.type, str(device), device.device_class) == device


@given(DEVICES, DEVICES)
def test_distances(one, other):
    """Symmetric; least for the same device and for no other; only within a type, a class and a range of threads."""
    assert one.distance(other) == other.distance(one)
    assert one.distance(one) == (False, 1.0)
    found = one.distance(other)
    assert (found == (False, 1.0)) == (one == other)
    if found is not None:
        assert (one.type, one.device_class) == (other.type, other.device_class)
        assert found[1] <= MOST_THREADS_RATIO
        assert one.name == other.name or one.device_class != UNKNOWN


@pytest.mark.parametrize(
    "parts", [("cpu", "A CPU", "AMD AVX2"), ("cpu", "A CPU, 2 threads", ""), ("cuda", "", "sm_90"), ("", "A", "B")]
)
def test_what_is_no_device(parts):
    with pytest.raises(ValueError, match="no device"):
        device_of(*parts)
