r"""MUDDFormer: queries, keys, values and stream of a block each mix all earlier block outputs (Xiao et al. 2025).

$$\bar{X}_c = \sum_j A_{cj} X_j, \quad c \in \{Q, K, V, R\}, \qquad A = \mathrm{GELU}(N(X_i) W_1) W_2 + a$$

The mixtures follow block i (arXiv 2502.12170 and its code). W2 starts at 0 and a at 1 for X_i alone, which is Pre-LN.
As in the code, queries, keys and values have separate norms after block 1. After the last block only the stream is
mixed, with the hidden width of all four mixtures, 4 (L + 1).
Deviations: The code rounds the hidden width up to 64; here it is 4 (i + 1). Widths of feed-forward networks are not
moved between blocks, and no norms follow the mixtures (variants of the paper). a has no weight decay and is stored as
its difference from the start.

With `last: 2`, mixtures follow only the last two blocks, as in modded-nanogpt (record 81, #259). There the sources are
a few chosen outputs (here all), the hidden width is 64, and the weights are scaled and read a stream that is not
normalised. Only values and stream are mixed, and values after their projection; here queries and keys are mixed, too.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class MUDDFormer(ConnectionMethod):
    """`last`: number of blocks that mixtures follow."""

    connection = "mudd"
    later = frozenset({"last"})
    last: Count | None = None
