"""ReZero: no norms, and a learned factor on the branch that starts at zero (Bachlechner et al. 2021, Eq. 1).

$$y = x + a F(x)$$

Also CoMT's Eq. 1. Attention and feed-forward network of a block share one number, as in the authors' Transformer.
Deviations: none known. As in the authors' code, no norm follows the last block. The branch of a ResNet keeps its batch
norms.
"""

from comt_cli.methods.base import ConnectionMethod


class ReZeroMethod(ConnectionMethod):
    """No options: the connection has none."""

    streams = ("tokens", "maps")
