r"""HybridNorm: norms of queries, keys and values, and Post-LN for the feed-forward network (Zhuo et al. 2025).

$$y = x + \mathrm{MHA}(N_q(Q), N_k(K), N_v(V)), \qquad z = N(y) + F(N(y))$$

arXiv 2503.04598, and its code. Q, K and V are computed from x without a norm, and normalised in each head before the
rotation. Each of the three norms has one gain for all heads. They undo a gate that scales all channels by one number:
CoMT's gates at q_proj, k_proj and v_proj have hardly any effect. With `starred` it is HybridNorm*: in the first block
attention and feed-forward network are Pre-LN, x + F(N(x)), and Q, K and V are normalised too.
Deviations: Initial values are those of all methods here. In the authors' code output projections start smaller, by
1 / sqrt(2 L).
"""

from comt_cli.methods.base import ConnectionMethod


class HybridNormMethod(ConnectionMethod):
    """`starred`: the first block is Pre-LN."""

    starred: bool = False
