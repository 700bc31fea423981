"""LAuReL-RW: learned weights on the branch and on the skip path.

$$y = a F(N(x)) + b x$$

Menghani et al. 2024, section 2.1.
Deviations: a layer of theirs is each of the two adds of a block, on Pre-LN. Of the two ways to bound a and b that
they name, softmax is the default; both start at 1/2 (they do not say where), which halves the skip path at each of the
2L adds: until it has learned otherwise, a deep network passes on little of its input.
"""

from typing import Literal

from comt_cli.methods.base import ConnectionMethod


class LaurelRWMethod(ConnectionMethod):
    """`bound`: softmax makes a + b = 1, sigmoid bounds each by itself."""

    bound: Literal["softmax", "sigmoid"] = "softmax"
