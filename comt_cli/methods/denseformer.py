r"""DenseFormer: after every block, a learned weighted sum of all block outputs (Pagliardini et al. 2024).

$$Y_i = \sum_{j=0}^{i} a_{ij} X_j$$

X_0 is the embedding and X_i the output of block i on Y_(i-1). a starts with a_ii = 1 and 0 elsewhere, which is Pre-LN.
`dilation: k` mixes every k-th X before the newest; `period: p` mixes after every p-th block. The paper recommends 4 and
5 with 48 blocks.
Deviations: a has no weight decay and is stored as its difference from the start. In the public code it decays like the
matrices. Language models use RMSNorm.
"""

from comt_cli.methods.base import ConnectionMethod
from comt_cli.recipe.settings import Count


class DenseFormerMethod(ConnectionMethod):
    """`dilation` and `period`, as above."""

    dilation: Count = 1
    period: Count = 1
