r"""LayerNorm Scaling: norms divided by sqrt(depth), against the growth of Pre-LN's variance (Sun et al. 2025, Eq. 10).

$$y = x + F(N(x) / \sqrt{l})$$

l counts blocks from 1. Both norms of a block are scaled, and their gains are kept. Embedding, final norm and
initialisation do not change; the authors warn against a depth-scaled initialisation.
Deviations: Language models use RMSNorm instead of LayerNorm, as in the scripts behind CoMT's table.
"""

from comt_cli.methods.base import ConnectionMethod


class LayerNormScalingMethod(ConnectionMethod):
    """No options: the connection has none."""
