"""What the operations' Triton kernels share, for CUDA tensors, or interpreted for those of the CPU: gates and launches.

Storage is fp32, bf16 or fp16, arithmetic fp32; every result is the same, bit for bit, each time it is computed.
"""
