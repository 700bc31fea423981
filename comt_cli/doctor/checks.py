"""`comt doctor` and its checks. No check relies on another one, nor on torch."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import typer

from comt_cli.commands import options
from comt_cli.doctor import Finding, Status, judge
from comt_cli.errors import UserError
from comt_cli.files import cache_folder, check_writable
from comt_cli.installing import install_package
from comt_cli.words import plural

PYTHONS = ((3, 11), (3, 13))
TORCHES = ((2, 11), (2, 13))  # first and last supported versions; a test holds them to those of pyproject.toml

GIB = 2**30
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 4 * GIB, 1 * GIB
LITTLE_DISK, TOO_LITTLE_DISK = 5 * GIB, GIB // 5
COLOURS: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "red"}  # of each status, the worst last

Check = Callable[[], Finding]


def all_checks(runs: Path) -> dict[str, Sequence[Check]]:
    """The checks by name, each with its parts; `runs` is the folder of the run directories."""
    return {
        "Python": [check_python],
        "PyTorch": [check_torch],
        "devices": [check_devices, check_precision],
        "room": [check_memory, partial(check_disk, runs)],
        "data": [partial(_later, "check_data", kind) for kind in ("corpora", "images", "parallel text", "captions")],
        "kernels": [partial(_later, "check_kernels"), check_compilation],
    }


def _later(check: str, *of: str) -> Finding:
    """Run a check of the file `needs`. If its imports fail, only this check fails."""
    found: Finding = getattr(importlib.import_module("comt_cli.doctor.needs"), check)(*of)
    return found


def doctor(runs: options.Runs = options.DEFAULT_RUNS, as_json: options.AsJson = False) -> None:
    """Check that this machine can train: Python, PyTorch, devices, memory, disk, data sets, kernels.

    Every check runs, and each problem is printed with its fix. The exit status is 1 if a check failed. Nothing is
    changed or downloaded.

    Examples:
      comt doctor
      comt doctor --runs /scratch/runs --json
    """
    outcomes = []
    for number, (name, parts) in enumerate(all_checks(runs).items(), 1):
        found = run_check(parts)
        outcomes.append({"number": number, "name": name, **asdict(found)})
        if not as_json:
            text = found.text.replace("\n", f"\n{' ' * 10}")
            typer.echo(f"{number:2}  {typer.style(f'{found.status:4}', fg=COLOURS[found.status])}  {name}: {text}")
            if found.fix:
                typer.echo(f"          fix: {found.fix}")
    counts = Counter(outcome["status"] for outcome in outcomes)
    if as_json:
        typer.echo(json.dumps({"checks": outcomes, "failed": counts["fail"]}, indent=2))
    else:
        counted = f"{counts['ok']} ok, {plural(counts['warn'], 'warning')}, {counts['fail']} failed"
        typer.echo(f"\n{len(outcomes)} checks: {counted}")
    if counts["fail"]:
        raise typer.Exit(1)


def run_check(parts: Sequence[Check]) -> Finding:
    """The findings of a check's parts as one finding, with the worst status."""
    found = [_found(part) for part in parts]
    worst = max((each.status for each in found), key=list(COLOURS).index)
    fixes = [each.fix for each in found if each.fix]
    return Finding(worst, "\n".join(each.text for each in found), " ".join(fixes) or None)


def _found(check: Check) -> Finding:
    """The finding of a check. An exception is a failure of that check alone."""
    try:
        return check()
    except UserError as error:
        return Finding("fail", error.message, error.hint)
    except Exception as error:
        fix = "Install comt again (make setup). If that does not help, report this line."
        return Finding("fail", f"the check itself failed: {type(error).__name__}: {error}", fix)


