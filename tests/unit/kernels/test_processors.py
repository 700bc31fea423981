"""Devices by name and class, on processors that a file made up for the purpose describes."""

from __future__ import annotations

import platform

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.kernels import processors
from comt_cli.kernels.cpu import build
from comt_cli.kernels.processors import MOST_RATIO, UNKNOWN, Device, device_of, processor_class, processor_name

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
        ("CPU implementer : 0x41\nFeatures : fp asimd sve\n", "aarch64", UNKNOWN),
        ("hart : 0\nisa : rv64imafdc\n", "riscv64", UNKNOWN),
        (f"flags : {AVX2}\n", "x86_64", UNKNOWN),
        (None, "x86_64", UNKNOWN),
    ],
)
def test_classes(cpuinfo, text, machine, expected):
    cpuinfo(text, machine)
    assert processor_class() == expected


@pytest.mark.parametrize(
    ("capability", "on_xeon", "on_avx2"),
    [
        ("default", "Intel x86_64", "AMD x86_64"),
        ("avx2", "Intel AVX2", "AMD AVX2"),
        ("avx512", "Intel AVX-512", "AMD AVX2"),  # what it has not it cannot use
        ("no-such", "Intel AMX", "AMD AVX2"),
        ("", "Intel AMX", "AMD AVX2"),
    ],
)
def test_a_processor_that_is_used_as_an_older_one_is_in_its_class(cpuinfo, monkeypatch, capability, on_xeon, on_avx2):
    for text, machine, expected in (
        (XEON, "x86_64", on_xeon),
        (f"vendor_id : AuthenticAMD\nflags : {AVX2}\n", "x86_64", on_avx2),
    ):
        cpuinfo(text, machine)
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
        assert processor_class() == expected


def test_the_capabilities_are_those_that_kernels_are_compiled_for():
    assert build.PRETENDED.keys() == processors._PRETENDED.keys()


def test_names(cpuinfo):
    cpuinfo(XEON + XEON.replace("Xeon", "Other"))
    assert processor_name() == "Intel(R) Xeon(R) Processor"
    for text in (None, "model name : unknown\n", ""):
        cpuinfo(text, "aarch64")
        assert processor_name() == "aarch64 CPU"


NAMES = st.sampled_from(["A CPU", "Another, with a comma"])
DEVICES = st.one_of(
    st.builds(Device, st.just("cpu"), NAMES, st.sampled_from(["AMD AVX2", UNKNOWN]), st.integers(1, 64)),
    st.builds(Device, st.just("cuda"), NAMES, st.sampled_from(["sm_80", "sm_90"])),
)


@given(DEVICES)
def test_a_device_is_read_back_as_it_is_written(device):
    assert device_of(device.type, str(device), device.device_class) == device


@given(DEVICES, DEVICES)
def test_what_says_something_about_a_device(one, other):
    """The same one, and others of its type and class with about as many threads."""
    assert one.says_about(one)
    assert one.says_about(other) == other.says_about(one)
    if one.says_about(other):
        assert (one.type, one.device_class) == (other.type, other.device_class)
        assert max(one.threads, other.threads) <= MOST_RATIO * min(one.threads, other.threads)
        assert one.name == other.name or one.device_class != UNKNOWN


@pytest.mark.parametrize(
    "parts", [("cpu", "A CPU", "AMD AVX2"), ("cpu", "A CPU, 2 threads", ""), ("cuda", "", "sm_90"), ("", "A", "B")]
)
def test_what_is_no_device(parts):
    with pytest.raises(ValueError, match="no device"):
        device_of(*parts)
