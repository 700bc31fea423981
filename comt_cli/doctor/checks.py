"""The checks of `comt doctor`. Each is a function that returns one `Finding`; none relies on another having passed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path

from comt_cli.doctor.finding import Finding, judge
from comt_cli.doctor.kernels import check_kernels
from comt_cli.errors import UserError
from comt_cli.installing import install_package

PYTHONS = ((3, 11), (3, 13))
TORCHES = ((2, 11), (2, 13))
"""First and last supported versions; a test holds them to those of pyproject.toml."""

GIB = 2**30
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 4 * GIB, 1 * GIB
LITTLE_DISK, TOO_LITTLE_DISK = 5 * GIB, GIB // 5
NATIVE_BF16 = (8, 0)
"""CUDA compute capability from which tensor cores multiply bf16."""

Check = Callable[[], Finding]


def run_check(check: Check) -> Finding:
    """Run one check. Whatever it raises is its failure, not the preflight's."""
    try:
        return check()
    except UserError as error:
        return Finding("fail", error.message, error.hint)
    except ImportError as error:
        return Finding("fail", f"cannot import {error.name or error}: {error}", "Install comt again: make setup")
    except Exception as error:
        text = f"the check itself failed: {type(error).__name__}: {error}"
        return Finding("fail", text, "Please report this line.")


def all_checks(runs: Path) -> dict[str, Check]:
    """Every check, in the order of its number; `runs` is where run directories are written."""
    return {
        "Python": check_python,
        "PyTorch": check_torch,
        "devices": check_devices,
        "precision": check_precision,
        "memory": check_memory,
        "disk": partial(check_disk, runs),
        "corpora": partial(_check_data, "corpora"),
        "tokenizers": check_tokenizers,
        "offline data": check_offline_data,
        "images": partial(_check_data, "images"),
        "parallel text": partial(_check_data, "parallel text"),
        "captions": partial(_check_data, "captions"),
        "kernels": check_kernels,
        "compilation": check_compilation,
        "recipes": check_recipes,
    }


def check_python(version: tuple[int, int] | None = None) -> Finding:
    """The interpreter is one of those that the tests run on."""
    said, fix = platform.python_version(), "Install Python 3.12, then: make clean && make setup PYTHON=python3.12"
    return _supported(f"{platform.python_implementation()} {said}", version or sys.version_info[:2], PYTHONS, fix)


def check_torch(version: str | None = None) -> Finding:
    """PyTorch imports, and is within the supported range."""
    import torch

    version = version or str(torch.__version__)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU"
    fix = f"{install_package('torch>=2.11,<2.14')}, or make clean setup"
    return _supported(f"{version} ({build} build)", tuple(map(int, version.split(".")[:2])), TORCHES, fix)


def _supported(text: str, version: tuple[int, ...], supported: tuple[tuple[int, int], ...], fix: str) -> Finding:
    first, last = supported
    text = f"{text}; supported: {first[0]}.{first[1]} to {last[0]}.{last[1]}"
    return Finding("ok", text) if first <= version <= last else Finding("fail", text, fix)


def check_devices() -> Finding:
    """What there is to train on, and whether a GPU stands idle because of a wrong build or driver."""
    import torch

    from comt_cli.kernels.processors import processor_flags
    from comt_cli.training.devices import device_name

    found, old = [], []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        size = f"{gpu.total_memory / GIB:.0f} GiB, capability {gpu.major}.{gpu.minor}"
        found.append(f"cuda:{index} {gpu.name}, {size}")
        if (gpu.major, gpu.minor) < NATIVE_BF16:
            old.append(f"cuda:{index}")
    if torch.backends.mps.is_available():
        found.append("mps (Apple GPU)")
    bf16 = sorted({"avx512_bf16", "amx_bf16", "bf16"} & processor_flags()) or ["no bf16 instructions seen"]
    cpu = f"cpu {device_name(torch.device('cpu'))}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"
    found.append(f"{cpu}, {' and '.join(bf16)}")
    idle = not torch.cuda.is_available() and _has_nvidia_device()
    repair = "Install a CUDA build of PyTorch (make clean setup TORCH_BACKEND=auto) or repair the driver: nvidia-smi"
    return judge(
        "; ".join([*found, *_why_no_cuda()]),
        (idle, "warn", "there is an NVIDIA device, but this PyTorch cannot use it", repair),
        (bool(old), "warn", f"{', '.join(old)} has no bf16 tensor cores", "Use --set train.precision=fp32 there."),
    )


def _has_nvidia_device() -> bool:
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def _why_no_cuda() -> list[str]:
    """In one sentence, why `--device cuda` is refused; none where it is not, or where the finding tells it."""
    import torch

    if torch.cuda.device_count() or _has_nvidia_device():
        return []
    if torch.version.cuda is None and torch.version.hip is None:
        return ["no cuda: this PyTorch is a CPU build"]
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return [f"no cuda: {'CUDA_VISIBLE_DEVICES hides every GPU' if hidden else 'the system shows no GPU'}"]


