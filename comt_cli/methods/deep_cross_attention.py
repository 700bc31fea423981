r"""DeepCrossAttention: queries, keys and values each mix the outputs of all earlier blocks (Heddes et al. 2025).

$$g(G) = \sum_s G_s \odot (b_s + \mathrm{relu}(w \cdot G_s))$$

Queries, keys and values have one g each. G are the embedding and the output of each block without its skip paths (arXiv
2502.06785). `last: k` is the paper's k-DCA, whose sources are the embedding, the k newest outputs, and the sum of those
between. b starts at 1, so a mixture starts as the plain sum.
Deviations: w starts as N(0, 0.001^2). The paper has zeros, where relu has no gradient, so the weights could never
depend on the token. Except for w, the start is Pre-LN's. The output of attention is added to the queries' mixture, a
mixture also follows the last block, and each block has separate norms for its three mixtures. b has no weight decay and
is stored as its difference from 1. With `last`, all outputs are still stored and the middle sum is computed again in
each block, so the paper's memory saving is not reached.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class DeepCrossAttentionMethod(ConnectionMethod):
    """`last`: how many of the newest outputs are told apart; all if not given."""

    last: Count | None = None
