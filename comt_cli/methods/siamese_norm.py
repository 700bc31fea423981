r"""SiameseNorm: one branch for two streams, one normalised as in Post-LN and one as in Pre-LN (2026, arXiv 2602.08064).

$$z = F(N_{in}(\hat{x} + N_{pre}(y))), \qquad
x' = \hat{x} + \frac{z}{\sqrt{2(l+1)}}, \quad y' = y + z, \qquad \hat{x} = N_{post}(x)$$

The final norm reads N_x(x) + N_y(y), as in the public code. l counts blocks from 0.
Deviations: Every branch has its N_in; in the authors' hybrid language model the first norm is optional. The start is
not Pre-LN.
"""

from comt_cli.methods.base import ConnectionMethod


class SiameseNormMethod(ConnectionMethod):
    """No options: the connection has none."""
