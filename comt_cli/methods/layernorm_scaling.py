r"""LayerNorm Scaling, against the growth of Pre-LN's variance with depth.

$$y = x + F(N(x) / \sqrt{l})$$

Sun et al. 2025, Eq. 10: l counts blocks from 1, both norms of a block are scaled alike, and the gain of the norm is
kept. Embedding and final norm are not scaled; the initialisation is the ordinary one (the authors warn against a
depth-scaled one). Deviations: in language models RMSNorm for LayerNorm, as in the scripts behind CoMT's table.
"""

from comt_cli.methods.base import ConnectionMethod


class LayerNormScalingMethod(ConnectionMethod):
    """No options: the connection has none."""