def check_python(version: tuple[int, int] | None = None) -> Finding:
    """Check that the tests run on this version of Python."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    fix = "Install Python 3.12, then: make clean && make setup PYTHON=python3.12"
    return _supported(name, version or sys.version_info[:2], PYTHONS, fix)


def check_torch(version: str | None = None) -> Finding:
    """Check that PyTorch can be imported and is supported."""
    import torch

    version = version or str(torch.__version__)
    fix = f"{install_package('torch>=2.11,<2.14')}, or make clean setup"
    return _supported(version, tuple(map(int, version.split(".")[:2])), TORCHES, fix)


def _supported(text: str, version: tuple[int, ...], supported: tuple[tuple[int, int], ...], fix: str) -> Finding:
    first, last = supported
    text = f"{text}; supported: {first[0]}.{first[1]} to {last[0]}.{last[1]}"
    return Finding("ok", text) if first <= version <= last else Finding("fail", text, fix)


def check_devices() -> Finding:
    """List the devices, and check that a GPU is not idle because of a wrong build or driver."""
    import torch

    from comt_cli.training.devices import device_name

    found = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        found.append(f"cuda:{index} {gpu.name}, {gpu.total_memory / GIB:.0f} GiB, capability {gpu.major}.{gpu.minor}")
    if torch.backends.mps.is_available():
        found.append("mps (Apple GPU)")
    capability = torch.backends.cpu.get_cpu_capability()
    found.append(f"cpu {device_name(torch.device('cpu'))}, {os.cpu_count()} cores, {capability}")
    has_nvidia = Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None
    is_idle = not torch.cuda.is_available() and has_nvidia
    repair = "Install a CUDA build of PyTorch (make clean setup TORCH_BACKEND=auto) or repair the driver: nvidia-smi"
    wrong = "this machine has an NVIDIA device, but this PyTorch cannot use it"
    return judge("; ".join(found), (is_idle, "warn", wrong, repair))


def check_precision() -> Finding:
    """Check that bf16 works on the default device, and is not slower there, by a matrix product."""
    import torch

    from comt_cli.training.devices import measured_matmul_flops, pick_device

    device = pick_device(None)
    half = torch.full((64, 64), 0.5, device=device, dtype=torch.bfloat16)
    right = torch.equal((half @ half).float().cpu(), torch.full((64, 64), 16.0))
    fp32, bf16 = (measured_matmul_flops(device, precision) for precision in ("fp32", "bf16-mixed"))
    fix = "Use --set train.precision=fp32 on this device."
    return judge(
        f"on {device} fp32 reaches {fp32 / 1e12:.2f} TFLOP/s, bf16 {bf16 / 1e12:.2f} ({bf16 / fp32:.1f} times)",
        (not right, "fail", "bf16 products are wrong", fix),
        (bf16 < fp32, "warn", "bf16 is slower than fp32", fix),
    )


def check_memory(available: int | None = None) -> Finding:
    """Check that free memory, within a container's limit, is enough for the smallest scale."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = total if available is None else available
    with contextlib.suppress(OSError):  # some systems do not report free memory
        if available is None:
            known = re.search(r"MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"))
            free = min(free, int(known[1]) * 1024) if known else free
            files = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
            limit, used = (file.read_text(encoding="utf-8").strip() for file in files)
            free = min(free, int(limit) - int(used)) if limit != "max" else free
    more = "For larger scales free memory, or lower train.micro_batch_size."
    return judge(
        f"{free / GIB:.1f} GiB of {total / GIB:.1f} GiB memory are free",
        (free < TOO_LITTLE_MEMORY, "fail", "scale smoke needs about 1 GiB", "Close other programs."),
        (free < LITTLE_MEMORY, "warn", "enough for scale smoke", more),
    )


def check_disk(runs: Path) -> Finding:
    """Check that the folders for runs and prepared data can be written and have room."""
    texts, free = [], []
    for what, folder, option in (("runs", runs, "--runs"), ("cache", cache_folder(), "COMT_CACHE")):
        check_writable(folder, option)
        place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        free.append(shutil.disk_usage(place).free)
        texts.append(f"{what} in {folder}: {free[-1] / GIB:.1f} GiB free")
    other = "Make room, or choose other folders: --runs FOLDER, export COMT_CACHE=/some/folder."
    more = "For scale paper make room: each checkpoint takes gigabytes."
    return judge(
        "; ".join(texts),
        (min(free) < TOO_LITTLE_DISK, "fail", "too little free space", other),
        (min(free) < LITTLE_DISK, "warn", "enough for scale smoke", more),
    )


def check_compilation() -> Finding:
    """Check the needs of `train.compile: true`: a C++ compiler and Python's headers on the CPU, Triton on a GPU."""
    import torch

    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    compiler = next((name for name in names if name and shutil.which(name)), None)
    install = {
        "a C++ compiler (apt-get install g++, or xcode-select --install)": compiler is None,
        "Python's headers (apt-get install python3-dev)": not Path(sysconfig.get_path("include"), "Python.h").exists(),
        f"Triton ({install_package('triton')})": torch.cuda.is_available() and not importlib.util.find_spec("triton"),
    }
    missing = [what for what, is_missing in install.items() if is_missing]
    fix = f"Install {', '.join(missing)}. Or train without train.compile."
    return judge(f"C++ compiler: {compiler}", (bool(missing), "warn", "train.compile will not work", fix))
