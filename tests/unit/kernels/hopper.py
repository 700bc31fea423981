"""Triton kernels as machine code for Hopper (compute capability 9.0), compiled and counted without a GPU.

`launches_of` records what a call would launch for tensors that have shapes but no memory, and `launches_of_a_block`
what a LLaMA's block launches in one training step; `compiled` gives what the assembler and the disassembler of Triton's
package say of a launch. All need a process in which Triton does not interpret. Run as a program, this file prints the
table of results/bench/hopper-counts.md:

    python tests/unit/kernels/hopper.py [--sizes 60m,1b] [--methods transponder,comt] [--kernels heads,sites_backward]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.operators import IMPLEMENTATIONS, implementation

ROWS = 65536
"""Tokens of a training step."""
REGISTERS, SHARED, MOST_WARPS, MOST_PROGRAMS = 65536, 228 * 1024, 64, 32
"""What a multiprocessor has (CUDA programming guide, table of compute capabilities, 9.0). A program's shared memory
takes 1 KiB more than it asks for, and registers are given out 8 a thread at a time."""
HALVES = (torch.bfloat16, torch.float16)
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int64: "i64"}


@dataclass(frozen=True)
class Launch:
    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    kernel: str
    rows: int  # of a tile
    channels: int
    warps: int  # of a program
    registers: int  # of a thread
    spilled: int  # bytes that a thread writes to memory for want of registers
    shared: int  # bytes of shared memory
    resident: int  # warps on a multiprocessor
    programs: int  # of the launch
    instructions: float  # of all threads, an element of the tiles, in the loops along a row; 0 without a disassembler
    special: float  # of these, in the special-function unit
    barriers: int  # a tile
    wide: int  # accesses of 16 bytes to global memory, in these loops
    narrow: int  # accesses of fewer: of Wc, its gradient, the gain and the angles, if of nothing else
    local: int  # instructions that read or write what was spilled, in these loops
    group_products: int  # of a warp group (wgmma)
    stores: tuple[int, int]  # of tiles, outside loops and in them
    line: int  # bytes of a row of a tile


def launches_of(call: Callable[[], Any]) -> list[Launch]:
    """Calls, and returns what would have been launched."""
    from triton.runtime.jit import JITFunction

    found: list[Launch] = []

    def record(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **options: found.append(Launch(kernel, grid, arguments, options))

    with mock.patch.object(JITFunction, "__getitem__", record):
        call()
    return found


class _OnMeta(TorchDispatchMode):
    """Our operators call the kernels' functions for tensors on the meta device too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func.name().partition("::")
        if namespace != "comt":
            return func(*args, **(kwargs or {}))
        function = getattr(implementation(name.removesuffix("_backward"), "cuda"), name)
        names = [each.name for each in func._schema.arguments]
        if "Wc" not in names:
            return function(*args)
        at = names.index("Wc")
        Wc, ws, scale, rank, gated, *behind = args[at:]
        return function(*args[:at], Modulation(Wc, ws, scale, rank, tuple(gated)), *behind)


