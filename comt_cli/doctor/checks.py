"""The checks of `comt doctor`. Each is a function that returns one `Finding`; none relies on another having passed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from comt_cli.doctor.finding import Finding, Status
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


@dataclass(frozen=True)
class Check:
    """A named check."""

    name: str
    run: Callable[[], Finding]


@dataclass(frozen=True)
class Outcome:
    """A check's finding with its number, as it is printed."""

    number: int
    name: str
    status: Status
    text: str
    fix: str | None


def run_check(number: int, check: Check) -> Outcome:
    """Run one check. Whatever it raises is its failure, not the preflight's."""
    try:
        finding = check.run()
    except UserError as error:
        finding = Finding("fail", error.message, error.hint)
    except ImportError as error:
        finding = Finding("fail", f"cannot import {error.name or error}: {error}", "Install comt again: make setup")
    except Exception as error:
        finding = Finding(
            "fail", f"the check itself failed: {type(error).__name__}: {error}", "Please report this line."
        )
    return Outcome(number, check.name, finding.status, finding.text, finding.fix)


def all_checks(runs: Path) -> list[Check]:
    """Every check, in the order of its number; `runs` is where run directories are written."""
    return [
        Check("Python", check_python),
        Check("PyTorch", check_torch),
        Check("devices", check_devices),
        Check("precision", check_precision),
        Check("memory", check_memory),
        Check("disk", partial(check_disk, runs)),
        Check("corpora", check_corpora),
        Check("tokenizers", check_tokenizers),
        Check("offline data", check_offline_data),
        Check("images", partial(_check_in_file, "images")),
        Check("parallel text", partial(_check_in_file, "pairs")),
        Check("captions", partial(_check_in_file, "captions")),
        Check("kernels", check_kernels),
        Check("compilation", check_compilation),
        Check("recipes", check_recipes),
    ]


def _range(versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    (low, first), (high, last) = versions
    return f"{low}.{first} to {high}.{last}"


def check_python(version: tuple[int, int] | None = None) -> Finding:
    """The interpreter is one of those that the tests run on."""
    text = f"{platform.python_implementation()} {platform.python_version()}; supported: {_range(PYTHONS)}"
    if PYTHONS[0] <= (version or sys.version_info[:2]) <= PYTHONS[1]:
        return Finding("ok", text)
    return Finding("fail", text, "Install Python 3.12, then: make clean && make setup PYTHON=python3.12")


def check_torch(version: str | None = None) -> Finding:
    """PyTorch imports, and is within the supported range."""
    import torch

    version = version or str(torch.__version__)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU"
    text = f"{version} ({build} build); supported: {_range(TORCHES)}"
    major, minor = version.split(".")[:2]
    if TORCHES[0] <= (int(major), int(minor)) <= TORCHES[1]:
        return Finding("ok", text)
    return Finding("fail", text, f"{install_package('torch>=2.11,<2.14')}, or make clean setup")


def check_devices() -> Finding:
    """What there is to train on, and whether a GPU stands idle because of a wrong build or driver."""
    import torch

    from comt_cli.training.devices import device_name

    found, old = [], []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        found.append(
            f"cuda:{index} {device.name}, {device.total_memory / GIB:.0f} GiB, capability {device.major}.{device.minor}"
        )
        if (device.major, device.minor) < NATIVE_BF16:
            old.append(f"cuda:{index}")
    if torch.backends.mps.is_available():
        found.append("mps (Apple GPU)")
    found.append(f"cpu {device_name(torch.device('cpu'))}, {os.cpu_count()} cores, {_vector_instructions()}")
    text = "; ".join([*found, *_why_no_cuda()])
    if not torch.cuda.is_available() and _has_nvidia_device():
        return Finding(
            "warn",
            f"{text}; there is an NVIDIA device, but this PyTorch cannot use it",
            "Install a CUDA build of PyTorch (make clean setup TORCH_BACKEND=auto) or repair the driver: nvidia-smi",
        )
    if old:
        return Finding(
            "warn", f"{text}; {', '.join(old)} has no bf16 tensor cores", "Use --set train.precision=fp32 there."
        )
    return Finding("ok", text)


def _has_nvidia_device() -> bool:
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def _vector_instructions() -> str:
    """The widest vector instructions that PyTorch uses here, and the bf16 ones that the processor has."""
    import torch

    flags: set[str] = set()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                flags.update(line.partition(":")[2].split())
    except OSError:
        pass
    bf16 = [name for name in ("avx512_bf16", "amx_bf16", "bf16") if name in flags]
    return f"{torch.backends.cpu.get_cpu_capability()}, {' and '.join(bf16) or 'no bf16 instructions seen'}"


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
    if not torch.equal((half @ half).float().cpu(), torch.full((64, 64), 16.0)):
        return Finding("fail", f"bf16 products on {device} are wrong", "Use --set train.precision=fp32.")
    fp32, bf16 = (measured_matmul_flops(device, precision) for precision in ("fp32", "bf16-mixed"))
    text = f"on {device} fp32 reaches {fp32 / 1e12:.2f} TFLOP/s, bf16 {bf16 / 1e12:.2f} ({bf16 / fp32:.1f} times)"
    if bf16 < fp32:
        return Finding(
            "warn", f"{text}: bf16 works, but does not pay", "Use --set train.precision=fp32 on this device."
        )
    return Finding("ok", text)


def check_memory(available: int | None = None) -> Finding:
    """Enough memory for the smallest scale, at least."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = available if available is not None else _available_memory()
    if available is None:
        return Finding("ok", f"{total / GIB:.1f} GiB (this system does not say how much is free)")
    text = f"{available / GIB:.1f} GiB of {total / GIB:.1f} GiB are free"
    if available < TOO_LITTLE_MEMORY:
        return Finding("fail", f"{text}; scale smoke needs about 1 GiB", "Close other programs.")
    if available < LITTLE_MEMORY:
        return Finding(
            "warn", f"{text}: enough for scale smoke", "For larger ones: free memory, or lower train.micro_batch_size."
        )
    return Finding("ok", text)


def _available_memory() -> int | None:
    """Bytes that can be had without swapping, within a container's limit; None where the system does not say."""
    free = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                free.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8").strip()
        if limit != "max":
            free.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="utf-8")))
    except OSError:
        pass
    return min(free, default=None)


