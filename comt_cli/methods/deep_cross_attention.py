r"""DeepCrossAttention: queries, keys and values each mix all earlier blocks' outputs (Heddes et al. 2025).

$$g(G) = \sum_s G_s \odot (b_s + \mathrm{relu}(w \cdot G_s))$$

There is one g each for queries, keys and values; G are the embedding and what each block put out, without its skips
(arXiv 2502.06785). `last: k` is its k-DCA: the embedding, the sum of those between, the k
newest. At the start b = 1, so that a mixture is the plain sum.
Deviations: w starts as N(0, 0.001^2) where the paper has zeros, which relu would give no gradient, so that weights that
depend on the token never came about; the start is Pre-LN's but for that. Attention's output is added to what the
queries were made of; a mixture stands behind the last block too; every block norms its three mixtures apart. b has no
weight decay, and is stored as what it differs from 1 by. With `last` all outputs are kept all the same, and what lies
between is added up anew in every block: the paper's saving of memory is not had.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class DeepCrossAttentionMethod(ConnectionMethod):
    """`last`: how many of the newest outputs are told apart; all if not given."""

    last: Count | None = None
