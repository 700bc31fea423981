r"""LAuReL-PA: a low-rank map of earlier activations on the skip path (Menghani et al. 2024, section 2.3).

$$y = F(N(x_i)) + x_i + \sum_{j=0}^{k-1} g_j B A\,x_{i-j}$$

k = 3 and rank 32, as in the authors' C4 ablation.
Deviations: A layer of LAuReL is each of the two adds of a Pre-LN block. All j of an add share one map h_i = B A. Each g
starts at 1/k; the paper does not state the start. The authors did not use this variant for their large language models.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count, Width


class LaurelPAMethod(ConnectionMethod):
    """`rank`: the width of B A; `history`: k, how many activations, the present one included."""

    rank: Width = 32
    history: Count = 3