def check_disk(runs: Path) -> Finding:
    """The folders for runs and for prepared data can be written and have room."""
    from comt_cli.files import cache_folder, check_writable

    texts, worst = [], LITTLE_DISK
    for what, folder in (("runs", runs), ("cache", cache_folder())):
        check_writable(folder, "--runs" if what == "runs" else "COMT_CACHE")
        place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(place).free
        texts.append(f"{what} in {folder}: {free / GIB:.1f} GiB free")
        worst = min(worst, free)
    text = "; ".join(texts)
    if worst < TOO_LITTLE_DISK:
        return Finding("fail", text, f"Make room. {_other_folder('runs')} {_other_folder('cache')}")
    if worst < LITTLE_DISK:
        return Finding(
            "warn", f"{text}: enough for scale smoke", "Checkpoints of scale paper take gigabytes each: make room."
        )
    return Finding("ok", text)


def _other_folder(what: str) -> str:
    return "Choose another: --runs FOLDER." if what == "runs" else "Choose another: export COMT_CACHE=/some/folder."


def check_corpora() -> Finding:
    """Which corpora lie in the cache, tokenised, and whether their lists of files can be read."""
    from comt_cli.data.manifest import MANIFEST, Manifest
    from comt_cli.doctor.prepared import prepared, unless_damaged
    from comt_cli.files import cache_folder

    def said(manifest: Manifest) -> str:
        settings, tokens = manifest.settings, sum(part.train.tokens + part.validation.tokens for part in manifest.parts)
        size = sum(file.bytes for file in manifest.files())
        return (
            f"{settings['corpus']} ({settings['tokenizer']} {manifest.vocabulary_size}, {settings['rows']} "
            f"{settings['sequence_length']}; {tokens / 1e6:.1f}M tokens, {size / 1e6:.0f} MB)"
        )

    folder = cache_folder() / "corpora"
    here, damaged = prepared(folder, Manifest, said)
    text = "; ".join(here) or "none prepared yet; the first run of a recipe does it"
    if unfinished := sum(each.is_dir() and not (each / MANIFEST).exists() for each in folder.glob("*")):
        text += f"; {unfinished} in preparation or stopped, which the next run resumes"
    return unless_damaged(text, damaged)


