r"""MUDDFormer: queries, keys, values and stream of a block each mix all earlier blocks' outputs (Xiao et al. 2025).

$$\bar{X}_c = \sum_j A_{cj} X_j, \quad c \in \{Q, K, V, R\}, \qquad A = \mathrm{GELU}(N(X_i) W_1) W_2 + a$$

Behind block i (arXiv 2502.12170 and its code).
W2 = 0 and a = 1 at X_i at the start: Pre-LN.
As in the code, queries, keys and values have a norm each behind block 1, and behind the last block the stream alone is
mixed, with a hidden width of 4 (L + 1) as if it were all four.
Deviations: the code rounds the hidden width up to 64, here it is 4 (i + 1). Widths of the feed-forward networks are not
moved between blocks, and there are no norms behind mixtures (its variants). a has no weight decay, and is stored as
what it differs from its start by.
"""

from comt_cli.methods.base import ConnectionMethod


class MUDDFormer(ConnectionMethod):
    """No options: the connection has none."""

    connection = "mudd"
