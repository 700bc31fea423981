r"""LAuReL-RW+LR: learned weights and a low-rank map on the skip path (Menghani et al. 2024, section 2.4).

$$y = a F(N(x)) + b\,(x + B A x)$$

Deviations: those of `laurel-rw` and `laurel-lr`.
"""

from typing import Literal

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Width


class LaurelRWLRMethod(ConnectionMethod):
    """`rank`: the width of B A; `bound`: softmax makes a + b = 1, sigmoid bounds each by itself."""

    rank: Width = 32
    bound: Literal["softmax", "sigmoid"] = "softmax"
