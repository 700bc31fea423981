r"""Hyper-Connections: n residual streams, read and written in learned, input-dependent shares (Zhu et al. 2024).

$$h = \sum_i A^m_i H_i, \qquad H'_k = \sum_i A^r_{ik} H_i + B_k\,F(N(h))$$

arXiv 2409.19606, Eq. 2 to 5, 10 to 13. The start is Pre-LN. `dynamic: false` are the static ones (SHC), else DHC;
`tanh: false` leaves out what bounds the dynamic part.
Deviations: RMSNorm without a gain for the LayerNorm of the dynamic part. The paper's code also scales the initial
standard deviation of each branch's last projection by sqrt(n), in words that fit multiplication and division; with
`divide_output_std` it is divided, by default left alone, since the start would not be Pre-LN's any more. Static
coefficients have no weight decay, as there.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class HyperConnectionsMethod(ConnectionMethod):
    """`n` streams; `dynamic`, `tanh` and `divide_output_std` as above."""

    n: Count = 4
    dynamic: bool = True
    tanh: bool = True
    divide_output_std: bool = False
