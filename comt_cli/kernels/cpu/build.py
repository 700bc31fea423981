"""Compiles the C++ kernels at first use and stores the result.

The library has a plain C interface and includes nothing of PyTorch, so compiling takes seconds. It is compiled for this
processor: the file name is a hash of sources, flags, compiler and processor. It is stored in a folder of the user,
because code from a shared cache would run with the user's rights.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from comt_cli.data.storage import file_lock
from comt_cli.errors import UserError
from comt_cli.files import atomic_file, cache_folder, canonical_json, sha256
from comt_cli.kernels.processors import described

FOLDER = Path(__file__).parents[1]  # one folder of sources per operation; common code is in `cpu`
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wno-psabi"),
    # Products may be fused with sums. Sums are never reordered; NaN and infinity are kept.
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
NATIVE = {"x86_64": "-march=native", "aarch64": "-mcpu=native"}
SECONDS = 600  # limit for the compiler; a source file takes at most about 6


class Unavailable(Exception):
    """The kernels are not available here. The message is the reason, as a phrase for people."""


@functools.cache
def available() -> str | None:
    """None if the kernels can be used (they are compiled if necessary), else the reason as a phrase for people."""
    try:
        library()
    except Unavailable as error:
        return str(error)
    return None


@functools.cache
def library() -> ctypes.CDLL:
    """Compiled kernels. Raises `Unavailable`."""
    if sys.platform != "linux" or platform.machine() not in NATIVE:
        raise Unavailable(f"the CPU kernels are not built on {sys.platform} {platform.machine()}")
    runtime = openmp_runtime()
    compiler, version = find_compiler()
    flags = [*FLAGS, NATIVE[platform.machine()]]
    files = sorted([*FOLDER.glob("*/*.cpp"), *FOLDER.glob("*/*.h")])
    sources = {path.relative_to(FOLDER).as_posix(): path.read_text(encoding="utf-8") for path in files}
    key = sha256(canonical_json([sources, flags, compiler, version, described(), runtime.name]))[:20]
    try:
        folder = cache_folder() / f"kernels-{os.getuid()}"  # a cache may be shared, code must not be
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"cpu-{key}.so"
        refuse_foreign(folder)
        refuse_foreign(path)
        if not path.exists():
            with file_lock(path.with_suffix(".lock")):  # of several workers one compiles, the others wait
                if not path.exists():
                    content = compile_library([*compiler, *flags], runtime)
                    with atomic_file(path) as handle:
                        os.fchmod(handle.fileno(), 0o600)  # even if the user's files are usually a group's
                        handle.write(content)
        return ctypes.CDLL(str(path))
    except (OSError, UserError) as error:
        raise Unavailable(str(error).splitlines()[0]) from error


def refuse_foreign(path: Path) -> None:
    """Raise `Unavailable` if `path` is a link, belongs to another user (except root), or is writable by others."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    is_own = status.st_uid in (os.getuid(), 0) and not stat.S_ISLNK(status.st_mode)
    if not is_own or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unavailable(f"{path} is a link, of another user or writable by others, and its code would run: delete it")


def find_compiler() -> tuple[list[str], str]:
    """Command of the C++ compiler (`$CXX`, else g++, clang++ or c++) and the version that it prints."""
    wanted = os.environ.get("CXX")
    commands = [shlex.split(wanted)] if wanted else [["g++"], ["clang++"], ["c++"]]
    command = next((c for c in commands if c and shutil.which(c[0])), None)
    if command is None:
        raise Unavailable(f"no C++ compiler: none of {wanted or 'g++, clang++, c++'}")
    return command, _run([*command, "--version"])


def compile_library(command: list[str], runtime: Path) -> bytes:
    """Content of the library. Raises `Unavailable` with the compiler's first error."""
    with tempfile.TemporaryDirectory() as folder:

        def compiled(source: Path) -> str:
            target = Path(folder) / f"{source.stem}.o"
            _run([*command, f"-I{FOLDER / 'cpu'}", "-c", str(source), "-o", str(target)])
            return str(target)

        # The longest first, for a short end.
        sources = sorted(FOLDER.glob("*/*.cpp"), key=lambda path: (-path.stat().st_size, path))
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = list(pool.map(compiled, sources))
        output = Path(folder) / "kernels.so"
        _run([*command, "-shared", *sorted(objects), str(runtime), "-o", str(output)])
        if not output.exists():
            raise Unavailable(f"{command[0]} wrote no file for the CPU kernels")
        return output.read_bytes()


def openmp_runtime() -> Path:
    """OpenMP library that PyTorch has loaded. The kernels use its threads, and start none of their own."""
    own = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    loaded = re.findall(r"/\S*/(?:libgomp|libiomp5|libomp)\.\S*", Path("/proc/self/maps").read_text(errors="replace"))
    if not (runtimes := [*own, *map(Path, loaded)]):
        raise Unavailable("PyTorch's OpenMP library was not found")
    return runtimes[0]


def _run(command: list[str]) -> str:
    try:
        # In its own process group: Ctrl-C is for the training, which would continue without kernels.
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False, process_group=0
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"the C++ compiler {command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise Unavailable(f"the C++ compiler {command[0]} failed with status {done.returncode}: {first.strip()}")
    return done.stdout
