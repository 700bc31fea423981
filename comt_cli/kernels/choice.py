"""Choice between the reference and the hand-written kernels, by device, type, shape and measurements.

`auto` uses a kernel only if it was measured to be faster than the alternative (compiled or eager), beyond measurement
error. Measurements of this device come first, then those of its class. Without measurements the reference is used.
Every choice has a reason.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Literal

import torch

from comt_cli.data.storage import first_line
from comt_cli.installing import install_extra
from comt_cli.kernels.measurements import FILE, MARGIN, STEP_FILE, Measured, Tuned, kernel_hash, measurements
from comt_cli.kernels.processors import Device, close, processor_class, processor_name
from comt_cli.kernels.triton import tiles
from comt_cli.kernels.triton.tiles import MOST_CHANNEL_RANK, Key, Tile
from comt_cli.recipe.settings import Kernels as Wanted

Op = Literal["heads", "swiglu", "add_norm", "modulate"]
"""Operations on tokens with hand-written kernels, one folder each."""

NormGate = Literal["none", "window", "pixel", "both"]
"""Gates on a convolution and on the batch norm that follows (`modulated_norm`)."""

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
"""Storage types of the kernels, with their names in measurements."""
MOST_RANK = 128  # the widest bottleneck that the kernels take
NARROW_RANK = 16  # above it kernels use other tiles, to which measurements below do not apply
WITHOUT_GATES = "without gates whole steps were not measured faster with kernels"
"""For compiled models on a CPU, where operations are also fused with their neighbours, unlike in measurements; and for
decoding, where calling a kernel costs more than it saves. With gates, kernels are faster in both (results/bench)."""
NORM_CHANNELS = 64  # the fewest of the measured ResNets; with 8 the kernels were slower


@dataclass(frozen=True)
class Choice:
    """Whether the hand-written kernel is used, the reason as a phrase, and the tiles of the measurement for Triton."""

    fused: bool
    reason: str
    tiles: Tuned = ()

    def __str__(self) -> str:
        return f"{'fused' if self.fused else 'reference'} ({self.reason})"


@dataclass(frozen=True)
class Gates:
    """Factors of a product's gates, and the width of their bottleneck."""

    channel: bool
    scalar: bool
    rank: int


def choose(
    op: Op, wanted: Wanted, device: torch.device, dtype: torch.dtype, width: int, gates: Gates | None, *,
    compiled: bool, training: bool = True, may_build: bool = True, tokens: int | None = None,
) -> Choice:  # fmt: skip
    """Kernel or reference for `op` on a product of type `dtype` with `width` channels that carry `gates` (or none).
    `wanted` is the recipe's `train.kernels`; `compiled`: whether the reference would be compiled; `training`: whether
    there is a backward pass; `tokens`: tokens per pass, if known. What cannot run is the reference, whatever is wanted.
    C++ is compiled before it is chosen, or with `may_build` false only looked for."""
    choice = _as_asked(wanted, device, dtype, gates)
    if not choice.fused:
        return choice
    if gates is None and wanted == "auto" and (not training or (compiled and device.type == "cpu")):
        return Choice(False, WITHOUT_GATES)
    if wanted == "auto" or device.type == "cuda":
        measured = _by_operations(op, device, DTYPES[dtype], width, gates, tokens, compiled)
        choice = measured if wanted == "auto" else replace(choice, tiles=measured.tiles)
    return _if_built(choice, device, may_build)


def choose_norm(
    wanted: Wanted, device: torch.device, dtype: torch.dtype, channels: int, gate: NormGate, hidden: int, *,
    compiled: bool, training: bool = True, may_build: bool = True,
) -> Choice:  # fmt: skip
    """Kernel or reference for a batch norm after a convolution, with its `gate`; the product has type `dtype`.
    `channels` is the smallest number of channels of such a norm in the network; `hidden` is the hidden width of the
    wider gate, or 0. Other arguments as in `choose`. The decision follows measurements of whole training steps."""
    gates = None if gate == "none" else Gates(channel=False, scalar=True, rank=hidden)
    if wanted != "reference" and device.type == "cuda":
        return Choice(False, "batch norms have a kernel only for CPUs")
    choice = _as_asked(wanted, device, dtype, gates)
    if not choice.fused:
        return choice
    if not training:
        return Choice(False, "the kernel is for training: evaluation computes no statistics")
    if wanted == "auto" and channels < NORM_CHANNELS:
        return Choice(False, f"steps are measured with {NORM_CHANNELS} channels and more, this network has {channels}")
    choice = choice if wanted == "fused" else _by_steps(device, DTYPES[dtype], gate, compiled)
    return _if_built(choice, device, may_build)


