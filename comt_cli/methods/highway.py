r"""Highway: a gate per channel shares out between what the block computes and what it was given.

$$y = T(x) \odot H(x) + (1 - T(x)) \odot x, \qquad T(x) = \sigma(W x + b)$$

Srivastava et al. 2015, Eq. 2, 3.
Deviations: H is a Pre-LN branch, and a norm stands behind the last block, as in the other LLaMAs here; W starts as
N(0, 0.02^2) like every linear layer. The paper advises a b between -1 and -3. In a ResNet H is the block's branch with
its batch norms, and T reads every pixel of the skip path by itself (a 1x1 convolution).
"""

from comt_cli.methods.base import ConnectionMethod


class HighwayMethod(ConnectionMethod):
    """`bias`: where b starts."""

    streams = ("tokens", "maps")
    bias: float = -2.0
