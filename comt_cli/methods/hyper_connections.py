r"""Hyper-Connections: n residual streams with learned, input-dependent read and write weights (Zhu et al. 2024).

$$h = \sum_i A^m_i H_i, \qquad H'_k = \sum_i A^r_{ik} H_i + B_k\,F(N(h))$$

arXiv 2409.19606, Eq. 2 to 5 and 10 to 13. The start is Pre-LN. `dynamic: false` is the static variant (SHC), else DHC;
`tanh: false` removes the bound of the dynamic part.
Deviations: The dynamic part uses RMSNorm without a gain instead of LayerNorm. The paper's code also scales the initial
standard deviation of each branch's last projection by sqrt(n); its text fits multiplication and division.
`divide_output_std` divides it. By default it is not scaled, because the start would not be Pre-LN's. Static
coefficients have no weight decay, as in the paper.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class HyperConnectionsMethod(ConnectionMethod):
    """`n` streams; `dynamic`, `tanh` and `divide_output_std` as above."""

    n: Count = 4
    dynamic: bool = True
    tanh: bool = True
    divide_output_std: bool = False
