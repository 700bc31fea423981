r"""Attention Residuals: each branch reads a softmax over the outputs of all earlier ones (Kimi Team 2026).

$$h_l = \sum_{i<l} a_i v_i, \qquad v_l = F(N(h_l)), \qquad a = \mathrm{softmax}_i(w_l \cdot N_l(v_i))$$

v_i are the branches' outputs and the embedding (arXiv 2603.15031). With
`blocks: N` the adds are divided into N, each a source as the sum of its outputs; without it each is one. Where N
does not divide their number some blocks are longer by one (Kimi K3, 93 layers in blocks of 12, has a short last one).
Deviations: the first branch, which has one source, has no query. w and the gains of N_l have no weight decay; the paper
does not say. A gain is stored as what it differs from 1 by. Queries start at zero, which the paper requires. At the
start logits are Pre-LN's up to the norms' epsilon: the mean of the sources has the direction of their sum, but is so
much smaller that an epsilon of 1e-6 makes 1 % of a small network's logits.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class AttentionResidualsMethod(ConnectionMethod):
    """`blocks`: into how many the adds are divided; each its own if not given."""

    blocks: Count | None = None
