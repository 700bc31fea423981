r"""Delta Attention Residuals: a softmax over earlier outputs is added to each branch's input (2026, arXiv 2605.18855).

$$y = x + F\Big(N\Big(x + \sum_i a_i v_i\Big)\Big), \qquad a = \mathrm{softmax}_i(w_l \cdot N_l(v_i))$$

v_i are the embedding and the outputs of earlier branches, as in the public code. The stream itself stays a plain sum.
The first branch reads only the embedding.
Deviations: Queries start at zero and have no weight decay; in the public code they keep the library's draw of 0.02. The
variants with block sums, a null source, or sigmoids are not implemented. The first branch has no query. A gain is
stored as its difference from 1. The initial logits equal Pre-LN's up to the norms' epsilon: the mean of the sources has
the direction of the stream, their sum.
"""

from comt_cli.methods.base import ConnectionMethod


class DeltaAttentionResidualsMethod(ConnectionMethod):
    """No options: the connection has none."""