def launches_of_a_block(size: str, method: str, rows: int = ROWS) -> list[Launch]:
    """What the forward and the backward pass of a LLaMA's block launch, in bf16: two of add_norm, as the model has it.

    Widths are filled up as on a GPU: 1b's feed-forward width of 5461 is 5464 there.
    """
    from comt_cli.layers import attention, packing
    from comt_cli.models.build import empty_network, wiring_of
    from comt_cli.tasks.settings.llama import ModelSettings

    def call() -> None:
        length = min(rows, 1024)
        settings = ModelSettings(size=size, layers=1)
        model = empty_network(settings, wiring_of({"name": method}), vocabulary=32, length=length).to(torch.bfloat16)
        for part in model.modules():
            if hasattr(part, "fused"):
                part.fused = True
        with _OnMeta():
            model.body(*model.example(rows // length)).sum().backward()

    def filled(to: int) -> Callable[[int, torch.Tensor], int]:
        return lambda width, like: -(-width // to) * to

    aligned = (mock.patch.object(module, "aligned", filled(8)) for module in (packing, attention))
    ends = mock.patch.object(packing, "row_end", filled(64))
    with contextlib.ExitStack() as stack:
        for patch in (*aligned, ends, mock.patch.dict(IMPLEMENTATIONS, {"meta": "triton"})):
            stack.enter_context(patch)
        return launches_of(call)


def compiled(launch: Launch, *, disassembled: bool = True) -> Compiled:
    """What became of a launch. Without being disassembled, which takes a second, its loops have no instructions."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, options = launch.kernel, launch.options
    values = dict(zip(kernel.arg_names, launch.arguments, strict=False))
    values |= {name: value for name, value in options.items() if name in kernel.arg_names}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[Any]] = {}
    signature = {
        name: _described(values[name], (i,), kernel.params[i].is_constexpr, constants, attributes)
        for i, name in enumerate(kernel.arg_names)
    }
    source = ASTSource(kernel, signature, constants, attributes)
    rest = {name: value for name, value in options.items() if name not in kernel.arg_names}
    result = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=rest)
    registers, spilled = _assembled(result)
    rows, channels, warps = options.get("BT", 1), max(1, options.get("BN", 1)), result.metadata.num_warps
    instructions = _disassembled(result) if disassembled else []
    loops = [loop for loop in map(collections.Counter, _walks(instructions)) if any(_is_load(i) for i in loop)]
    count = sum(loops, collections.Counter())
    sites = 3 if "heads" in kernel.__name__ else 1  # each has its loop
    elements = rows * channels * sites
    threads = 32 * warps
    programs = min(
        REGISTERS // (-(-registers // 8) * 8 * threads),
        SHARED // (result.metadata.shared + 1024),
        MOST_WARPS // warps,
        MOST_PROGRAMS,
    )
    accesses = [_bytes(text) for text in count.elements() if re.match(r"LDG|STG", text)]
    return Compiled(
        kernel=kernel.__name__.removeprefix("_"),
        rows=rows,
        channels=channels,
        warps=warps,
        registers=registers,
        spilled=spilled,
        shared=result.metadata.shared,
        resident=programs * warps,
        programs=int(torch.tensor(launch.grid).prod()),
        instructions=count.total() * threads / elements,
        special=_matching(count, "MUFU") * threads / elements,
        barriers=round(_matching(count, "BAR") / sites),
        wide=accesses.count(16),
        narrow=len(accesses) - accesses.count(16),
        local=_matching(count, "LDL|STL"),
        group_products=result.asm["ttgir"].count("warp_group_dot "),
        stores=_stores(result.asm["ttgir"]),
        line=channels * max((each.itemsize for each in _tensors(launch.arguments) if each.dtype in HALVES), default=4),
    )


def _tensors(arguments: Any) -> Iterator[torch.Tensor]:
    for each in arguments:
        if isinstance(each, tuple):
            yield from _tensors(each)
        elif isinstance(each, torch.Tensor):
            yield each


def _stores(code: str) -> tuple[int, int]:
    """How many stores stand outside the loops of a kernel's code in Triton's language for GPUs, and in them."""
    outside, inside, ends = 0, 0, list[str]()
    for line in code.splitlines():
        indentation = line[: len(line) - len(line.lstrip())]
        if re.search(r"= scf\.for |^ *scf\.for ", line):
            ends.append(indentation + "}")
        elif ends and line.startswith(ends[-1]):
            ends.pop()
        elif "tt.store " in line:
            inside, outside = inside + bool(ends), outside + (not ends)
    return outside, inside


def _described(value: Any, path: tuple[int, ...], fixed: bool, constants: Any, attributes: Any) -> Any:
    """The type of an argument as Triton writes it; notes what is a constant, and what a multiple of 16."""
    if isinstance(value, tuple) and not fixed:
        return tuple(_described(entry, (*path, i), False, constants, attributes) for i, entry in enumerate(value))
    if fixed or value is None or (isinstance(value, int) and value == 1):
        constants[path] = value
        return "constexpr"
    if isinstance(value, float):
        return "fp32"
    number = value.storage_offset() * value.element_size() if isinstance(value, torch.Tensor) else value
    if number % 16 == 0:
        attributes[path] = [["tt.divisibility", 16]]
    return "i32" if isinstance(value, int) else "*" + TYPES[value.dtype]


def _assembled(result: Any) -> tuple[int, int]:
    """Registers and bytes spilled, as the assembler reports them."""
    from triton.backends.nvidia.compiler import get_ptxas

    command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", "-o", os.devnull, "/dev/stdin"]
    report = subprocess.run(command, input=result.asm["ptx"], capture_output=True, text=True, check=True)
    said = report.stdout + report.stderr
    (registers,), (spilled,) = re.findall(r"Used (\d+) registers", said), re.findall(r"(\d+) bytes spill stores", said)
    return int(registers), int(spilled)


def _disassembled(result: Any) -> list[tuple[int, str]]:
    """Each instruction's address and text, without its predicate. None where Triton's package has no disassembler."""
    import triton.backends.nvidia

    program = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    if not program.exists():
        return []
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(result.asm["cubin"])
        file.flush()
        command = [str(program), "-sass", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", text, re.MULTILINE)
    return [(int(address, 16), instruction) for address, instruction in lines]


def _walks(instructions: list[tuple[int, str]]) -> Iterator[list[str]]:
    """The instructions of every innermost loop; all of them where there is no loop."""
    index = {address: i for i, (address, _) in enumerate(instructions)}
    loops = []
    for i, (address, text) in enumerate(instructions):
        target = re.match(r"BRA\b.*?0x([0-9a-f]+)", text)
        if target and int(target[1], 16) < address:
            loops.append((index[int(target[1], 16)], i))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    for first, last in inner or [(0, len(instructions) - 1)]:
        yield [text for _, text in instructions[first : last + 1]]


def _is_load(text: str) -> bool:
    return re.match(r"LDG", text) is not None


def _matching(count: collections.Counter[str], names: str) -> int:
    return sum(number for text, number in count.items() if re.match(names, text))


def _bytes(text: str) -> int:
    """How much a thread moves by an access to global memory: 4 bytes if the instruction does not say."""
    size = re.match(r"\w+[\w.]*?\.(?:[US]?(8|16)|(64|128))\b", text)
    return 4 if size is None else int(size[1] or size[2]) // 8


COLUMNS = (
    "size", "method", "kernel", "rows", "tile", "warps", "registers", "spilled, bytes", "warps a multiprocessor",
    "programs", "instructions an element", "special functions an element", "barriers a tile", "accesses under 16 bytes",
)  # fmt: skip


def main() -> None:
    import triton

    parser = argparse.ArgumentParser(description="Count the compiled kernels of a LLaMA's block, forward and backward.")
    parser.add_argument("--sizes", default="60m,1b")
    parser.add_argument("--methods", default="transponder,comt")
    parser.add_argument(
        "--kernels",
        default=(
            "heads,sites,add_norm,add_norm_rows,heads_backward,sites_backward,store_means,add_norm_backward,"
            "add_norm_backward_rows,finish"
        ),
    )
    parser.add_argument("--rows", default=f"{ROWS}", help="tokens of a pass; 16 are those of a step of decoding")
    chosen = parser.parse_args()
    print(f"Triton {triton.__version__}, compute capability 9.0, bf16\n")
    print("| " + " | ".join(COLUMNS) + " |\n" + "| --- " * 3 + "| ---: " * (len(COLUMNS) - 3) + "|")
    for size in chosen.sizes.split(","):
        for method in chosen.methods.split(","):
            for rows in map(int, chosen.rows.split(",")):
                known = set()
                for launch in launches_of_a_block(size, method, rows):
                    name = launch.kernel.__name__.removeprefix("_")
                    if name in known or name not in chosen.kernels.split(","):
                        continue
                    known.add(name)
                    c = compiled(launch)
                    cells = (
                        size, method, name, rows, f"{c.rows} x {c.channels}", c.warps, c.registers, c.spilled,
                        c.resident, c.programs, f"{c.instructions:.1f}", f"{c.special:.1f}", c.barriers, c.narrow,
                    )  # fmt: skip
                    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