def check_precision() -> Finding:
    """bf16 works on the device that a run would take, and pays there: a product of matrices, measured."""
    import torch

    from comt_cli.training.devices import pick_device
    from comt_cli.training.speed import measured_matmul_flops

    device = pick_device(None)
    half = torch.full((64, 64), 0.5, device=device, dtype=torch.bfloat16)
    right = torch.equal((half @ half).float().cpu(), torch.full((64, 64), 16.0))
    fp32, bf16 = (measured_matmul_flops(device, precision) for precision in ("fp32", "bf16-mixed"))
    fix = "Use --set train.precision=fp32 on this device."
    return judge(
        f"on {device} fp32 reaches {fp32 / 1e12:.2f} TFLOP/s, bf16 {bf16 / 1e12:.2f} ({bf16 / fp32:.1f} times)",
        (not right, "fail", "bf16 products are wrong", fix),
        (bf16 < fp32, "warn", "bf16 works, but does not pay", fix),
    )


def check_memory(available: int | None = None) -> Finding:
    """Enough memory for the smallest scale, at least."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = available if available is not None else _available_memory()
    if available is None:
        return Finding("ok", f"{total / GIB:.1f} GiB (this system does not say how much is free)")
    more = "For larger ones: free memory, or lower train.micro_batch_size."
    return judge(
        f"{available / GIB:.1f} GiB of {total / GIB:.1f} GiB are free",
        (available < TOO_LITTLE_MEMORY, "fail", "scale smoke needs about 1 GiB", "Close other programs."),
        (available < LITTLE_MEMORY, "warn", "enough for scale smoke", more),
    )


def _available_memory() -> int | None:
    """Bytes that can be had without swapping, within a container's limit; None where the system does not say."""
    free = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8").strip()
        if limit != "max":
            free.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="utf-8")))
    return min(free, default=None)


def check_disk(runs: Path) -> Finding:
    """The folders for runs and for prepared data can be written and have room."""
    from comt_cli.files import cache_folder, check_writable

    texts, free = [], []
    for what, folder, option in (("runs", runs, "--runs"), ("cache", cache_folder(), "COMT_CACHE")):
        check_writable(folder, option)
        place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        free.append(shutil.disk_usage(place).free)
        texts.append(f"{what} in {folder}: {free[-1] / GIB:.1f} GiB free")
    other = "Make room, or choose other folders: --runs FOLDER, export COMT_CACHE=/some/folder."
    more = "Checkpoints of scale paper take gigabytes each: make room."
    return judge(
        "; ".join(texts),
        (min(free) < TOO_LITTLE_DISK, "fail", "too little", other),
        (min(free) < LITTLE_DISK, "warn", "enough for scale smoke", more),
    )


def _check_data(kind: str) -> Finding:
    from comt_cli.doctor.data import check_data  # here: what it lacks is the check's failure alone

    return check_data(kind)


def check_tokenizers() -> Finding:
    """Which tokenizers are here, and whether T5's, which scale paper needs, is T5's."""
    from comt_cli.data.vocabulary import T5_VARIABLE, t5_path, t5_tokenizer
    from comt_cli.files import cache_folder

    t5 = "not here: a recipe that uses it (scale paper) fetches it once"
    if os.environ.get(T5_VARIABLE) or t5_path().exists():
        t5_tokenizer()
        t5 = "here, checked"
    trained = len(list((cache_folder() / "tokenizers").glob("*.json")))
    return Finding("ok", f"bytes; {trained} SentencePiece trained here; T5's vocabulary is {t5}")


def check_offline_data() -> Finding:
    """Without network there is text to train on: this Python carries its library's sources or its topics."""
    sources = any(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    topics = importlib.util.find_spec("pydoc_data.topics") is not None
    differs = "so python-docs is smaller than elsewhere and numbers will differ"
    no_sources = f"this Python lacks the sources of its library, {differs}, and there is no python-source"
    fix = "Use a Python with its whole library (from python.org or pyenv), or --set data.corpus=files:GLOB."
    return judge(
        "python-docs, python-source and files:GLOB; c4 and openwebtext need the network once",
        (not sources, "warn" if topics else "fail", no_sources, fix),
        (not topics, "warn", f"this Python lacks its reference topics, {differs}", fix),
    )


def check_compilation() -> Finding:
    """`train.compile: true` finds what it needs: a C++ compiler and Python's headers on the CPU, Triton on a GPU."""
    import torch

    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    compiler = next((name for name in names if name and shutil.which(name)), None)
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    triton = importlib.util.find_spec("triton") is not None
    install = {
        "a C++ compiler (apt-get install g++, or xcode-select --install)": compiler is None,
        "Python's headers (apt-get install python3-dev)": not headers,
        f"Triton ({install_package('triton')})": torch.cuda.is_available() and not triton,
    }
    missing = [what for what, is_missing in install.items() if is_missing]
    said = {True: "found", False: "not found"}
    return judge(
        f"C++ compiler {compiler or 'none'}, Python's headers {said[headers]}, Triton {said[triton]}",
        (bool(missing), "warn", "train.compile will not work", f"Install {', '.join(missing)}; or leave it off."),
    )


def check_recipes() -> Finding:
    """The recipes that came with the program are found and pass their checks."""
    from comt_cli.methods import catalogue
    from comt_cli.recipe.load import available_recipes, load_recipe

    found, broken = available_recipes(), []
    for name, path in found.items():
        try:
            load_recipe(path, catalogue())
        except UserError:
            broken.append(name)
    again = "Install comt again, or run it where there is a folder recipes/."
    return judge(
        f"{len(found)} found: {', '.join(found)}",
        (not found, "fail", "none came with the program", again),
        (
            bool(broken),
            "fail",
            f"with errors: {', '.join(broken)}",
            f"comt show {''.join(broken[:1])} names each error.",
        ),
    )