def choose_loss(wanted: Wanted, device: torch.device, dtype: torch.dtype, *, may_build: bool = True) -> Choice:
    """Loss for hidden states of type `dtype`: blocked in PyTorch, or fused (liger-kernel on CUDA, C++ on a CPU). A
    fused loss is used wherever it can run, without measurements: it reads the logits fewer times."""
    if wanted == "reference":
        return Choice(False, "as asked")
    if device.type not in ("cuda", "cpu") or dtype not in DTYPES:
        return Choice(False, f"there is no fused loss for {device.type} and {dtype}")
    if device.type == "cpu":
        return _if_built(Choice(True, "softmax and gradient in one pass"), device, may_build)
    found = liger()
    return Choice(isinstance(found, tuple), found if isinstance(found, str) else f"liger-kernel {found[0]}")


def _as_asked(wanted: Wanted, device: torch.device, dtype: torch.dtype, gates: Gates | None) -> Choice:
    problem = "as asked" if wanted == "reference" else obstacle(device, dtype, gates)
    return Choice(problem is None, problem or "as asked")


def _if_built(choice: Choice, device: torch.device, may_build: bool) -> Choice:
    problem = cpu_obstacle(may_build=may_build) if choice.fused and device.type == "cpu" else None
    return choice if problem is None else Choice(False, problem)


_tuned: dict[Key, Tile] = {}


def use_tiles(choices: Iterable[Choice], *, only: bool = False) -> None:
    """Use the measured tiles of the chosen kernels in this process; `only`: forget the tiles of other choices."""
    if only:
        _tuned.clear()
    for choice in choices:
        _tuned.update(choice.tiles if choice.fused else ())
    tiles.use(_tuned)


@functools.cache
def liger() -> tuple[str, type[torch.autograd.Function]] | str:
    """liger-kernel's version and its fused linear cross entropy, or the reason why it is not available."""
    version = version_of("liger-kernel")
    if version is None:
        return f"liger-kernel is not installed: {install_extra('gpu')}"
    try:  # takes seconds, so only where it is used
        module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
        function: type[torch.autograd.Function] = module.LigerFusedLinearCrossEntropyFunction
    except Exception as error:  # training continues without it, whatever the reason
        return f"liger-kernel {version} cannot be imported: {type(error).__name__}: {first_line(error)}"
    return version, function


