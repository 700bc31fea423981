r"""Attention Residuals: each branch reads a softmax over all earlier branch outputs (Kimi Team 2026).

$$h_l = \sum_{i<l} a_i v_i, \qquad v_l = F(N(h_l)), \qquad a = \mathrm{softmax}_i(w_l \cdot N_l(v_i))$$

v_i are the embedding and the branch outputs (arXiv 2603.15031). By default each residual add is one source. `blocks: N`
divides the adds into N groups; each group is one source, the sum of its outputs. If N does not divide the number of
adds, some groups are longer by one. (Kimi K3, 93 layers in blocks of 12, has a short last group.)
Deviations: The first branch has one source and no query. w and the gains of N_l have no weight decay; the paper does
not state this. A gain is stored as its difference from 1. Queries start at zero, as the paper requires. The initial
logits equal Pre-LN's up to the norms' epsilon: the mean of the sources has the direction of their sum but is much
smaller, so an epsilon of 1e-6 changes the logits of a small network by 1 %.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class AttentionResidualsMethod(ConnectionMethod):
    """`blocks`: into how many the adds are divided; each its own if not given."""

    blocks: Count | None = None
