"""Batch normalisation of a convolution's output with CoMT's gates, forward and backward, as Triton kernels.

Definition in `kernels/modulated_norm.py`; formulas and passes in `forward` and `backward`.
"""

from comt_cli.kernels.triton.modulated_norm.backward import modulated_norm_backward
from comt_cli.kernels.triton.modulated_norm.forward import modulated_norm

__all__ = ["modulated_norm", "modulated_norm_backward"]
