"""LAuReL-LR: a low-rank map on the skip path (Menghani et al. 2024, section 2.2).

$$y = F(N(x)) + x + B A x$$

Deviations: A layer of LAuReL is each of the two adds of a Pre-LN block. Rank 32 is the smallest rank that the authors
advise, and the rank of their C4 ablation. Its parameter increase is below the 1 % that Transponder prints.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Width


class LaurelLRMethod(ConnectionMethod):
    """`rank`: the width of B A."""

    rank: Width = 32
