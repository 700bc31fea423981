r"""Highway: a gate per channel weights the branch against the skip path (Srivastava et al. 2015, Eq. 2, 3).

$$y = T(x) \odot H(x) + (1 - T(x)) \odot x, \qquad T(x) = \sigma(W x + b)$$

T reads the skip path. A negative bias b starts the network near the identity; the paper advises -1 to -3.
Deviations: H is a Pre-LN branch, and a norm follows the last block, as in the other LLaMAs here. W starts as N(0,
0.02^2) like every linear layer. In a ResNet, H is the block's branch with its batch norms, and T reads each pixel of
the skip path separately (a 1x1 convolution).
"""

from comt_cli.methods.base import ConnectionMethod


class HighwayMethod(ConnectionMethod):
    """`bias`: where b starts."""

    streams = ("tokens", "maps")
    bias: float = -2.0
