"""The gated projection: its definition, and everything faster that must agree with it."""

IN_USE = (
    "gates: PyTorch, CoMT's by autograd, Transponder's with a closed-form backward; "
    "loss: blocked linear cross entropy in PyTorch"
)
"""What training computes with. There is one choice today; a fused kernel for GPUs is not here yet."""
