r"""DenseFormer: behind every block a learned weighted sum of all blocks' outputs (Pagliardini et al. 2024).

$$Y_i = \sum_{j=0}^{i} a_{ij} X_j$$

X_0 is the embedding, X_i what block i makes of Y_(i-1). a_ii = 1 and 0 else at the
start: Pre-LN. `dilation` k takes every k-th X behind the newest, `period` p mixes behind every p-th block (the paper
recommends 4 and 5 at 48 blocks).
Deviations: a has no weight decay, and is stored as what it differs from the start by; in the public code a is decayed
with the matrices. In language models RMSNorm.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class DenseFormerMethod(ConnectionMethod):
    """`dilation` and `period`, as above."""

    dilation: Count = 1
    period: Count = 1
