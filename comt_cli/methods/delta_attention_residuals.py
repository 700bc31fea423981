r"""Delta Attention Residuals: a plain stream, and a softmax over earlier outputs added to what a branch reads (2026).

$$y = x + F\Big(N\Big(x + \sum_i a_i v_i\Big)\Big), \qquad a = \mathrm{softmax}_i(w_l \cdot N_l(v_i))$$

v_i are the embedding and the outputs of earlier branches (arXiv 2605.18855, and its public code). The first branch
reads the embedding alone.
Deviations: queries start at zero and have no weight decay; in the public code they keep the library's draw of 0.02. Its
variants with sums of blocks, a null source, or sigmoids are not here. The first branch has no query, and a gain is
stored as what it differs from 1 by. At the start logits are Pre-LN's up to the norms' epsilon: the mean of the sources
has the direction of the stream, their sum.
"""

from comt_cli.methods.base import ConnectionMethod


class DeltaAttentionResidualsMethod(ConnectionMethod):
    """No options: the connection has none."""
