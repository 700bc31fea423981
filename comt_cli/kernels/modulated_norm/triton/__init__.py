"""Batch normalisation of a convolution's output with CoMT's gates, forward and backward, as Triton kernels.

Definition in `kernels/modulated_norm/__init__.py`; formulas and passes in `forward` and `backward`.
"""

from comt_cli.kernels.modulated_norm.triton.backward import modulated_norm_backward
from comt_cli.kernels.modulated_norm.triton.forward import modulated_norm

__all__ = ["modulated_norm", "modulated_norm_backward"]
