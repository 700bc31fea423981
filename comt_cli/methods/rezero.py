"""ReZero: the branch enters by a learned number that starts at zero, and there are no norms.

$$y = x + a F(x)$$

Bachlechner et al. 2021, Eq. 1, also CoMT's Eq. 1.
One number a block, shared by attention and feed-forward network, as in the authors' Transformer.
Deviations: none known; their code has no norm behind the last block either, and neither has this. The branch of a
ResNet keeps its batch norms.
"""

from comt_cli.methods.base import ConnectionMethod


class ReZeroMethod(ConnectionMethod):
    """No options: the connection has none."""

    streams = ("tokens", "maps")
