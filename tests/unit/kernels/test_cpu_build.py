"""Compiling the CPU kernels: every way to fail gives a reason, and what is kept is used again."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import stat
import sys
from pathlib import Path

import pytest
import torch
from same_bits import same_integers

from comt_cli.kernels.cpu import build, calls
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.swiglu import reference

SMALL = 'extern "C" __attribute__((visibility("default"))) int comt_answer() { return 42; }\n'
NEEDS_LINUX = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in build.NATIVE, reason="the kernels are built on Linux only"
)
BUILDS = pytest.mark.skipif(
    NEEDS_LINUX.args[0] or not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++", "c++"))),
    reason="no C++ compiler",
)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, a small source, and nothing remembered; gives the cache folder."""
    sources = tmp_path / "sources"
    (sources / "answer").mkdir(parents=True)
    (sources / "answer" / "answer.cpp").write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(build, "FOLDER", sources)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    for name in ("available", "library"):
        monkeypatch.setattr(build, name, getattr(build, name).__wrapped__)
    monkeypatch.setattr(calls, "library", build.library)
    return tmp_path / "cache"


def kept_in(cache: Path) -> Path:
    return cache / f"kernels-{os.getuid()}"


@BUILDS
def test_what_was_compiled_is_kept_and_used_again(fresh, monkeypatch):
    assert build.available() is None
    assert build.library().comt_answer() == 42
    monkeypatch.setattr(build, "compile_library", lambda *_: pytest.fail("compiled again"))
    assert build.available() is None


@BUILDS
def test_what_others_could_have_written_is_not_loaded(fresh, monkeypatch):
    """A cache folder is code: a library in it runs as whoever loads it, and its hash is its own."""
    assert build.available() is None
    folder = kept_in(fresh)
    (kept,) = folder.glob("*.so")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    for path, mode in ((kept, 0o600), (folder, 0o700)):
        for others in (0o020, 0o002):
            path.chmod(mode | others)
            assert f"{path} is a link, of another user or writable" in (build.available() or "")
        path.chmod(mode)
    assert build.available() is None
    with monkeypatch.context() as patch:
        owned = [*os.lstat(folder)]
        owned[4] = os.getuid() + 1  # st_uid
        patch.setattr(Path, "lstat", lambda _: os.stat_result(owned))
        assert "of another user" in (build.available() or "")
    elsewhere = kept.rename(fresh / "elsewhere.so")
    kept.symlink_to(elsewhere)
    assert f"{kept} is a link" in (build.available() or "")


@NEEDS_LINUX
def test_without_a_compiler(fresh, monkeypatch):
    """The module can be imported, and says why it cannot compute."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler: none of no-such-compiler" in (build.available() or "")
    calls._function.cache_clear()
    with pytest.raises(build.Unavailable):
        calls.swiglu(torch.randn(2, 6), Modulation(None, None, 1.0, 0, (False, False)), 3, 3)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(fresh))
    assert "no C++ compiler" in (build.available() or "")


@NEEDS_LINUX
@pytest.mark.parametrize(
    ("compiles", "reason"),
    [
        ("echo a: note: hm >&2; echo a: error: what is this >&2; exit 3", "status 3: a: error: what is this"),
        ("exit 1", "status 1"),
        ("exit 0", "wrote no file for the CPU kernels"),
        ('while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"', "invalid ELF header|file too short"),
    ],
)
def test_a_compiler_that_fails(fresh, monkeypatch, tmp_path, compiles, reason):
    path = tmp_path / "compiler"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec echo 1.0\n{compiles}\n', encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    assert "\n" not in (build.available() or "\n")
    with pytest.raises(build.Unavailable, match=reason):
        build.library()


@BUILDS
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86 processor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_code_for_any_processor_agrees(dtype, old_processor, monkeypatch):
    """Vectors of four and no instructions for bf16 or reciprocals: what other processors than the tests' run."""
    monkeypatch.setattr(calls, "library", lambda: old_processor)
    calls._function.cache_clear()
    product = torch.randn(50, 2 * 37 + 16 + 1).to(dtype)
    gates = Modulation(torch.randn(74, 8), torch.randn(2, 8), 2.0, 8, (True, True))
    product[3, 5], product[4, 75] = float("nan"), float("inf")
    mine = calls.swiglu(product, gates, 37, 40)
    wide = gates._replace(Wc=gates.Wc.double(), ws=gates.ws.double())
    expected = reference(product.double(), wide, 37, 40)
    dproduct, dWc, _ = calls.swiglu_backward(mine, product, gates, 37)
    assert same_integers(mine.isnan(), expected.isnan())
    # fp32: a few roundings of 2^-24; bf16: half a unit of at most 2^-7, and a neighbour.
    tolerance = 1e-5 if dtype == torch.float32 else 1.2e-2
    torch.testing.assert_close(mine.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    monkeypatch.undo()
    calls._function.cache_clear()
    if build.available() is None:
        native = calls.swiglu_backward(mine, product, gates, 37)[:2]
        torch.testing.assert_close(native, (dproduct, dWc), rtol=2 * tolerance, atol=2 * tolerance, equal_nan=True)


@pytest.fixture(scope="module")
def old_processor(tmp_path_factory) -> ctypes.CDLL:
    command, _ = build.find_compiler()
    # Unoptimised vectors are slow, but this is about what is computed, and optimising takes most of the time. The
    # operation that is called here and the gates are enough of the sources.
    flags = ["-O1" if flag == "-O3" else flag for flag in build.FLAGS]
    folder = tmp_path_factory.mktemp("old")
    for part in ("cpu", "swiglu"):
        shutil.copytree(build.FOLDER / part, folder / part, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    path = folder / "kernels.so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FOLDER", folder)
        path.write_bytes(build.compile_library([*command, *flags, "-march=x86-64"], build.openmp_runtime()))
    return ctypes.CDLL(str(path))
