"""The device of a run: its choice, name, peak speed and memory; and precision by name.

`fp32`       everything in 32 bits
`bf16-mixed` weights, gradients and optimiser states in fp32; matrix products in bf16 (autocast)
`bf16-pure`  everything in bf16, as in the papers' scripts: no fp32 copy of the weights. A weight near 1 then does not
             move under a step smaller than bf16's spacing there; the recipes for the paper scale use it all the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import sys
import time

import torch

from comt_cli.errors import UserError
from comt_cli.kernels import products
from comt_cli.kernels.processors import processor_name
from comt_cli.recipe.settings import Precision
from comt_cli.training.hardware import CHIPS, chip_of, too_few

MATMUL_SECONDS = 0.2


def pick_device(name: str | None, local_rank: int = 0) -> torch.device:
    """`name` if given, else CUDA, else Apple's MPS, else the CPU. With several processes each takes its own GPU. On
    some CPUs large products are oneDNN's from then on (`kernels.products`). Raises `UserError`."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    no_such = UserError(f"--device {name}: there is no such device here", "Use cuda, cuda:1, mps or cpu.")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise no_such from None
    if device.type == "cuda":
        index = device.index if device.index is not None else local_rank
        if index >= (count := torch.cuda.device_count()):
            raise too_few(f"--device {name}", count)
        # cuDNN convolves fp32 in TF32 (10 bits of mantissa) unless told not to; products do not. Not through the newer
        # `cudnn.conv.fp32_precision`: after it, to read this flag is an error, and torch.compile reads it.
        torch.backends.cudnn.allow_tf32 = False
        return torch.device("cuda", index)
    if device.type not in ("cpu", "mps") or (device.type == "mps" and not torch.backends.mps.is_available()):
        raise no_such
    if device.type == "cpu":
        products.install()
    return device


def device_name(device: torch.device, threads: int | None = None) -> str:
    """`NVIDIA H200`, or the processor with the number of threads used (None: this process's)."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = threads or torch.get_num_threads()
    return f"{processor_name()}, {threads} thread{'s' if threads != 1 else ''}"


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Peak matrix FLOP/s of the device in the precision that does the work; None where it is not known."""
    if device.type != "cuda" or precision == "fp32":
        return None
    chip = chip_of(torch.cuda.get_device_name(device))
    return CHIPS[chip].bf16_flops if chip is not None else None


def measured_matmul_flops(device: torch.device, precision: str, threads: int | None = None) -> float:
    """FLOP/s of a 1024 x 1024 x 1024 product in the precision that does the work, on a CPU by so many threads (None:
    as many as torch uses); the best of a few."""
    from torch.utils import benchmark

    size, threads = 1024, threads or torch.get_num_threads()
    a = torch.ones(size, size, device=device, dtype=torch.float32 if precision == "fp32" else torch.bfloat16)
    # Of one thread its processor time: other programs are busy now, and may not be when the runs are trained.
    clock = time.process_time if device.type == "cpu" and threads == 1 else benchmark.timer
    given = {"a": a, "wait": functools.partial(synchronise, device)}
    timer = benchmark.Timer("a @ a; wait()", globals=given, num_threads=threads, timer=clock)
    return 2 * size**3 / min(timer.blocked_autorange(min_run_time=MATMUL_SECONDS).times)


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory held so far: by tensors on a GPU, else by the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage if sys.platform == "darwin" else usage * 1024


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def prepare_process(device: torch.device, *, deterministic: bool = True) -> None:
    """Settings of the process for training, made before the first step of each run. `deterministic` is for CUDA:
    whether only kernels that add in a fixed order are used."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # for libraries that launch on the current one
        # cuBLAS reads it once in a process, before its first product: a deterministic run may follow one that is not.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Bit-exact resume needs it; it forbids cuDNN's attention and quickest convolutions.
        torch.use_deterministic_algorithms(deterministic)
        # What is allocated is written before it is read; filling it with NaN first would cost a pass over every tensor.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.cuda.reset_peak_memory_stats(device)  # of this run, not of the largest in its table
        return
    # The C library (glibc) is to keep freed memory for the next step, which allocates the same large tensors: getting
    # them afresh costs a page fault per 4 KiB, 10 % to a third of a step's time on two cores.
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3
        mallopt(mmap_threshold, 32 * 2**20)  # the most that glibc takes
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 64 * 2**20)


def parameter_dtype(precision: Precision) -> torch.dtype:
    """The type of weights and optimiser states."""
    return torch.bfloat16 if precision == "bf16-pure" else torch.float32


def product_dtype(precision: Precision) -> torch.dtype:
    """The type that matrix products have."""
    return torch.float32 if precision == "fp32" else torch.bfloat16


def compute_context(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The context that forward passes run in."""
    if precision != "bf16-mixed":
        return contextlib.nullcontext()
    # No weight is used twice in a pass, so keeping its bf16 copy to the end of it would serve nothing; and under FSDP
    # the copies of all blocks together are the full model, which no device should hold.
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
