r"""SiameseNorm: one branch for two streams, one normalised as in Post-LN and one free as in Pre-LN (2026).

$$z = F(N_{in}(\hat{x} + N_{pre}(y))), \qquad
x' = \hat{x} + \frac{z}{\sqrt{2(l+1)}}, \quad y' = y + z, \qquad \hat{x} = N_{post}(x)$$

arXiv 2602.08064 and its public code; N_x(x) + N_y(y) goes to the final norm.
Deviations: every branch has its N_in; in the authors' hybrid language model the first norm is optional. It does not
start as Pre-LN.
"""

from comt_cli.methods.base import ConnectionMethod


class SiameseNormMethod(ConnectionMethod):
    """No options: the connection has none."""
