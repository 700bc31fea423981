"""Post-LN, the original Transformer's block.

$$y = N(x + F(x))$$

Vaswani et al. 2017, section 3.1.
Deviations: in language models RMSNorm for LayerNorm, and the norm after the last block stays, as in the scripts behind
the papers. The encoder-decoder is the paper's own: LayerNorm, and no norm behind its stacks.
"""

from comt_cli.methods.base import ConnectionMethod


class PostLN(ConnectionMethod):
    """No options: the connection has none."""

    connection = "post-norm"
