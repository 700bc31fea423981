"""The gated projection: its definition, and everything faster that must agree with it."""

IN_USE = "gates: closed-form backward in PyTorch; loss: blocked linear cross entropy in PyTorch"
"""What training computes with. There is one choice today; a fused kernel for GPUs is not here yet."""
