"""The operations of `reference` as hand-written Triton kernels, for CUDA tensors, or interpreted for those of the CPU.

Storage is fp32, bf16 or fp16, arithmetic fp32; every result is the same, bit for bit, each time it is computed.
"""

from comt_cli.kernels.triton.add_norm import add_norm, add_norm_backward
from comt_cli.kernels.triton.heads import heads, heads_backward
from comt_cli.kernels.triton.modulate import modulate, modulate_backward
from comt_cli.kernels.triton.swiglu import swiglu, swiglu_backward

__all__ = [
    "add_norm",
    "add_norm_backward",
    "heads",
    "heads_backward",
    "modulate",
    "modulate_backward",
    "swiglu",
    "swiglu_backward",
]