def check_tokenizers() -> Finding:
    """Which tokenizers are here, and whether T5's, which scale paper needs, is T5's."""
    from comt_cli.data.t5 import T5_VARIABLE, t5_path, t5_tokenizer
    from comt_cli.files import cache_folder

    trained = len(list((cache_folder() / "tokenizers").glob("*.json")))
    text = f"bytes; {trained} SentencePiece trained here; "
    if os.environ.get(T5_VARIABLE) or t5_path().exists():
        t5_tokenizer()
        return Finding("ok", f"{text}T5's vocabulary, checked")
    return Finding("ok", f"{text}T5's vocabulary is not here: a recipe that uses it (scale paper) fetches it once")


def check_offline_data() -> Finding:
    """Without network there is text to train on: this Python carries its library's sources or its topics."""
    sources = len(list(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    topics = importlib.util.find_spec("pydoc_data.topics") is not None
    text = "python-docs, python-source and files:GLOB; c4 and openwebtext need the network once"
    if sources and topics:
        return Finding("ok", text)
    missing = "the sources of its library" if not sources else "its reference topics"
    without = "" if sources else ", and there is no python-source"
    return Finding(
        "warn" if sources or topics else "fail",
        f"{text}; this Python lacks {missing}, so python-docs is smaller than elsewhere and numbers will "
        f"differ{without}",
        "Use a Python with its whole library (from python.org or pyenv), or --set data.corpus=files:GLOB.",
    )


def _check_in_file(name: str) -> Finding:
    """A check with a file of its own, imported now: what it lacks is its failure alone."""
    found: Finding = getattr(importlib.import_module(f"comt_cli.doctor.{name}"), f"check_{name}")()
    return found


def check_kernels() -> Finding:
    """What would compute gates, batch norms and the loss on each device here, and why nothing faster does."""
    from comt_cli.doctor.kernels import kernel_lines
    from comt_cli.kernels.measurements import FILE, STEP_FILE, measurements

    text = "\n".join(kernel_lines())
    damaged = [str(path) for path in (*measurements(FILE)[1], *measurements(STEP_FILE)[1])]
    if damaged:
        fix = "Delete it and measure anew: comt bench kernels, comt bench step."
        return Finding("warn", f"{text}\ndamaged: {', '.join(damaged)}", fix)
    return Finding("ok", text)


def check_compilation() -> Finding:
    """`train.compile: true` finds what it needs: a C++ compiler and Python's headers on the CPU, Triton on a GPU."""
    import torch

    compiler = next(
        (name for name in (os.environ.get("CXX"), "g++", "clang++", "c++") if name and shutil.which(name)), None
    )
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    triton = importlib.util.find_spec("triton") is not None
    text = (
        f"C++ compiler {compiler or 'none'}, Python's headers {'found' if headers else 'not found'}, "
        f"Triton {'found' if triton else 'not found'}"
    )
    missing = []
    if compiler is None:
        missing.append("a C++ compiler (apt-get install g++, or xcode-select --install)")
    if not headers:
        missing.append("Python's headers (apt-get install python3-dev)")
    if torch.cuda.is_available() and not triton:
        missing.append(f"Triton ({install_package('triton')})")
    if missing:
        return Finding(
            "warn", f"{text}: train.compile will not work", f"Install {', '.join(missing)}; or leave train.compile off."
        )
    return Finding("ok", f"{text}: train.compile can be used")


def check_recipes() -> Finding:
    """The recipes that came with the program are found and pass their checks."""
    from comt_cli.methods import catalogue
    from comt_cli.recipe.load import available_recipes, load_recipe

    found = available_recipes()
    if not found:
        return Finding("fail", "none found", "Install comt again, or run it where there is a folder recipes/.")
    broken = []
    for name, path in found.items():
        try:
            load_recipe(path, catalogue())
        except UserError:
            broken.append(name)
    if broken:
        return Finding(
            "fail", f"{len(found)} found; with errors: {', '.join(broken)}", f"comt show {broken[0]} names each error."
        )
    return Finding("ok", f"{', '.join(found)}: found and without errors")
