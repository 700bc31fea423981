"""LAuReL-LR: a low-rank map beside the identity of the skip path.

$$y = F(N(x)) + x + B A x$$

Menghani et al. 2024, section 2.2.
Deviations: a layer of theirs is each of the two adds of a block, on Pre-LN. Rank 32 is their smallest advice and
what their C4 ablation has; at it the increase stays below Transponder's printed 1 %.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Width


class LaurelLRMethod(ConnectionMethod):
    """`rank`: the width of B A."""

    rank: Width = 32
