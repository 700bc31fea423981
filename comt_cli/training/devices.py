"""The device of a run: its choice, name, peak speed and memory; and the precisions.

`fp32`       everything in 32 bits
`bf16-mixed` weights, gradients and optimiser states in fp32; matrix products in bf16 (autocast)
`bf16-pure`  everything in bf16, as in the papers' scripts, without fp32 copies of the weights. A weight near 1 does not
             change in steps below bf16's spacing there; the recipes at scale paper use it nevertheless.
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
    """The device `name`, by default CUDA, else Apple's MPS, else the CPU. With several processes each has its own GPU.
    On some CPUs oneDNN computes large products afterwards (`kernels.products`). Raises `UserError`."""
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
        # By default cuDNN computes fp32 convolutions in TF32 (10 bits of mantissa), unlike matrix products. The newer
        # `cudnn.conv.fp32_precision` would make reading this flag an error, and torch.compile reads it.
        torch.backends.cudnn.allow_tf32 = False
        return torch.device("cuda", index)
    if device.type not in ("cpu", "mps") or (device.type == "mps" and not torch.backends.mps.is_available()):
        raise no_such
    if device.type == "cpu":
        products.install()
    return device


def device_name(device: torch.device, threads: int | None = None) -> str:
    """The name of the GPU, or of the processor with the number of threads (None: this process's)."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = threads or torch.get_num_threads()
    return f"{processor_name()}, {threads} thread{'s' if threads != 1 else ''}"


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Peak FLOP/s of matrix products in the given precision; None if it is unknown."""
    if device.type != "cuda" or precision == "fp32":
        return None
    chip = chip_of(torch.cuda.get_device_name(device))
    return CHIPS[chip].bf16_flops if chip is not None else None


def measured_matmul_flops(device: torch.device, precision: str, threads: int | None = None) -> float:
    """Measured FLOP/s of a 1024 x 1024 x 1024 product in the precision of matrix products, on a CPU with `threads`
    threads (None: torch's); the best of several repetitions."""
    from torch.utils import benchmark

    size, threads = 1024, threads or torch.get_num_threads()
    a = torch.ones(size, size, device=device, dtype=torch.float32 if precision == "fp32" else torch.bfloat16)
    # With one thread, processor time: other programs that run now may not run during training.
    clock = time.process_time if device.type == "cpu" and threads == 1 else benchmark.timer
    given = {"a": a, "wait": functools.partial(synchronise, device)}
    timer = benchmark.Timer("a @ a; wait()", globals=given, num_threads=threads, timer=clock)
    return 2 * size**3 / min(timer.blocked_autorange(min_run_time=MATMUL_SECONDS).times)


def peak_memory_bytes(device: torch.device) -> int:
    """The peak memory so far: of tensors on a GPU, else of the whole process."""
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
    """Configure the process for training, before the first step of each run. `deterministic` (CUDA): use only kernels
    that add in a fixed order."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # for libraries that use the current device
        # cuBLAS reads it once, before its first product: a deterministic run may follow another one in this process.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Required for bit-exact resuming; it excludes cuDNN's attention and fastest convolutions.
        torch.use_deterministic_algorithms(deterministic)
        # New memory is always written before it is read; filling it with NaN would cost a pass over every tensor.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.cuda.reset_peak_memory_stats(device)  # measure this run, not the largest of the process
        return
    # Make glibc keep freed memory for the next step, which allocates the same large tensors. Otherwise a page fault
    # per 4 KiB costs 10 % to a third of a step's time on two cores.
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3
        mallopt(mmap_threshold, 32 * 2**20)  # the maximum
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 64 * 2**20)


def parameter_dtype(precision: Precision) -> torch.dtype:
    """The type of weights and optimiser states."""
    return torch.bfloat16 if precision == "bf16-pure" else torch.float32


def product_dtype(precision: Precision) -> torch.dtype:
    """The type of matrix products."""
    return torch.float32 if precision == "fp32" else torch.bfloat16


def compute_context(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The context of forward passes."""
    if precision != "bf16-mixed":
        return contextlib.nullcontext()
    # No weight is used twice in a pass, so cached bf16 copies would not be reused; under FSDP the copies of all blocks
    # would be the full model, which may not fit on a device.
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
