"""LAuReL-RW: learned weights on branch and skip path (Menghani et al. 2024, section 2.1).

$$y = a F(N(x)) + b x$$

Deviations: A layer of LAuReL is each of the two adds of a Pre-LN block. The authors name two bounds for a and b; the
default is softmax. Both start at 1/2; the paper does not state the start. This halves the skip path at each of the 2L
adds, so a deep network initially passes on little of its input.
"""

from typing import Literal

from comt_cli.methods.base import ConnectionMethod


class LaurelRWMethod(ConnectionMethod):
    """`bound`: softmax makes a + b = 1, sigmoid bounds each by itself."""

    bound: Literal["softmax", "sigmoid"] = "softmax"
