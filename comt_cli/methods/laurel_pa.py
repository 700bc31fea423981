r"""LAuReL-PA: the skip path also carries earlier activations, through a low-rank map.

$$y = F(N(x_i)) + x_i + \sum_{j<k} g_j B A\,x_{i-j}$$

Menghani et al. 2024, section 2.3, k = 3 and rank 32 as in their C4
ablation.
Deviations: a layer of theirs is each of the two adds of a block, on Pre-LN. One map h_i = B A serves all j of an
add; each g starts at 1/k (they do not say where). They did not try it on their large language models.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count, Width


class LaurelPAMethod(ConnectionMethod):
    """`rank`: the width of B A; `history`: k, how many activations, the present one included."""

    rank: Width = 32
    history: Count = 3
