"""Every Triton kernel goes through the real compiler, down to machine code for Hopper, without a GPU.

The interpreter accepts much that the compiler does not, and says nothing about registers. So each function is called
with tensors that have shapes but no memory, the launches are recorded instead of done, and what would have run is
compiled for compute capability 9.0. Run as a program, this file prints what the assembler says of every kernel:

    python tests/unit/kernels/test_triton_compiles.py [name of a case ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hopper import ROWS as T
from hopper import Compiled, launches_of, launches_of_a_block
from hopper import compiled as compiled_launch

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton.launch import PROCESSORS


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def modulate(N: int, R: int, kinds: str, dtype: torch.dtype) -> None:
    from comt_cli.kernels.modulate.triton import modulate, modulate_backward

    gates, product = modulation(N, R, kinds, (True,)), meta(T, columns(N + R), dtype=dtype)
    modulate_backward(modulate(product, gates, [N]), product, gates, [N])


def heads(D: int, E: int, R: int, kinds: str, dtype: torch.dtype, gated: tuple[bool, ...] = (True, True, True)) -> None:
    from comt_cli.kernels.heads.triton import heads, heads_backward

    gates = modulation(D, R, kinds, gated)
    how = gates, meta(1024, E // 2), meta(1024, E // 2), D // E, D // E
    product = meta(T, columns(3 * D + gates.columns), dtype=dtype)
    outputs = heads(product, *how)
    heads_backward(*outputs[:3], *outputs, *how, len(product[0]))


def swiglu(F: int, R: int, kinds: str, dtype: torch.dtype) -> None:
    from comt_cli.kernels.swiglu.triton import swiglu, swiglu_backward

    gates, product = modulation(F, R, kinds, (True, True)), meta(T, columns(2 * F + 2 * R), dtype=dtype)
    swiglu_backward(swiglu(product, gates, F, columns(F)), product, gates, F)


def add_norm(D: int, R: int, kinds: str, dtype: torch.dtype, stream: torch.dtype = torch.float32) -> None:
    from comt_cli.kernels.add_norm.triton import add_norm, add_norm_backward

    gates, product = modulation(D, R, kinds, (True,)), meta(T, columns(D + R), dtype=dtype)
    y, n, rstd = add_norm(meta(T, D, dtype=stream), product, gates, meta(D), 1e-6)
    add_norm_backward(y, n, y, rstd, product, gates, meta(D))


def norm(
    P: int, C: int, window: int, pixel: int, dtype: torch.dtype, *, rest: bool = True, columns: int | None = None
) -> None:
    """The fused batch norm; `rest`: with skip, ReLU and weight."""
    from comt_cli.kernels.modulated_norm.triton import modulated_norm, modulated_norm_backward

    product = meta(P, columns or (C + window + 7) // 8 * 8, dtype=dtype)
    A, b = (meta(pixel, C), meta(pixel)) if pixel else (None, None)
    gates = None, meta(window) if window else None, A, b, meta(C) if rest else None
    skip = meta(P, C, dtype=dtype) if rest else None
    y, mean, var = modulated_norm(product, *gates, meta(C), skip, rest, 1e-5)
    modulated_norm_backward(y, y if rest else None, product, *gates, mean, var, rest, 1e-5, rest)


def columns(used: int) -> int:
    """`used` rounded up, as the columns of a product are."""
    return (used + 15) // 16 * 16


def modulation(N: int, R: int, kinds: str, gated: tuple[bool, ...]) -> Modulation:
    """Of sites that are all N wide."""
    S = sum(gated)
    return Modulation(meta(S * N, R) if "c" in kinds else None, meta(S, R) if "s" in kinds else None, 2.0, R, gated)


def with_backward(*kernels: str) -> tuple[str, ...]:
    return tuple(name + suffix for name in kernels for suffix in ("", "_backward"))


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SMALL: dict[
    str, Callable[[], None]
] = {  # what the test compiles: every kernel; of the types, kinds of gates and widths each with some
    "modulate-cs-bf16": lambda: modulate(512, 8, "cs", BF16),
    "heads-mixed-s-fp32": lambda: heads(60, 6, 2, "s", FP32, (True, False, True)),
    "swiglu-cs-fp32": lambda: swiglu(1376, 8, "cs", FP32),
    "add-norm-c-fp16": lambda: add_norm(77, 8, "c", FP16),
}
SLOW = ("swiglu-cs-fp32", "add-norm-c-fp16")
"""Channel gates in other types than bf16 are right, and slow: what --tune then chooses is the compiled path."""
NORMS: dict[str, tuple[int, Callable[[], None]]] = {  # kernels, and a call: rows in one tile and not, padded and not
    "norm-512-both-bf16": (7, lambda: norm(T, 512, 32, 8, BF16)),
    "norm-50-pixel-fp32": (6, lambda: norm(T, 50, 0, 2, FP32, rest=False, columns=53)),
}
SMALL |= {name: call for name, (_, call) in NORMS.items()}
SIZES = {512: (1376, 64), 768: (2048, 64), 1024: (2736, 64), 2048: (5461, 64)}  # D: F, E
BLOCKS = {  # what models launch: size, method, rows, and which kernels the test compiles
    "block-60m": ("60m", "transponder", T, (*with_backward("heads", "sites", "add_norm"), "store_means", "finish")),
    "block-60m-parameters": ("60m", "transponder", T, (*with_backward("modulation"), "add_groups")),
    "block-60m-scalar": ("60m", "comt", T, with_backward("heads", "sites")),
    "block-60m-scalar-rows": ("60m", "comt", T, ("add_norm_rows", "add_norm_backward_rows", "finish")),
    "block-1b": ("1b", "transponder", 40960, with_backward("sites")),  # 5461 channels, filled up to 5464
    "block-1b-decoding": ("1b", "transponder", 16, ("add_norm_rows",)),
}
ACTIVATIONS = {
    "heads": 6, "heads_backward": 9, "sites": 3, "sites_backward": 5, "add_norm": 4, "add_norm_backward": 6,
}  # fmt: skip
"""Tiles that a kernel's loops read and write, those of heads at its three sites together."""
COUNTED = {
    "heads": 15.2, "heads_backward": 23.7, "sites": 26.1, "sites_backward": 47.4, "add_norm": 22.0,
    "add_norm_backward": 31.2,
}  # fmt: skip
"""Instructions an element with Triton 3.7 (results/bench/hopper-counts.md). The prototypes that an H200 measured have
14.2, 23.2, 26.8, 49.3, 21.0 and, at another tile, 33.4."""
NARROW = {
    "heads": 24, "heads_backward": 18, "sites": 5, "sites_backward": 9, "add_norm": 1, "add_norm_backward": 7,
}  # fmt: skip
"""Accesses of fewer than 16 bytes in their loops: of u, gates' matrices, parts of their gradients, and angles."""
SUMS = {"heads_backward": 6, "sites_backward": 4, "add_norm_backward": 4}
"""Tiles of dWc, and of the gain's gradient, that a backward kernel stores for its 64 channels, of heads at all three
sites."""
WALKERS = ("heads_backward", "sites", "sites_backward", "add_norm_backward", "heads")
"""Kernels whose programs stay, and walk down rows."""
REAL: dict[str, Callable[[], None]] = {  # the sizes of the papers' models
    f"{name}-{D}-r{R}-{kinds}-{str(dtype).removeprefix('torch.')}": call
    for R, kinds in ((8, "cs"), (2, "s"))
    for dtype in (BF16, FP32)
    for D, (F, E) in SIZES.items()
    for name, call in {
        "modulate": lambda D=D, R=R, k=kinds, t=dtype: modulate(D, R, k, t),
        "heads": lambda D=D, E=E, R=R, k=kinds, t=dtype: heads(D, E, R, k, t),
        "heads48": lambda D=D, R=R, k=kinds, t=dtype: heads(D // 48 * 48, 48, R, k, t),
        "swiglu": lambda F=F, R=R, k=kinds, t=dtype: swiglu(F, R, k, t),
        "add-norm": lambda D=D, R=R, k=kinds, t=dtype: add_norm(D, R, k, t),
    }.items()
}
REAL |= {  # of the ResNets: CIFAR's widths and ImageNet's, each gate alone, as the methods have them
    f"norm-{C}-{'window' if window else f'pixel{pixel}'}-{str(dtype).removeprefix('torch.')}": (
        lambda C=C, window=window, pixel=pixel, dtype=dtype: norm(T, C, window and C // 16, pixel, dtype)
    )
    for C in (16, 32, 64, 128, 256, 512, 1024, 2048)
    for window, pixel in ((1, 0), (0, 2), (0, 8))
    for dtype in (BF16, FP32)
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict[str, list[Compiled]]:
    """What each small case's kernels became. The compiler needs a process in which Triton does not interpret."""
    if sys.platform != "linux":
        pytest.skip("Triton's compiler exists for Linux alone")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[3]), environment.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--json"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    answer = json.loads(run.stdout)
    if "absent" in answer:
        pytest.skip(answer["absent"])
    return {name: [Compiled(**entry) for entry in entries] for name, entries in answer.items()}


@pytest.mark.parametrize("name", [*SMALL, *BLOCKS])
def test_compiles_without_spilling(compiled, name):
    """Or hardly: assemblers differ, and that of Triton 3.9 rather spills 11 registers of 168 in one kernel."""
    kernels = compiled[name]
    if name in BLOCKS:
        assert {kernel.kernel for kernel in kernels} == set(BLOCKS[name][3])
    else:  # forward and backward; the groups' sums are those of a block
        assert len(kernels) == (NORMS[name][0] if name in NORMS else 2)
    if name in SLOW:
        return
    assert [kernel for kernel in kernels if kernel.spilled > 16 * 4] == []


@pytest.fixture
def disassembled(compiled) -> dict[str, list[Compiled]]:
    """What models launch, counted."""
    if not any(kernel.instructions for kernel in compiled["block-60m"]):
        pytest.skip("Triton's package has no disassembler here")
    return {name: compiled[name] for name in BLOCKS}


@pytest.mark.parametrize("name", ["block-60m", "block-1b"])
def test_models_activations_move_in_16_bytes(disassembled, name):
    """As many wide accesses as their tiles take, and none of what was spilled, in the loops along a row."""
    for kernel in disassembled[name]:
        tiles = ACTIVATIONS.get(kernel.kernel, 0) * kernel.rows * kernel.channels * BF16.itemsize
        assert kernel.wide * 16 * 32 * kernel.warps >= tiles, kernel
        assert kernel.local == 0, kernel


@pytest.mark.parametrize("name", ["block-60m", "block-60m-scalar", "block-60m-scalar-rows", "block-1b"])
def test_a_program_owns_whole_lines(compiled, name):
    """128 bytes of a row; of heads half of them are of one half of a head."""
    assert all(kernel.line >= 128 for kernel in compiled[name] if kernel.kernel != "finish")


def test_no_product_is_a_warp_groups(compiled):
    """Those are fenced and waited for one by one, which for products of depth 16 took most of the time."""
    assert not any(kernel.group_products for kernels in compiled.values() for kernel in kernels)


def test_sums_over_rows_stay_in_registers(compiled):
    """dWc and the gain's gradient are stored once, behind the loop over rows."""
    for kernel in compiled["block-60m"]:
        if kernel.kernel in SUMS:
            assert kernel.stores[0] == SUMS[kernel.kernel], kernel


def test_no_logit_is_computed_twice(disassembled):
    """One special function an element and gate, and two for SwiGLU's own sigmoid; what a row's p takes comes on top,
    which few channels share."""
    for kernel in disassembled["block-60m"]:
        assert kernel.special <= (4.7 if "sites" in kernel.kernel else 1.5), kernel


def test_kernels_have_no_more_instructions_than_counted(disassembled):
    for kernel in disassembled["block-60m"]:
        if kernel.kernel in COUNTED:
            assert kernel.instructions <= 1.05 * COUNTED[kernel.kernel], kernel
            assert kernel.narrow <= NARROW[kernel.kernel], kernel


@pytest.mark.parametrize("name", ["block-60m", "block-60m-scalar"])
def test_walkers_fill_the_device(compiled, name):
    """At least nine tenths of the programs that fit are launched, so that all processors work to the end."""
    for kernel in compiled[name]:
        if kernel.kernel in WALKERS:
            assert kernel.programs >= 0.9 * PROCESSORS * kernel.resident / kernel.warps, kernel


def test_fits_into_shared_memory(compiled):
    # 227 KiB are a program's share at most on compute capability 9.0 (CUDA programming guide, table of capabilities);
    # half of it lets two programs run beside each other.
    assert [kernel for kernels in compiled.values() for kernel in kernels if kernel.shared > 227 * 1024 // 2] == []


# ---- the program


def compiled_launches(call: Callable[[], None], but: tuple[str, ...] = ()) -> Iterator[Compiled]:
    """Calls, and compiles what it would have launched, but kernels of these names."""
    for launch in launches_of(call):
        if launch.kernel.__name__ not in but:
            yield compiled_launch(launch, disassembled=False)


def compiled_block(size: str, method: str, rows: int, kernels: tuple[str, ...]) -> list[Compiled]:
    """The kernels that a model's block launches, each once."""
    each = {launch.kernel.__name__.removeprefix("_"): launch for launch in launches_of_a_block(size, method, rows)}
    return [compiled_launch(launch) for name, launch in each.items() if name in kernels]


def main(arguments: list[str]) -> None:
    """Prints a line for every kernel, or all small cases as JSON."""
    try:
        from triton.backends.nvidia.compiler import get_ptxas

        get_ptxas(90)
    except Exception as problem:  # whatever is not there: no NVIDIA backend, no assembler
        print(json.dumps({"absent": f"no compiler for NVIDIA GPUs: {problem}"}))
        return
    if arguments == ["--json"]:
        found = {
            name: list(compiled_launches(call, but=("_add_groups", "_finish", "_store_means")))
            for name, call in SMALL.items()
        }
        found |= {name: compiled_block(*block) for name, block in BLOCKS.items()}
        print(json.dumps({name: [asdict(entry) for entry in entries] for name, entries in found.items()}))
        return
    for name, call in (SMALL | REAL).items():
        if not arguments or any(argument in name for argument in arguments):
            for entry in compiled_launches(call):
                print(f"{name:34} {entry.kernel:20} {entry.registers:4} {entry.spilled:6} {entry.shared:7}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
