r"""Peri-LN: norms before and after every branch, and of the embedding (Kim et al. 2025, arXiv 2502.02732).

$$x_0 = N_0(e), \qquad y = x + N_2(F(N_1(x)))$$

Its blocks are Sandwich-LN's. N_0, optional in the paper, has a gain; without it this is `sandwich-ln`. The norm after
the last block is LLaMA's own.
Deviations: The epsilon of N_0 is PyTorch's smallest, not that of the other norms. Gates combine with its parts:
`embedding-norm` (whose norm has no gain) of a method with `residual: sandwich-ln`.
"""

from comt_cli.methods.base import Method, Wiring, residual_connection


class PeriLN(Method):
    """No options."""

    needs = ("bare embedding",)

    def wiring(self) -> Wiring:
        from torch import nn

        return Wiring(residual_connection("sandwich-ln"), entry=nn.RMSNorm)
