"""The operations of `reference` as hand-written Triton kernels, for CUDA tensors, or interpreted for those of the CPU.

Storage is fp32, bf16 or fp16, arithmetic fp32; every result is the same, bit for bit, each time it is computed.
"""

from comt_cli.kernels.add_norm.triton import add_norm, add_norm_backward
from comt_cli.kernels.heads.triton import heads, heads_backward
from comt_cli.kernels.modulate.triton import modulate, modulate_backward
from comt_cli.kernels.swiglu.triton import swiglu, swiglu_backward

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
