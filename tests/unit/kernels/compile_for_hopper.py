"""Compile the gated projection for compute capability 9.0, without a GPU, in a process where Triton does not interpret.

Reads a JSON list of launches from its arguments and prints one JSON line for each: registers of a thread, bytes spilled
and of shared memory, and how many tensor core (wgmma) and asynchronous copy (cp.async) instructions there are.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from comt_cli.kernels.triton.projection import MOST_IN_SAME_PASS, PART, _projection
from comt_cli.kernels.tuning import Tiles

HOPPER = GPUTarget("cuda", 90, 32)
PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
SIZES = ("T", "N", "D", "stride_x", "stride_w", "stride_a", "stride_c", "stride_u")


def compiled(tiles: Tiles, dtype: str, gate_dtype: str, rank: int, aligned: bool) -> dict[str, int]:
    """What ptxas says of one launch; `aligned` rows start at multiples of 16 bytes."""
    pointers = dict.fromkeys(("x_ptr", "w_ptr", "a_ptr", "bias_ptr", "zhat_ptr", "u_ptr"), f"*{dtype}")
    pointers |= dict.fromkeys(("c_ptr", "s_ptr"), f"*{gate_dtype}")
    columns = max(16, triton.next_power_of_2(rank))
    constants = {
        "R": rank,
        "CHANNEL": True,
        "SCALAR": True,
        "BIAS": False,
        "SAME_PASS": tiles.same_pass and rank <= MOST_IN_SAME_PASS,
        "EVEN_D": aligned,
        "BLOCK_T": tiles.rows,
        "BLOCK_N": tiles.columns,
        "BLOCK_D": tiles.inner,
        "BLOCK_R": min(columns, MOST_IN_SAME_PASS),
        "GROUP": tiles.group,
        "PART": min(tiles.columns, PART),
    }
    signature = pointers | dict.fromkeys(SIZES, "i32") | {"scale": "fp32"} | dict.fromkeys(constants, "constexpr")
    multiples_of_16 = [*pointers, *(("T", "N", "D", "stride_x", "stride_w", "stride_a") if aligned else ())]
    hints = {(_projection.arg_names.index(name),): [["tt.divisibility", 16]] for name in multiples_of_16}
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    if tiles.registers and columns == 16:
        options["maxnreg"] = tiles.registers
    source = ASTSource(_projection, signature, constants, hints)
    kernel = triton.compile(source, target=HOPPER, options=options)
    ptx = kernel.asm["ptx"]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [PTXAS, "-v", "--gpu-name=sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = re.findall(r"(\d+) bytes spill", said)
    return {
        "registers": int(re.findall(r"Used (\d+) registers", said)[0]),
        "spilled": sum(map(int, spilled)),
        "shared": kernel.metadata.shared,
        "wgmma": ptx.count("wgmma.mma_async"),
        "copies": len(re.findall(r"cp\.async\.c[ag]", ptx)),
    }


if __name__ == "__main__":
    for tiles, *launch in json.loads(sys.argv[1]):
        print(json.dumps(compiled(Tiles(**tiles), *launch)), flush=True)