@functools.cache
def version_of(package: str) -> str | None:
    """Installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_obstacle(*, may_build: bool = True) -> str | None:
    """Reason why the C++ kernels cannot run here, or None. With `may_build` false, only looks for a compiler."""
    from comt_cli.kernels.cpu import build

    if may_build:
        return build.available()
    try:
        build.openmp_runtime()
        build.find_compiler()
    except (build.Unavailable, OSError) as error:
        return str(error)
    return None


def obstacle(device: torch.device, dtype: torch.dtype, gates: Gates | None) -> str | None:
    """Reason why there is no kernel for this; None if there is one, which may still have to be compiled."""
    if device.type not in ("cuda", "cpu"):
        return f"there are no kernels for {device.type}"
    if dtype not in DTYPES:
        return f"the kernels do not compute in {str(dtype).removeprefix('torch.')}"
    by_channel = gates is not None and gates.channel and device.type == "cuda"
    if gates is not None and gates.rank > (most := MOST_CHANNEL_RANK if by_channel else MOST_RANK):
        return f"the kernels take bottlenecks up to {most} wide"
    if device.type == "cpu":
        return None
    is_older = torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0)
    if torch.version.hip is not None or is_older:
        return "the kernels need an NVIDIA GPU of compute capability 8.0 or more"
    missing = importlib.util.find_spec("triton") is None
    return "Triton is not installed: it comes with PyTorch's CUDA build" if missing else None


def _by_operations(
    op: Op, device: torch.device, dtype: str, width: int, gates: Gates | None, tokens: int | None, compiled: bool
) -> Choice:
    """By measurements of the operation: on a CPU of the same or the largest shape; on a GPU of equal width and code."""
    kind, rank = ("none", 0) if gates is None else ("transponder" if gates.channel else "comt", gates.rank)
    on_gpu = device.type == "cuda"

    def fits(row: Measured) -> bool:
        same = (row.op, row.dtype, row.kind, row.rank > NARROW_RANK) == (op, dtype, kind, rank > NARROW_RANK)
        these = (row.kernel_hash, row.width) == (kernel_hash(op), width) and (not tokens or close(row.tokens, tokens))
        return same and (these or not on_gpu)

    def order(row: Measured) -> tuple[float, ...]:
        return row.rank != rank, row.width != width, row.tokens != tokens, -row.tokens, -row.width

    variants = "fused", "reference-compiled" if compiled else "reference"
    asked = f"{op} with {f'gates of rank {rank}' if rank else 'no gates'} in {dtype}"
    command = f"comt bench kernels{' --tune' if on_gpu else ''}"
    return _by_measurement(FILE, variants, device, fits, order, asked, command)


def _by_steps(device: torch.device, dtype: str, gate: NormGate, compiled: bool) -> Choice:
    """By measurements of training steps with the narrowest gates, using the step in which the kernel gains least."""
    base = {"none": "plain", "both": "pixel"}.get(gate, gate)
    eager = "plain" if base == "plain" else f"{base}-eager"
    variants = (f"{base}-fused", f"{base}-compiled") if compiled else (f"{base}-fused-eager", eager)
    return _by_measurement(
        STEP_FILE, variants, device, lambda row: row.dtype == dtype, lambda row: (row.speed(*variants),),
        f"{variants[0]} in {dtype}", "comt bench step",
    )  # fmt: skip


def _by_measurement(
    file: str, variants: tuple[str, str], device: torch.device, fits: Callable[[Measured], bool],
    order: Callable[[Measured], tuple[float, ...]], asked: str, command: str,
) -> Choice:  # fmt: skip
    """Kernel or reference, the `variants`, by the rows of a file of measurements that satisfy `fits`: first this
    device, then its class; first the user's measurements; first today's versions; then by `order`."""
    here, now = device_here(device), versions_here()
    found = [row for row in measurements(file)[0] if row.device.says_about(here)]
    if not found:
        return Choice(False, f"no kernel was measured on this device or its class: {command}")
    what = {"reference": "the reference", "reference-compiled": "the compiled reference"}.get(variants[1], variants[1])
    rows = [row for row in found if fits(row) and row.decides(*variants)]
    if not rows:
        return Choice(False, f"{asked} was not measured against {what}, or too noisily to decide: {command}")
    row = min(rows, key=lambda row: (row.device != here, not row.own, (row.torch, row.triton) != now, *order(row)))
    speed = row.speed(*variants)
    where = str(row.device) if row.device == here else f"{row.device} (here {here}, of the same class)"
    return Choice(speed > MARGIN, f"{speed:.2f} times as fast as {what} on {where} ({row})", row.tiles)


def versions_here() -> tuple[str, str]:
    """Versions of torch and triton (empty if there is none) that measurements here are made with."""
    return str(torch.__version__), version_of("triton") or ""


def device_here(device: torch.device) -> Device:
    """`device` with its name, its class, and for a CPU the number of threads of this process."""
    if device.type != "cuda":
        return Device(device.type, processor_name(), processor_class(), torch.get_num_threads())
    major, minor = torch.cuda.get_device_capability(device)
    return Device("cuda", torch.cuda.get_device_name(device), f"sm_{major}{minor}")
