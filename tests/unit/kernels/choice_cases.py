"""Measurements made up for the choice between reference and kernels."""

from __future__ import annotations

import torch

from comt_cli.kernels import measurements
from comt_cli.kernels.choice import Choice, Gates, choose, version_of
from comt_cli.kernels.processors import Device

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
TRANSPONDER, COMT = Gates(channel=True, scalar=True, rank=8), Gates(channel=False, scalar=True, rank=2)
HEAD = (
    "device,device_type,device_class,op,shape,tokens,width,gates,dtype,variant,rounds,forward_ms,forward_ms_p10,"
    "forward_ms_p90,step_ms,step_ms_p10,step_ms_p90,forward_ratio_to_plain_compiled,step_ratio_to_plain_compiled,saved_bytes,torch,triton,"
    "git_commit"
)
INTERVAL = ["step_ms_uncertainty", "step_ms_settled"]
OLDER = [f"step_ratio_to_plain_compiled_{end}" for end in ("uncertainty", "settled")]
"""Of the ratio, where the version did not record the interval of the time itself."""
COLUMNS = [*HEAD.split(","), *INTERVAL, *OLDER, "kernel_hash", "tiles"]
HERE = "Some CPU, 2 threads"
THIS_CPU, H200 = Device("cpu", "Some CPU", "AMD AVX2", 2), Device("cuda", "NVIDIA H200", "sm_90")
TORCH = torch.__version__
ROW = {
    "device": HERE, "device_type": "cpu", "device_class": "AMD AVX2", "op": "swiglu", "shape": "d128", "tokens": 512,
    "width": 1024, "gates": "transponder-r8", "dtype": "fp32", "torch": TORCH, "triton": version_of("triton") or "",
    **dict.fromkeys([*INTERVAL, *OLDER, "kernel_hash", "tiles"], ""),
}  # fmt: skip
ON_H200 = {
    "device": "NVIDIA H200", "device_type": "cuda", "device_class": "sm_90",
    "kernel_hash": measurements.kernel_hash("swiglu"), "tiles": "",
}  # fmt: skip
ALL_THREE = {"reference": 6.0, "reference-compiled": 3.0, "fused": 2.0}
SLOW = {**ALL_THREE, "fused": 5.0}


def ask(
    wanted="auto", op="swiglu", device=CPU, dtype=torch.float32, width=1024, gates=TRANSPONDER, compiled=True, **more
) -> Choice:
    return choose(op, wanted, device, dtype, width, gates, compiled=compiled, **more)
